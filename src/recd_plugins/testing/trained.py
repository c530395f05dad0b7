"""The whole outcome of a training, wherever its parts were."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torchrec.distributed.types import ShardedTensor

from recd_plugins.compat.torchrec import local_parts
from recd_plugins.registry.settings import OptimizerSettings
from recd_plugins.trainer.initial_tables import table_name

__all__ = ["Trained", "dense_optimizer", "gather_table"]


@dataclass(frozen=True, kw_only=True)
class Trained:
    """Losses and weights after a training, on the CPU, since they are sent between processes."""

    losses: Tensor
    """[steps, world_size]: the loss of each step on each rank's batch."""
    tables: Mapping[str, Tensor]
    """Each embedding table in full, [num_rows, D], by its name."""
    dense: Mapping[str, Tensor]
    """The other parameters and buffers, by their names in the state dict."""
    start: Mapping[str, Tensor] = field(default_factory=dict)
    """The tables before the first step."""

    @classmethod
    def of(
        cls,
        model: nn.Module,
        tables: Collection[str],
        *,
        losses: Sequence[Sequence[float]],
        start: Mapping[str, Tensor] | None = None,
    ) -> Trained:
        """The outcome of a model's training, sharded or not; if sharded, every rank must call
        it."""
        full: dict[str, Tensor] = {}
        dense: dict[str, Tensor] = {}
        for name, value in model.state_dict().items():
            if table_name(name) in tables:
                full[table_name(name)] = gather_table(value)
            else:
                dense[name] = value.detach().to("cpu", copy=True)
        return cls(
            losses=torch.tensor(losses, device="cpu"), tables=full, dense=dense, start=start or {}
        )

    def tensors(self) -> dict[str, Tensor]:
        """Everything by which two trainings are compared, under the names used in messages."""
        return {
            "losses": self.losses,
            **{f"table {name!r}": table for name, table in self.tables.items()},
            **{f"dense parameter {name!r}": value for name, value in self.dense.items()},
        }


def gather_table(value: Tensor | ShardedTensor | DTensor) -> Tensor:
    """A whole table, or a whole state of its optimizer, on every rank, from the shards of all
    ranks. It is on the CPU, whatever device it was on."""
    if not isinstance(value, ShardedTensor | DTensor):
        return value.detach().to("cpu", copy=True)
    mine = [([*offsets], part.detach().cpu()) for offsets, part in local_parts(value)]
    everyones: list[list[tuple[list[int], Tensor]]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(everyones, mine)
    full = torch.full(tuple(value.size()), torch.nan, device="cpu")
    for shards in everyones:
        for offsets, part in shards:
            place = zip(offsets, part.shape, strict=True)
            full[tuple(slice(first, first + count) for first, count in place)] = part
    if full.isnan().any():
        raise AssertionError("the shards of all ranks leave rows out, or hold a NaN")
    return full


def dense_optimizer(
    parameters: Sequence[nn.Parameter], settings: OptimizerSettings
) -> torch.optim.Optimizer:
    """The optimizer that the settings name, on these parameters."""
    kinds: dict[str, type[torch.optim.Optimizer]] = {
        name.lower(): kind for name, kind in vars(torch.optim).items() if isinstance(kind, type)
    }
    kind = kinds[settings.dense.lower()]
    return kind(parameters, lr=settings.dense_lr, **settings.dense_options)  # type: ignore[call-arg]

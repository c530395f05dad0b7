"""Training without TorchRec's sharding, fused optimizers or pipeline: the reference of parity.

One process holds whole tables, and the optimizers are written out in plain torch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection

from recd_plugins.data.batch import Batch
from recd_plugins.registry.settings import OptimizerSettings
from recd_plugins.testing.trained import Trained, dense_optimizer
from recd_plugins.trainer.initial_tables import initialise_tables, table_initialisers, table_name

__all__ = ["TableOptimizer", "train_reference", "unsharded"]


class TableOptimizer:
    """A fused optimizer's arithmetic on one whole table w [R, D] with gradient g [R, D].

    sgd               w <- w - lr g
    adagrad           s <- s + g^2,          w <- w - lr g / (sqrt(s) + eps),   s [R, D]
    rowwise_adagrad   s <- s + mean_d(g^2),  w <- w - lr g / (sqrt(s) + eps),   s [R, 1]

    Rows without a gradient stay as they are, so all rows can be updated in the same way. TorchRec
    keeps a state of row-wise Adagrad for each of a table's column shards, and so does this class.
    """

    def __init__(
        self, table: nn.Parameter, settings: OptimizerSettings, *, column_shards: int = 1
    ) -> None:
        self._table = table
        self._settings = settings
        self._column_shards = column_shards
        columns = column_shards if settings.tables == "rowwise_adagrad" else table.shape[1]
        self._state = torch.zeros(table.shape[0], columns, device="cpu")

    @torch.no_grad()
    def step(self) -> None:
        gradient = self._table.grad
        if gradient is None:
            return
        self._table.sub_(self._direction(gradient), alpha=self._settings.tables_lr)
        self._table.grad = None

    def _direction(self, gradient: Tensor) -> Tensor:
        match self._settings.tables:
            case "sgd":
                return gradient
            case "adagrad":
                self._state += gradient.square()
            case "rowwise_adagrad":
                shards = gradient.square().unflatten(1, (self._column_shards, -1))
                self._state += shards.mean(dim=2)
        scales = self._state.sqrt() + self._settings.tables_eps
        return gradient / scales.repeat_interleave(gradient.shape[1] // scales.shape[1], dim=1)


def unsharded(model: nn.Module, seed: int) -> Collection[str]:
    """Give a model its whole tables on the CPU, initialised from the seed, and return their
    names."""
    for module in model.modules():
        if isinstance(module, EmbeddingCollection | EmbeddingBagCollection):
            module.to_empty(device=torch.device("cpu"))
    tables = table_initialisers(model)
    initialise_tables(model, tables, seed)
    return tables


def train_reference(
    build_model: Callable[[], nn.Module],
    batches: Sequence[Sequence[Batch]],
    *,
    optimizer: OptimizerSettings,
    seed: int = 0,
    column_shards: int = 1,
    rounding: AbstractContextManager[object] | None = None,
) -> Trained:
    """Train on `batches[step][rank]`, each step on the mean of the ranks' losses.

    This is the loss that DDP and TorchRec's gradient division minimise: gradients are averaged over
    ranks, whatever the ranks' batch sizes. The steps run inside `rounding`.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = build_model()
    names = unsharded(model, seed)
    start = Trained.of(model, names, losses=[])
    tables: list[TableOptimizer] = []
    rest: list[nn.Parameter] = []
    for name, value in model.named_parameters():
        if table_name(name) in names:
            tables.append(TableOptimizer(value, optimizer, column_shards=column_shards))
        else:
            rest.append(value)
    dense = dense_optimizer(rest, optimizer)
    losses: list[list[float]] = []
    with rounding or nullcontext():
        for step in batches:
            dense.zero_grad()
            losses.append([])
            for batch in step:
                loss, _ = model(batch)
                (loss / len(step)).backward()
                losses[-1].append(loss.item())
            dense.step()
            for table in tables:
                table.step()
    return Trained.of(model, names, losses=losses, start=start.tables)

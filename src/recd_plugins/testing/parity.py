"""Do two ways of training leave the same losses and weights?

    check_parity(gloo_pool, build_model, batches, arrange=ByRegistry({"sharding": ...}))

trains a model on ranks and holds it to an unsharded reference, or to another arrangement.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from recd_plugins.data.batch import Batch
from recd_plugins.registry.settings import OptimizerSettings
from recd_plugins.testing.arrange import Arrangement, ByRegistry
from recd_plugins.testing.reference import train_reference
from recd_plugins.testing.trained import Trained, dense_optimizer
from recd_plugins.trainer.initial_tables import initialise_tables, table_initialisers

if TYPE_CHECKING:
    from recd_plugins.testing.gloo import GlooPool

__all__ = ["TABLE_OPTIMIZERS", "assert_parity", "check_parity", "train_and_gather", "train_on"]

TableOptimizerName = Literal["sgd", "adagrad", "rowwise_adagrad"]

TABLE_OPTIMIZERS: tuple[TableOptimizerName, ...] = ("sgd", "adagrad", "rowwise_adagrad")
"""The fused optimizers that run on CPU. SGD alone shows a wrong scale of the gradient."""


def check_parity(
    pool: GlooPool,
    build_model: Callable[[], nn.Module],
    batches: Sequence[Sequence[Batch]],
    *,
    arrange: Arrangement | None = None,
    reference: Arrangement | None = None,
    reference_batches: Sequence[Sequence[Batch]] | None = None,
    tables: Sequence[TableOptimizerName] = TABLE_OPTIMIZERS,
    dense: str = "sgd",
    atol: float = 1e-6,
    unmoved: Collection[str] = (),
) -> None:
    """Train on `batches[step][rank]` with each of the `tables` optimizers; hold it to a reference.

    `build_model` makes the model, tables on the meta device, alike in every process (no dropout);
    its forward is that of the `model` slot. `arrange` plans it, by default TorchRec's planner.
    The reference is unsharded plain torch, or another arrangement of the same model, on the same
    batches or on `reference_batches`, say those before deduplication. TorchRec itself leaves it
    in one case: a column-wise table keeps a state of row-wise Adagrad for each of its shards.
    """
    __tracebackhide__ = True
    if "sgd" not in tables:
        raise ValueError("tables must include 'sgd': the others hide a wrong gradient scale.")
    arrange = arrange or ByRegistry()
    for name in tables:
        # An eps well above the noise of float32 sums: below it Adagrad turns noise into steps.
        optimizer = OptimizerSettings(
            tables=name, tables_lr=0.1, tables_eps=1e-4, dense=dense, dense_lr=0.1
        )
        left = train_on(pool, build_model, batches, arrange, optimizer)
        others = batches if reference_batches is None else reference_batches
        if reference is None:
            right = train_reference(build_model, others, optimizer=optimizer)
        else:
            right = train_on(pool, build_model, others, reference, optimizer)
        try:
            assert_parity(left, right, atol=atol, unmoved=unmoved)
        except AssertionError as error:
            raise AssertionError(f"with {name} on the tables: {error}") from None


def train_on(
    pool: GlooPool,
    build_model: Callable[[], nn.Module],
    batches: Sequence[Sequence[Batch]],
    arrange: Arrangement,
    optimizer: OptimizerSettings,
) -> Trained:
    """`train_and_gather` on as many ranks as a step has batches."""
    return pool.run(
        train_and_gather, build_model, batches, arrange, optimizer, world_size=len(batches[0])
    )[0]


def train_and_gather(
    build_model: Callable[[], nn.Module],
    batches: Sequence[Sequence[Batch]],
    arrange: Arrangement,
    optimizer: OptimizerSettings,
    *,
    seed: int = 0,
) -> Trained:
    """On a rank: train this rank's `batches[step][rank]` through TorchRec's pipeline; all of it.

    Dense parameters and tables start from the seed alone, as `recd train` starts them.
    """
    from torchrec.distributed import DistributedModelParallel, TrainPipelineSparseDist
    from torchrec.optim.optimizers import in_backward_optimizer_filter

    device = torch.device("cpu")
    torch.manual_seed(seed)
    model = build_model()
    initialisers = table_initialisers(model)
    arranged = arrange(model, optimizer)
    sharded = DistributedModelParallel(
        arranged.model, device=device, plan=arranged.plan, sharders=arranged.sharders
    )
    initialise_tables(sharded, initialisers, seed)
    start = Trained.of(sharded, initialisers, losses=[])
    parameters = dict(in_backward_optimizer_filter(sharded.named_parameters()))
    pipeline = TrainPipelineSparseDist(
        sharded, dense_optimizer(list(parameters.values()), optimizer), device
    )
    mine = iter([step[dist.get_rank()] for step in batches])
    losses = torch.tensor([pipeline.progress(mine)[0].item() for _ in batches])
    everyones = [torch.empty_like(losses) for _ in range(dist.get_world_size())]
    dist.all_gather(everyones, losses)
    return Trained.of(
        sharded,
        initialisers,
        losses=torch.stack(everyones, dim=1).tolist(),
        start=start.tables,
    )


def assert_parity(
    left: Trained, right: Trained, *, atol: float = 1e-6, unmoved: Collection[str] = ()
) -> None:
    """Losses, tables and dense weights are equal within `atol`, and training moved every table.

    `unmoved` names tables that no batch touches.
    """
    __tracebackhide__ = True
    found = [
        *_differences("losses", {"by rank": left.losses}, {"by rank": right.losses}, atol),
        *_differences("table", left.tables, right.tables, atol),
        *_differences("dense parameter", left.dense, right.dense, atol),
    ]
    if found:
        raise AssertionError("\n".join([*found, *_scales(left, right)]))
    for name, before in left.start.items():
        if name not in unmoved and torch.equal(before, left.tables[name]):
            raise AssertionError(
                f"table {name!r} is where it started, so parity says nothing about it: "
                "train on batches that touch it, or name it in `unmoved`."
            )


def _differences(
    what: str, left: Mapping[str, Tensor], right: Mapping[str, Tensor], atol: float
) -> list[str]:
    """What is wrong between two sets of tensors: names, shapes, or the worst element of all."""
    if left.keys() != right.keys():
        return [f"only one side has {what} {name!r}" for name in sorted(left.keys() ^ right.keys())]
    for name, ours in left.items():
        if ours.shape != right[name].shape:
            shapes = f"{list(ours.shape)} and {list(right[name].shape)}"
            return [f"{what} {name!r}: shapes {shapes} differ"]
    gaps = {name: _gap(ours, right[name]) for name, ours in left.items()}
    wrong = [name for name, gap in gaps.items() if gap.numel() and gap.max() > atol]
    if not wrong:
        return []
    name = max(wrong, key=lambda name: gaps[name].max().item())
    ours, theirs, gap = left[name], right[name], gaps[name]
    place = tuple(int(i) for i in torch.unravel_index(gap.argmax(), gap.shape))
    axes = ("step", "rank") if what == "losses" else ("row", "column")
    where = ", ".join(f"{axis} {index}" for axis, index in zip(axes, place, strict=False))
    rows = gap.flatten(1).amax(1) if gap.dim() > 1 else gap.flatten()
    return [
        f"{what} {name!r} at {where}: {ours[place]:.9g} is not {theirs[place]:.9g} (difference "
        f"{gap[place]:.3g}, atol {atol:g}); {int((rows > atol).sum())} of {len(rows)} {axes[0]}s "
        f"differ, in {len(wrong)} of {len(gaps)}"
    ]


def _gap(ours: Tensor, theirs: Tensor) -> Tensor:
    """|ours - theirs|, elementwise; a NaN on either side is infinitely far from all."""
    return (ours.double() - theirs.double()).abs().nan_to_num(nan=torch.inf)


def _scales(left: Trained, right: Trained) -> list[str]:
    """Tables that went the same way on both sides, but not as far: a gradient's scale."""
    found = []
    for name, start in left.start.items():
        if name not in right.tables or name not in left.tables:
            continue
        ours, theirs = (side.tables[name] - start for side in (left, right))
        alike = torch.cosine_similarity(ours.flatten(), theirs.flatten(), dim=0)
        ratio = (ours.norm() / theirs.norm()).item()
        if alike > 0.99 and abs(ratio - 1) > 0.01:
            found.append(f"table {name!r} moved {ratio:.3g} times as far: is its gradient scaled?")
    return found

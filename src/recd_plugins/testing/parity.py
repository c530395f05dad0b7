"""Do two ways of training leave the same losses and weights?

    check_parity(gloo_pool, build_model, batches, arrange={"plugins": [...], "sharding": ...})

trains a model on ranks and compares it with an unsharded reference, or with another arrangement.
The test itself finds how much the two may differ, row by row: by how much the unsharded training
changes when it rounds at random (`recd_plugins.testing.rounding`).
"""

from __future__ import annotations

import hashlib
import io
import pickle
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from recd_plugins.data.batch import Batch
from recd_plugins.registry.settings import OptimizerSettings
from recd_plugins.testing.arrange import Arrangement, ByRegistry
from recd_plugins.testing.reference import train_reference
from recd_plugins.testing.rounding import BoundsOnDemand, bounds_of, least_bounds, spreads_of
from recd_plugins.testing.trained import Trained, dense_optimizer
from recd_plugins.trainer.initial_tables import initialise_tables, table_initialisers

if TYPE_CHECKING:
    from recd_plugins.testing.gloo import GlooPool

__all__ = [
    "TABLE_OPTIMIZERS",
    "Bounds",
    "Reference",
    "assert_alike",
    "assert_parity",
    "check_parity",
    "reference_of",
    "train_and_gather",
    "train_on",
]

TableOptimizerName = Literal["sgd", "adagrad", "rowwise_adagrad"]

TABLE_OPTIMIZERS: tuple[TableOptimizerName, ...] = ("sgd", "adagrad", "rowwise_adagrad")
"""The fused optimizers that run on CPU. Only SGD shows a wrong scale of the gradient."""

Bounds = Mapping[str, Tensor]
"""How much each element of `Trained.tensors` may differ."""


def check_parity(
    pool: GlooPool,
    build_model: Callable[[], nn.Module],
    batches: Sequence[Sequence[Batch]],
    *,
    arrange: Arrangement | Mapping[str, Any] | None = None,
    reference: Arrangement | Mapping[str, Any] | None = None,
    reference_batches: Sequence[Sequence[Batch]] | None = None,
    tables: Sequence[TableOptimizerName] = TABLE_OPTIMIZERS,
    dense: str = "sgd",
    build_plain: Callable[[], nn.Module] | None = None,
    exact: bool = False,
    unmoved: Collection[str] = (),
) -> None:
    """Train on `batches[step][rank]` with each of the `tables` optimizers, and compare with a
    reference.

    `build_model` makes the model with tables on the meta device, the same in every process (no
    dropout); its forward is that of the `model` slot. `arrange` is a registry, as
    `recd_plugins.load` takes it, or a function; by default TorchRec's planner plans. A registry
    adapts and plans the model for these batches and converts them; it is refused if they use
    nothing of what it switches on. The reference is unsharded plain torch, or another arrangement
    of the same model (`{}`: plain TorchRec's), on the same batches or on `reference_batches`.
    TorchRec itself differs from unsharded torch in one case: a column-wise table keeps a state of
    row-wise Adagrad for each of its shards. If the model cannot train unsharded, `build_plain`
    makes a similar one for the bounds. Both sides must be equal within the bounds of
    `reference_of`; with `exact`, they must equal another arrangement bit by bit.
    """
    __tracebackhide__ = True
    if "sgd" not in tables:
        raise ValueError(
            "tables must include 'sgd': the other optimizers hide a wrong gradient scale."
        )
    others = batches if reference_batches is None else reference_batches
    if arrange is None:
        arrange = ByRegistry()
    elif isinstance(arrange, Mapping):
        arrange = ByRegistry(arrange, batches)
    if isinstance(reference, Mapping):
        reference = ByRegistry(reference, others)
    for name in tables:
        # An eps well above the noise of float32 sums: below it Adagrad turns noise into steps.
        optimizer = OptimizerSettings(
            tables=name, tables_lr=0.1, tables_eps=1e-4, dense=dense, dense_lr=0.1
        )
        left = train_on(pool, build_model, batches, arrange, optimizer)
        bounds: Bounds
        if exact and reference is not None:
            right = train_on(pool, build_model, others, reference, optimizer)
            bounds = {name: torch.zeros((), device="cpu") for name in right.tensors()}
        else:
            right, bounds = reference_of(build_plain or build_model, others, optimizer=optimizer)
            if reference is not None:
                right = train_on(pool, build_model, others, reference, optimizer)
        try:
            assert_parity(left, right, bounds, unmoved=unmoved)
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
    """Train, on a rank, on this rank's `batches[step][rank]` through TorchRec's pipeline, and
    return the whole result.

    Dense parameters and tables start from nothing but the seed, as in `recd train`.
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
    mine = iter([arranged.convert(step[dist.get_rank()]) for step in batches])
    losses = torch.tensor([pipeline.progress(mine)[0].item() for _ in batches], device="cpu")
    everyones = [torch.empty_like(losses) for _ in range(dist.get_world_size())]
    dist.all_gather(everyones, losses)
    return Trained.of(
        sharded,
        initialisers,
        losses=torch.stack(everyones, dim=1).tolist(),
        start=start.tables,
    )


class Reference(NamedTuple):
    """An unsharded training, and how much rounding can change it."""

    trained: Trained
    bounds: Bounds
    """A table has one bound for each row, and losses have one for each step. Dense parameters share
    one bound, since many of them are too small for a spread of their own."""


def reference_of(
    build_model: Callable[[], nn.Module],
    batches: Sequence[Sequence[Batch]],
    *,
    optimizer: OptimizerSettings,
    seed: int = 0,
    column_shards: int = 1,
) -> Reference:
    """`train_reference`, and how much others may differ from it.

    While something differs by more than a few units in the last place, it is trained again,
    rounding at random, up to three times. A process does this once for the same arguments.
    """
    key = _digest((build_model, batches, optimizer, seed, column_shards))
    if key not in _FOUND:
        train = partial(
            train_reference,
            build_model,
            batches,
            optimizer=optimizer,
            seed=seed,
            column_shards=column_shards,
        )
        _FOUND[key] = _with_bounds(train)
    return _FOUND[key]


_FOUND: dict[bytes, Reference] = {}


class _ByValue(pickle.Pickler):
    """Pickles a tensor as its values: torch's own pickle contains the address of its storage."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, Tensor) and value.layout == torch.strided and value.is_cpu:
            held = value.detach().flatten().view(torch.uint8).numpy().tobytes()
            return Tensor, (value.dtype, tuple(value.shape), held)
        return NotImplemented


def _digest(value: object) -> bytes:
    """A digest that is the same for equal values, wherever they are in memory."""
    file = io.BytesIO()
    _ByValue(file).dump(value)
    return hashlib.sha256(file.getvalue()).digest()


def _with_bounds(train: Callable[..., Trained]) -> Reference:
    trained = train()
    expected = trained.tensors()

    def wider() -> Iterator[Bounds]:
        for spreads in spreads_of(lambda rounding: train(rounding=rounding).tensors(), expected):
            bounds = bounds_of(spreads, expected)
            dense = [name for name in bounds if name.startswith("dense parameter")]
            if dense := [name for name in dense if bounds[name].numel()]:
                widest = torch.stack([bounds[name].max() for name in dense]).max()
                bounds |= dict.fromkeys(dense, widest)
            yield bounds

    return Reference(trained, BoundsOnDemand(wider(), least_bounds(expected), on_ranks=False))


def assert_parity(
    left: Trained, right: Trained, bounds: Bounds | None = None, *, unmoved: Collection[str] = ()
) -> None:
    """Losses, tables and dense weights are equal, and training moved every table.

        assert_parity(trained, *reference_of(build_model, batches, optimizer=optimizer))

    `bounds` says how much each of `right.tensors()` may be off, by default a few units in the last
    place of its row. `unmoved` names tables that no batch touches.
    """
    __tracebackhide__ = True
    ours, theirs = left.tensors(), right.tensors()
    if bounds is None:
        bounds = least_bounds(theirs)
    found = _differences(ours, theirs, bounds)
    if found:
        raise AssertionError("\n".join([*found, *_scales(left, right)]))
    for name, before in left.start.items():
        if name not in unmoved and torch.equal(before, left.tables[name]):
            raise AssertionError(
                f"table {name!r} has not changed, so parity says nothing about it: train on "
                "batches that touch it, or name it in `unmoved`."
            )


def assert_alike(left: Mapping[str, Tensor], right: Mapping[str, Tensor], bounds: Bounds) -> None:
    """Tensors of the same names and shapes, equal within `bounds`; the last two from `plain_of`."""
    __tracebackhide__ = True
    if found := _differences(left, right, bounds):
        raise AssertionError("\n".join(found))


def _differences(
    left: Mapping[str, Tensor], right: Mapping[str, Tensor], bounds: Bounds
) -> list[str]:
    """The differences between two sets of tensors: in names, in shapes, or the worst element of
    each kind."""
    if isinstance(bounds, BoundsOnDemand):
        found = _beyond(left, right, bounds.so_far)
        while bounds.are_needed(here=bool(found)) and bounds.widen():
            found = _beyond(left, right, bounds.so_far)
        return found
    return _beyond(left, right, bounds)


def _beyond(left: Mapping[str, Tensor], right: Mapping[str, Tensor], bounds: Bounds) -> list[str]:
    if left.keys() != right.keys():
        return [f"only one side has {name}" for name in sorted(left.keys() ^ right.keys())]
    for name, ours in left.items():
        if ours.shape != right[name].shape:
            shapes = f"{list(ours.shape)} and {list(right[name].shape)}"
            return [f"{name}: shapes {shapes} differ"]
    wrong: dict[str, list[str]] = {}
    for name, ours in left.items():
        if bool(_times(ours, right[name], bounds[name]).any()):
            wrong.setdefault(name.partition(" ")[0], []).append(name)
    return [_worst(names, left, right, bounds) for names in wrong.values()]


def _worst(
    names: Sequence[str], left: Mapping[str, Tensor], right: Mapping[str, Tensor], bounds: Bounds
) -> str:
    """The element that is farthest off, measured in bounds, and how many others are off."""
    times = {name: _times(left[name], right[name], bounds[name]) for name in names}
    name = max(names, key=lambda name: times[name].max().item())
    far = times[name]
    place = tuple(int(i) for i in torch.unravel_index(far.argmax(), far.shape))
    axes = ("step", "rank") if name == "losses" else ("row", "column")
    where = ", ".join(f"{axis} {index}" for axis, index in zip(axes, place, strict=False))
    rows = far.flatten(1).amax(1) if far.dim() > 1 else far.flatten()
    ours, theirs = left[name][place], right[name][place]
    alike = sum(other.partition(" ")[0] == name.partition(" ")[0] for other in left)
    gap, bound = _gap(ours, theirs), bounds[name].expand_as(left[name])[place]
    return (
        f"{name} at {where}: {ours:.9g} is not {theirs:.9g} (difference {gap:.3g}, rounding "
        f"explains {bound:.3g}); {int((rows > 0).sum())} of {len(rows)} {axes[0]}s differ, "
        f"in {len(names)} of {alike}"
    )


def _times(ours: Tensor, theirs: Tensor, bound: Tensor) -> Tensor:
    """How many bounds each element is off; 0 where it is within its bound."""
    gap = _gap(ours, theirs)
    return torch.where(gap <= bound, 0, gap / bound).nan_to_num(nan=torch.inf)


def _gap(ours: Tensor, theirs: Tensor) -> Tensor:
    """|ours - theirs|, elementwise; a NaN on either side is infinitely far from everything."""
    return (ours.double() - theirs.double()).abs().nan_to_num(nan=torch.inf)


def _scales(left: Trained, right: Trained) -> list[str]:
    """Tables that moved in the same direction on both sides, but not equally far: a sign of a
    gradient's scale."""
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

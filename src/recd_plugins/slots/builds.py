"""What the records of the slots build: a protocol, or a base, for each slot."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from inspect import (
    getattr_static,
    isasyncgenfunction,
    iscoroutinefunction,
    isfunction,
    isgeneratorfunction,
)
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable
from weakref import WeakSet

from recd_plugins.data.dataset import Split
from recd_plugins.data.messages import Cuts, LogRoute, Placed
from recd_plugins.data.progress import Progress
from recd_plugins.data.schema import Schema
from recd_plugins.data.stats_report import StatsReport
from recd_plugins.data.table import Table
from recd_plugins.errors import PluginError, nearest

if TYPE_CHECKING:
    import pyarrow as pa
    from torch import Tensor, nn
    from torch.distributed import ProcessGroup
    from torch.optim import Optimizer
    from torchrec.distributed.types import ModuleSharder, ShardingPlan
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

    from recd_plugins.data.batch import Batch
    from recd_plugins.data.columns import Columns
    from recd_plugins.planning.cluster.topology import Topology
    from recd_plugins.sparse.groups import Groups
    from recd_plugins.trainer.training import Training

__all__ = [
    "Callback",
    "DedupConverter",
    "DensePreprocess",
    "Etl",
    "Explains",
    "GrowingLog",
    "Loader",
    "LogStore",
    "OptimizerFactory",
    "Planner",
    "Pooling",
    "PoolingFactory",
    "Preprocess",
    "Reader",
    "TableStats",
    "check_callback",
    "uncalled",
]


class LogStore(Protocol):
    """Raw logs as log shards.

    A service that logs has one in each of its processes and appends to it; the process that
    prepares the dataset's tables has one and reads from it.
    """

    @property
    def shards(self) -> int:
        """The number of log shards."""

    @property
    def route(self) -> LogRoute:
        """The rule that decides which log shard a message goes to."""

    def append(self, messages: pa.RecordBatch) -> None:
        """Add messages (columns `MESSAGES`); they may wait in memory until a block is full."""

    def flush(self) -> None:
        """Once it returns, readers in any process see all that was appended here."""

    def close(self) -> None:
        """Flush, and free what writing needs."""

    def read(self, shard: int) -> Iterator[pa.RecordBatch]:
        """The messages of a shard so far: those of one writer in its order, several writers
        merged by time."""

    def fingerprint(self) -> str:
        """Changes with what can be read, so that a stale table is never reused."""


@runtime_checkable
class GrowingLog(LogStore, Protocol):
    """A `LogStore` that can be read while others write it, by places that stay valid.

    The past never changes: the same messages always lie between two places.
    """

    @property
    def name(self) -> str:
        """A name that tells this log from others: its place, its topic."""

    def cuts(self, begins: Mapping[str, int], first: int, second: int) -> Cuts:
        """The places about two times, in ms; `begins` are such `before` an earlier time."""

    def between(self, shard: int, *places: Mapping[str, int]) -> Iterator[Placed]:
        """The messages of a shard from the first such places to the last, always in the same order.
        Messages on different sides of a place in between are never returned together."""


class Etl(Protocol):
    """A step from table to table.

    The first process that needs the tables runs it, once for each split; all others wait. Later
    runs find its tables, which are named by its options.
    """

    def run(self, table: Table, folder: Path, progress: Progress) -> Table:
        """Write the result as a table into `folder` and open it."""


class TableStats(Protocol):
    """Measures a table, in the one process of `recd data stats`."""

    def measure(self, table: Table, progress: Progress) -> StatsReport:
        """Read the table, which may be far larger than memory, and leave it as it is."""


class Loader(Protocol):
    """The batches of one rank, which has a loader of its own for each split.

    The host checks each batch against the schema as it comes: shapes, types, and all ids. An
    attribute `checks_ids` that is true says that the loader has already checked the ids that it
    reads. TorchRec's pipeline holds three batches at a time: a loader that uses memory again writes
    no batch over one of the two before it.
    """

    def __iter__(self) -> Iterator[Batch]:
        """Go on where the state says, to the epoch's end; iterated again, read the next epoch."""

    def __len__(self) -> int:
        """Batches in an epoch: equal on all ranks."""

    def state_dict(self) -> dict[str, Any]:
        """The position after the batch that was yielded last, as values that JSON takes.

        Each rank asks after every batch; a checkpoint keeps the states of all ranks.
        """

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from this position. Each rank gets a state of its own before it iterates."""

    def close(self) -> None:
        """End workers and close files: no more batches will be asked for, perhaps because of an
        error."""


class Reader(Protocol):
    """Opens loaders on a table. Each rank builds one for itself."""

    def loader(
        self,
        table: Table,
        *,
        rank: int,
        world_size: int,
        batch_size: int,
        split: Split,
        transform: Callable[[Batch], Batch] | None = None,
    ) -> Loader:
        """The loader of rank `rank` of `world_size`; `test` is read completely and in order,
        never shuffled.

        `transform` holds what `dedup` and `preprocess` do to a batch; the loader applies it.
        """


@runtime_checkable
class Explains(Protocol):
    """Explains its choices; a `Planner` must do so, a `DedupConverter` may."""

    def explain(self) -> str:
        """The reasons, in words: `recd train`, `recd plan` and `recd explain` print them on rank
        0."""


class DedupConverter(Protocol):
    """Takes groups of features out of batches, for `batch.dedup`; may say why (`Explains`).

    Every rank builds the same one, and its loader converts each batch before it is preprocessed.
    An attribute `asks`, with "session_id" or "timestamp" or both, has these read along with the
    features. An optional attribute `unique_shares` says for each group which share of a batch's
    samples is unique; an adapted model sizes its tables' parts by it. An attribute `advised` that
    is true says that the converter chose the groups itself, not a user: if a plan has no place
    for tables by these groups, they look up all samples, and the job goes on.
    """

    @property
    def groups(self) -> Groups:
        """The features that it takes, by group; if there are none, batches stay as they are."""

    def convert(self, features: Columns) -> Any:
        """Make `batch.dedup`: the B samples of these features, all that it takes."""


class Preprocess(Protocol):
    """A transform of jagged features, row by row.

    Every rank builds the same one, and its loader applies it to each batch, after `dedup`: a
    feature that is deduplicated is transformed once for each unique sample. If features keep
    their names, each is transformed by itself, so those that nobody needs may be left out. An
    attribute `takes` names the features if the transform's own options choose them instead of
    `features:`.
    """

    def __call__(self, features: KeyedJaggedTensor) -> KeyedJaggedTensor:
        """The features that registry.yaml names, row for row: other ids, or other features."""

    def schema(self, schema: Schema) -> Schema:
        """The schema of the features that come out, in the order of their keys.

        `schema.replace([feature])` sets another num_ids, `schema.add([feature])` adds a feature,
        whose name must be free; features that are not returned are dropped. If features are
        deduplicated, those from which a new one is made must be in one feature group, and the new
        one joins it.
        """


class DensePreprocess(Protocol):
    """A transform of dense columns, sample by sample, instead of a `Preprocess`.

    An attribute `dense = True` says so: `features:` then names dense columns.
    """

    def __call__(
        self, columns: Tensor, schema: Schema
    ) -> Tensor | KeyedJaggedTensor | tuple[Tensor, KeyedJaggedTensor]:
        """[B, W] float32, the dense columns of this schema side by side, become dense columns
        [B, V] float32, features of B rows, or a pair of both: what `schema` says."""

    def schema(self, schema: Schema) -> Schema:
        """The dense columns and the features that come out, by a schema of the columns alone.

        Columns that it does not return are dropped, new ones come after all others, and new
        features after the sparse ones; their names must be free.
        """


class Planner(Protocol):
    """Decides where rows go, and brings the sharders that carry it out."""

    def plan(self, model: nn.Module, topology: Topology, group: ProcessGroup) -> ShardingPlan:
        """A place for every table of the model, whose tables are on the meta device.

        Every rank of `group` calls it once before training, and must return the same plan.
        """

    def sharders(self) -> list[ModuleSharder[nn.Module]]:
        """The trainer's own, `context.sharders()`, wrapped where the plan changes their modules.

        Each rank asks for them after `plan`. A sharder that is not one of the trainer's must have
        the trainer's `fused_params`, which say how tables are trained.
        """

    def explain(self) -> str:
        """Why the last plan is what it is, in words; asked on rank 0."""


class Pooling(Protocol):
    """Sequences to vectors; an `nn.Module`, which each rank's model calls in its forward."""

    def __call__(self, values: Tensor, lengths: Tensor, query: Tensor | None = None) -> Tensor:
        """[N, D] values in B rows of `lengths` [B], and a query [B, D], become [B, D].

        A row of length 0 yields zeros. `query` is the sample's item, which target attention
        needs. A module that requires it says so by an attribute `needs_query = True`: a model
        then provides one, or fails to build. `needs_query = False` says that the query is
        ignored: rows that samples share are then pooled once, whatever the query. With a query
        for each sample, a method `pool_unique` pools them once, if the module has one
        (`recd_plugins.api.embedding.PoolsUnique`). A module whose rows depend on one another, as by
        a mean over the batch, or that draws at random, as dropout does, gets all samples while it
        trains; with `draws_once = True`, samples that share rows share what it draws. `lengths`
        must stay as they are. For scored ids a model passes values times weights, only to a module
        that says `takes_weights = True`. A model writes the features that it pools with a module
        into its `of_features`, for messages.
        """


PoolingFactory = Callable[[int], "nn.Module"]
"""Embedding dimension D to a `Pooling` module."""

OptimizerFactory = Callable[["list[nn.Parameter]"], "Optimizer"]
"""The dense parameters to the torch optimizer that steps them once a step."""


EVENTS = ("at_", "before_", "after_", "on_")
"""The prefixes of the methods of a callback that a run calls."""

EACH_STEP = ("at_start", "on_batch", "before_step", "before_update", "after_step")
"""The methods of a callback that a run has called once it has trained a step."""

_CALLED: WeakSet[type] = WeakSet()
"""The classes of callbacks of which one of these methods was called."""


class Callback:
    """The methods that a run calls; inherit from it and write those that you need.

    Every rank calls each method at the same step and in the same order, so that a method may use
    collectives. Callbacks are called in the order of registry.yaml, `after_step` in the reverse
    one. What a callback keeps from step to step must be in its `state_dict`, or a resumed run
    differs.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        """Have the methods of each step note that they are called, for `uncalled`."""
        super().__init_subclass__(**options)
        for name in EACH_STEP:
            method = getattr_static(cls, name)
            inherited = method is vars(Callback)[name] or _notes(method)
            if isfunction(method) and not inherited and not _runs_nothing(method):
                setattr(cls, name, _noting(method))

    def at_start(self, training: Training) -> None:
        """The model is sharded, and no step is trained; a resumed run loads the state next."""

    def on_batch(self, training: Training, batch: Batch, split: Split) -> Batch:
        """The batch to train or evaluate instead of the one that was read.

        The pipeline reads up to three steps ahead, so the result may depend only on the batch. Its
        features must stay those of the schema; planners count batches before this call.
        """
        return batch

    def before_step(self, training: Training) -> None:
        """Between two steps: learning rates may be set, replicas may move."""

    def before_update(self, training: Training) -> None:
        """After backward: dense gradients are summed over the ranks, and not applied yet.

        Those of the tables are applied: their fused optimizers update rows within backward.
        """

    def after_step(self, training: Training) -> None:
        """The step is trained; `training.outputs` and `training.batch` are its own."""

    def on_metrics(self, training: Training, metrics: dict[str, float]) -> None:
        """Every `train.log_every` steps: all ranks' metrics, to which more may be added."""

    def after_evaluation_step(self, training: Training) -> None:
        """A batch of the test split is evaluated; `training.outputs` are its own."""

    def on_evaluation(self, training: Training, metrics: dict[str, float]) -> None:
        """All ranks' metrics on the test split, to which more may be added."""

    def on_checkpoint(self, training: Training) -> None:
        """A checkpoint is about to be written, with this callback's state."""

    def at_end(self, training: Training, summary: dict[str, Any]) -> None:
        """The last step is trained and evaluated; the run's summary, to which more may be added."""

    def close(self) -> None:
        """The run is over, perhaps because of an error: release what you hold. No collectives
        here."""

    def state_dict(self) -> dict[str, Any]:
        """This rank's state, as values that JSON takes; numbers come back exactly, also as
        keys."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from the state that a checkpoint of this rank has."""


def uncalled(callback: object) -> tuple[str, ...]:
    """The methods of each step that a callback has, where nobody has called any of them; empty
    where somebody has, or where that is not known."""
    kind = type(callback)
    if not isinstance(callback, Callback) or kind in _CALLED:
        return ()
    own = [name for name in EACH_STEP if getattr_static(callback, name) is not vars(Callback)[name]]
    return tuple(own) if all(_notes(getattr_static(callback, name)) for name in own) else ()


def _noting(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method, which notes the class of the callback that it is called on."""

    @wraps(method)
    def call(self: Callback, *args: Any, **kwargs: Any) -> Any:
        _CALLED.add(type(self))
        return method(self, *args, **kwargs)

    vars(call)[NOTES] = True
    return call


NOTES = "recd_notes_calls"
"""The attribute of a method that notes its calls."""


def _notes(method: object) -> bool:
    return bool(getattr(method, NOTES, False))


def check_callback(callback: Any, where: str) -> None:
    """`PluginError` unless it is a `Callback` whose methods a run would call."""
    kind = type(callback).__name__
    if not isinstance(callback, Callback):
        raise PluginError(
            f"{where}: {kind} is no Callback. Inherit from recd_plugins.api.Callback."
        )
    known = [name for name in vars(Callback) if name.startswith(EVENTS)]
    for name in dir(callback):
        if name.startswith(EVENTS) and name not in known:
            raise PluginError(f"{where}: nothing calls {kind}.{name}; {nearest(name, known)}")
        if name.startswith(EVENTS) and _runs_nothing(getattr(callback, name)):
            raise PluginError(
                f"{where}: {kind}.{name} is a generator or a coroutine, whose code a call does not "
                "run. Write it without `yield` and `async`."
            )


def _runs_nothing(function: Any) -> bool:
    """Whether a call only makes a generator or a coroutine, and runs nothing yet."""
    kinds = (isgeneratorfunction, iscoroutinefunction, isasyncgenfunction)
    return any(kind(function) for kind in kinds)

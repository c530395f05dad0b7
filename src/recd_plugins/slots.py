"""The slots: what a plugin can provide, one record type each.

A hook yields records. A record has a `name` (what registry.yaml calls it), a `summary`,
a `config` (a frozen `Config` dataclass) and `build(config, context)`; `needs` lists
capabilities ("cuda", or "import:ray"), `uses` the neighbour slots that it reads from
its context. A slot that registry.yaml fills and nobody uses is an error, never silence.
A protocol says what each record builds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Generic,
    Literal,
    Protocol,
    TypeVar,
    runtime_checkable,
)

from recd_plugins.config import Config
from recd_plugins.data.dataset import Dataset, Split, Tables
from recd_plugins.data.messages import Cuts, LogRoute, Placed
from recd_plugins.data.schema import Schema
from recd_plugins.data.stats_report import StatsReport
from recd_plugins.data.table import Progress, Table
from recd_plugins.errors import CapabilityError, PluginError, RegistryError, nearest
from recd_plugins.planning.planner_bases import HoldsRowWise, Tiered
from recd_plugins.planning.sharders import default_sharders, fused_by_table

if TYPE_CHECKING:
    import pyarrow as pa
    from torch import Tensor, nn
    from torch.distributed import ProcessGroup
    from torch.optim import Optimizer
    from torchrec.distributed.planner.types import ParameterConstraints
    from torchrec.distributed.types import ModuleSharder, ShardingPlan
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

    from recd_plugins.data.batch import Batch
    from recd_plugins.data.columns import Columns
    from recd_plugins.planning.access.access_profile import Profile
    from recd_plugins.planning.topology import Cluster, Topology
    from recd_plugins.registry.delivered import Delivered
    from recd_plugins.registry.delivery import Delivery
    from recd_plugins.sparse.groups import Groups
    from recd_plugins.sparse.own_batches import FeaturesOf
    from recd_plugins.trainer.training import Training

__all__ = [
    "SLOTS",
    "CacheRecord",
    "Callback",
    "CallbackRecord",
    "Context",
    "DatasetRecord",
    "DedupConverter",
    "DedupRecord",
    "DensePreprocess",
    "Etl",
    "EtlRecord",
    "Explains",
    "GrowingLog",
    "Loader",
    "LogRecord",
    "LogStore",
    "ModelRecord",
    "OptimizerFactory",
    "OptimizerRecord",
    "Planner",
    "Pooling",
    "PoolingFactory",
    "PoolingRecord",
    "Preprocess",
    "PreprocessRecord",
    "Reader",
    "ReaderRecord",
    "Record",
    "ShardingRecord",
    "StatsRecord",
    "TableStats",
    "stands_in_front",
]


class LogStore(Protocol):
    """Raw logs as log shards.

    A service that logs has one in each of its processes and appends; the process that prepares the
    dataset's tables has one and reads.
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
        """Flush, and let go of what writing needs."""

    def read(self, shard: int) -> Iterator[pa.RecordBatch]:
        """The messages of a shard so far: a writer's in its order, writers merged by time."""

    def fingerprint(self) -> str:
        """Changes with what can be read, so that a stale table is never reused."""


@runtime_checkable
class GrowingLog(LogStore, Protocol):
    """A `LogStore` that can be read while others write it, by places that stay.

    What it says of the past never changes: however often and whoever asks, the same messages lie
    between two places.
    """

    @property
    def name(self) -> str:
        """The name by which this log differs from others: its place, its topic."""

    def cuts(self, begins: Mapping[str, int], first: int, second: int) -> Cuts:
        """The places about two times, in ms; `begins` are such `before` an earlier time."""

    def between(self, shard: int, *places: Mapping[str, int]) -> Iterator[Placed]:
        """The messages of a shard from the first such places to the last, always in the same
        order; none are handed over together that a place in between parts."""


class Etl(Protocol):
    """A step from table to table.

    The first process that asks for the tables runs it, once for each split; all others wait, and
    later runs find its tables, named by its options.
    """

    def run(self, table: Table, folder: Path, progress: Progress) -> Table:
        """Write the result as a table into `folder` and open it."""


class TableStats(Protocol):
    """Measures a table, in the one process of `recd data stats`."""

    def measure(self, table: Table, progress: Progress) -> StatsReport:
        """Read the table, which may be far larger than memory, and leave it as it is."""


class Loader(Protocol):
    """The batches of one rank, which has a loader of its own for each split."""

    def __iter__(self) -> Iterator[Batch]:
        """Go on where the state says, to the epoch's end; iterated again, read the next epoch."""

    def __len__(self) -> int:
        """Batches in an epoch: equal on all ranks."""

    def state_dict(self) -> dict[str, Any]:
        """The position after the batch that was yielded last, as JSON takes it.

        Each rank asks after every batch; a checkpoint keeps the states of all ranks.
        """

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there. Each rank is given a state of its own before it iterates."""

    def close(self) -> None:
        """No batch is asked for any more, after an error too: end workers, close files."""


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
        """Rank `rank` of `world_size`; `test` is read in order and whole, never shuffled.

        `transform` holds what `dedup` and `preprocess` do to a batch; the loader applies it.
        """


@runtime_checkable
class Explains(Protocol):
    """Says why it is as it is; a `Planner` must, a `DedupConverter` may."""

    def explain(self) -> str:
        """Why, in words: `recd train`, `recd plan` and `recd explain` print it on rank 0."""


class DedupConverter(Protocol):
    """Takes groups of features out of batches, for `batch.dedup`; may say why (`Explains`).

    Every rank builds one, alike, and its loader converts each batch before it is preprocessed. An
    attribute `asks`, of "session_id" and "timestamp", brings these along with the features. An
    attribute `unique_shares`, where there is one, says for each group which share of a batch's
    samples is unique; an adapted model sizes its tables' parts by it.
    """

    @property
    def groups(self) -> Groups:
        """The features that it takes, and which together; none: batches stay as they are."""

    def convert(self, features: Columns) -> Any:
        """Make `batch.dedup`: the B samples of these features, all that it takes."""


class Preprocess(Protocol):
    """A transform of jagged features, row by row.

    Every rank builds one, alike, and its loader applies it to each batch, after `dedup`: a feature
    that is deduplicated is transformed once for each unique sample. Where features keep their
    names, each is transformed by itself: those that nobody needs may be left out. An attribute
    `takes` names the features where options of its own do so, in the place of `features:`.
    """

    def __call__(self, features: KeyedJaggedTensor) -> KeyedJaggedTensor:
        """The features that registry.yaml names, row for row: other ids, or other features."""

    def schema(self, schema: Schema) -> Schema:
        """The schema of the features that come out, in the order of their keys.

        `schema.replace([feature])` says another num_ids, `schema.add([feature])` a new feature,
        whose name must be free; those that are not returned are gone. Where features are
        deduplicated, those that become new ones together must be in one feature group, and the new
        ones join it.
        """


class DensePreprocess(Protocol):
    """A transform of dense columns, sample by sample, in the place of a `Preprocess`.

    An attribute `dense = True` says so: `features:` then names dense columns.
    """

    def __call__(
        self, columns: Tensor, schema: Schema
    ) -> Tensor | KeyedJaggedTensor | tuple[Tensor, KeyedJaggedTensor]:
        """[B, W] float32, the dense columns of this schema side by side, become dense columns
        [B, V] float32, features of B rows, or a pair of both: what `schema` says."""

    def schema(self, schema: Schema) -> Schema:
        """The dense columns and the features that come out, by a schema of the columns alone.

        Columns that it does not return are gone, new ones come behind all, and features behind the
        sparse ones; their names must be free.
        """


class Planner(Protocol):
    """Decides where rows go, and brings the sharders that carry it out."""

    def plan(self, model: nn.Module, topology: Topology, group: ProcessGroup) -> ShardingPlan:
        """A place for every table of the model, whose tables are on the meta device.

        Every rank of `group` calls it once before training, and must return the same plan.
        """

    def sharders(self) -> list[ModuleSharder[nn.Module]]:
        """The trainer's own, `context.sharders()`, those wrapped whose modules the plan changes.

        Each rank asks after `plan`. A sharder that is none of the trainer's must have its
        `fused_params`: these say how tables are trained.
        """

    def explain(self) -> str:
        """Why the last plan is what it is, in words; asked on rank 0."""


class Pooling(Protocol):
    """Sequences to vectors; an `nn.Module`, which each rank's model calls in its forward."""

    def __call__(self, values: Tensor, lengths: Tensor, query: Tensor | None = None) -> Tensor:
        """[N, D] values in B rows of `lengths` [B], and a query [B, D], become [B, D].

        A row of length 0 yields zeros. `query` is the sample's item, which target attention
        needs. A module that cannot do without says so by an attribute `needs_query = True`:
        a model then has one for it, or fails to build. `needs_query = False` says that the
        query is ignored: rows that samples share are then pooled once, whatever they ask. So
        they are, with a query for each sample, by a method `pool_unique`, if the module has
        one (`recd_plugins.api.embedding.PoolsUnique`). Of scored ids a model hands over values
        times weights, to a module alone that says `takes_weights = True`.
        """


PoolingFactory = Callable[[int], "nn.Module"]
"""Embedding dimension D to a `Pooling` module."""

OptimizerFactory = Callable[["list[nn.Parameter]"], "Optimizer"]
"""The dense parameters to the torch optimizer that steps them once a step."""


EVENTS = ("at_", "before_", "after_", "on_")
"""How the names of a callback's methods begin that a run calls."""


class Callback:
    """The methods that a run calls as it goes; inherit from it and write those that you need.

    Every rank calls each method at the same step and in the same order, so that a method may use
    collectives. Callbacks are called in the order of registry.yaml, `after_step` in the reverse
    one. What one keeps from step to step is in its `state_dict`, or a resumed run differs.
    """

    def at_start(self, training: Training) -> None:
        """The model is sharded, and no step is trained; a resumed run loads the state next."""

    def on_batch(self, training: Training, batch: Batch, split: Split) -> Batch:
        """The batch to train or evaluate in place of the one that was read.

        The pipeline reads up to three steps ahead, so it depends on the batch alone. Its features
        stay those of the schema; what planners count of batches is counted before.
        """
        return batch

    def before_step(self, training: Training) -> None:
        """Between two steps: learning rates may be set, replicas may move."""

    def before_update(self, training: Training) -> None:
        """After backward: dense gradients are summed over the ranks, and not applied yet.

        The tables' are: their fused optimizers update rows within backward.
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
        """The run is over, by an error too: give back what you hold. No collectives here."""

    def state_dict(self) -> dict[str, Any]:
        """This rank's state, as JSON takes it; numbers come back to the bit."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from the state that a checkpoint of this rank has."""


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


C = TypeVar("C", bound=Config)
T = TypeVar("T", covariant=True)


@dataclass(frozen=True, kw_only=True)
class Context:
    """The context of a record's `build`: all that it may know."""

    device: Literal["cpu", "cuda"] = "cpu"
    """The device that training runs on."""
    seed: int = 0
    """`train.seed`; 0 for `dataset` and `etl`, whose tables runs of any seed share."""
    folder: Path = Path("data")
    """The folder of prepared tables, logs and caches of this registry."""
    batch_size: int = 512
    """Samples per rank and step."""
    fused: Mapping[str, Any] = field(default_factory=dict)
    """The optimizer of registry.yaml's tables (`train.optimizer`), as TorchRec's `fused_params`.
    A trainer of one's own may have another one: ask `sharders` and `fused_by_table`."""
    own_sharders: Callable[[], Sequence[ModuleSharder[nn.Module]]] | None = None
    """The sharders that a trainer gave to `stack.plan`; there for `sharding` and `cache`."""
    schema: Schema | None = None
    """The batches' schema; there from the `model` slot on. For `dedup`, which comes before
    `preprocess`, that of the tables."""
    tables: Tables | None = None
    """The prepared tables, as `preprocess` finds them; there for `dedup`."""
    left_out: tuple[str, ...] = ()
    """The tables' features that are not read, since the model needs none of them; there for
    `dedup`, whose options may name them."""
    looked_at: tuple[KeyedJaggedTensor, ...] = ()
    """The features of some of the trainer's own batches, alike on all ranks; there for `dedup`,
    where the trainer handed batches over."""
    delivered: Delivered | None = None
    """Batches of the train split as the reader hands them to `dedup`, from all over the epoch;
    there for `dedup`, where registry.yaml says what is read."""
    model: Callable[[], nn.Module | None] | None = None
    """The model before it takes unique samples, its tables on the meta device: the trainer's own,
    or the registry's; none where nobody knows. There for `dedup`."""
    preprocessed: Callable[[KeyedJaggedTensor], KeyedJaggedTensor] | None = None
    """The features that `preprocess` makes of a batch's; there for `dedup`."""
    cluster: Cluster | None = None
    """Ranks and links, as prices count with them; there for `dedup`."""
    batches: Callable[[], Iterable[Any]] | None = None
    """This rank's batches, as its model gets them: the train split's, or a trainer's
    own of any type; there for `sharding` and `cache`, once a plan is asked for."""
    features: FeaturesOf | None = None
    """The function from a batch to its sparse features, if the trainer says: `profile_batches`
    takes it."""
    profile: Profile | None = None
    """The tables' access distributions, in place of batches, if the trainer knows them."""
    constraints: Mapping[str, ParameterConstraints] = field(default_factory=dict)
    """TorchRec's constraints of tables by name, as a trainer gave them to `stack.plan`; there for
    `sharding` and `cache`."""
    delivery: Callable[[], Delivery] | None = None
    """The delivery that another process needs to make the same batches; there for `reader`, where
    its loader is handed the registry's own transform."""
    neighbours: Mapping[str, Any] = field(default_factory=dict)
    """The builds of the slots named in the record's `uses`."""
    others: Planner | None = None
    """The planner of the others: it plans what this record's planner leaves to it, where the
    record stands in front of one (`in_front`)."""
    where: str = ""
    """The path in registry.yaml of what is built, for messages; there for `sharding` and
    `cache`."""
    name: str = ""
    """The record's name, for the same messages."""

    def sharders(self) -> list[ModuleSharder[nn.Module]]:
        """The trainer's own sharders; TorchRec's default ones, with `fused`, where there are none.

        A trainer gives its own when it asks for a plan, so a planner asks here when it plans.
        """
        if self.own_sharders is not None:
            return list(self.own_sharders())
        return default_sharders(self.fused)

    def fused_by_table(self, model: nn.Module) -> dict[str, dict[str, Any]]:
        """The fused params of each of the model's tables, by `apply_optimizer_in_backward` and by
        the trainer's sharders."""
        return fused_by_table(model, self.sharders())

    def require_schema(self) -> Schema:
        """The schema; a `PluginError` where it is not known yet."""
        if self.schema is None:
            raise PluginError(
                "the schema is not known when this slot is built: it follows the dataset."
            )
        return self.schema

    def require_tables(self) -> Tables:
        """The tables; a `PluginError` where they are not known yet."""
        if self.tables is None:
            raise PluginError(
                "the prepared tables are not known when this slot is built: they follow the "
                "dataset, and are there for dedup alone."
            )
        return self.tables

    def require_others(self) -> HoldsRowWise:
        """The planner of the others; an error where no planner can stand in front of it."""
        others, where = self.others, self.where or "the planner"
        planner = f"{where}: {self.name}" if self.name else where
        if others is None:
            raise PluginError(
                f"{where}: there is no planner of the others to stand in front of. Declare its "
                "record with `in_front=True`, so that the host builds one."
            )
        behind = "`sharding: {use: torchrec}`"
        if self.where != "cache":
            behind = f"`{self.where or 'sharding'}.others` to torchrec"
        if isinstance(others, Tiered):
            raise RegistryError(
                f"{planner} gives rows replicas, and so does the sharding slot's planner "
                f"({type(others).__name__}) behind it, but a table has one tier plan. Set "
                f"{behind}, or take `{self.where or 'one of them'}` out."
            )
        if not isinstance(others, HoldsRowWise):
            raise CapabilityError(
                f"{planner} needs its tables row-wise, but the sharding slot's planner "
                f"({type(others).__name__}) behind it has no `may_be_row_wise` and `row_wise` of "
                "recd_plugins.api.planning.HoldsRowWise, by which it would be asked: it must "
                f"inherit from that. Set {behind}."
            )
        return others


@dataclass(frozen=True, kw_only=True)
class Record(Generic[C, T]):
    """One way to fill a slot.

    Whoever needs what it builds calls `build`: each rank for itself, in the same order on all.
    """

    slot: ClassVar[str]
    fills: ClassVar[Literal["one", "many", "by feature"]] = "one"
    """Its form in registry.yaml: one record, a list, or a mapping from feature to record."""

    name: str
    """Its name in registry.yaml: `use: name`."""
    summary: str
    """A sentence, which `recd plugins` shows."""
    config: type[C]
    """A frozen, keyword-only dataclass of its options, each with a text under it."""
    build: Callable[[C, Context], T]
    """Makes what the slot takes; never None."""
    needs: tuple[str, ...] = ()
    """The capabilities that the machine or the registry must have: "cuda", "import:ray",
    "command:java", "slot:pooling"; checked before anything is built."""
    uses: tuple[str, ...] = ()
    """Slots whose builds it finds in `context.neighbours`, by slot: what the slot's record built;
    a list, or a mapping from feature, where a slot takes several."""


class LogRecord(Record[C, LogStore]):
    """A log: where raw messages go, and how they are routed to log shards."""

    slot = "log"


@dataclass(frozen=True, kw_only=True)
class DatasetRecord(Record[C, Dataset]):
    """A source of rows under a schema, in a train and a test split."""

    slot = "dataset"
    grows: bool = False
    """Whether it builds a `GrowingDataset`, whose rows come in periods."""
    free: tuple[str, ...] = ()
    """Options that no row depends on, such as how long one waits for them: a resumed job may change
    them."""


class EtlRecord(Record[C, Etl]):
    """A step from table to table, run once, before training."""

    slot = "etl"
    fills = "many"


class StatsRecord(Record[C, TableStats]):
    """A measure of tables: `recd data stats` asks those chosen, or else all there are."""

    slot = "stats"
    fills = "many"


class ReaderRecord(Record[C, Reader]):
    """A reader: it makes the batches of a rank from a table."""

    slot = "reader"


class DedupRecord(Record[C, DedupConverter]):
    """A converter: it makes unique samples and an inverse lookup of a batch's feature groups."""

    slot = "dedup"


class PreprocessRecord(Record[C, "Preprocess | DensePreprocess"]):
    """A transform of features, row by row, or of dense columns, on the reader's side.

    `features:` beside `use:` says which it is for: a name, a glob or a list of them; by default
    all. Transforms run in the order of the list.
    """

    slot = "preprocess"
    fills = "many"


@dataclass(frozen=True, kw_only=True)
class ShardingRecord(Record[C, Planner]):
    """A planner and its sharders: they decide where embedding rows go.

    A planner may stand in front of another one, which plans what the first leaves to it:
    registry.yaml names that as `others`, a record of this slot with its options.
    """

    slot = "sharding"
    in_front: bool = False
    """Whether its planner stands in front of another, which is `context.others`."""
    tiers: bool = False
    """Whether its planner is a `TierPlanner`, whose tier plan a cache may take as its own."""


class CacheRecord(Record[C, Planner]):
    """A cache: it decides which rows are kept close, and what that does to ids and batches.

    A planner in front of the sharding slot's, in whose place it is asked; or of the one that
    registry.yaml names as `others`, a record of the sharding slot with its options.
    """

    slot = "cache"
    in_front: ClassVar[bool] = True
    """Its planner always stands in front of another, which is `context.others`."""


class PoolingRecord(Record[C, PoolingFactory]):
    """A pooling: it makes one vector of a feature's sequence of embeddings; a model uses it."""

    slot = "pooling"
    fills = "by feature"


@dataclass(frozen=True, kw_only=True)
class ModelRecord(Record[C, "nn.Module"]):
    """The model: `forward(batch) -> (loss, (loss, logits, labels, weights))`, the latter detached.

    Logits have the shape of the batch's labels: [B], or [B, T] where the schema has T labels; those
    of a regression are the values themselves. Tables are made on the meta device and sized by the
    context's schema.
    """

    slot = "model"
    takes: Callable[[C, Schema], Collection[str]] | None = None
    """The features and dense columns that its model takes of those that batches have: what neither
    the model nor a transform of these needs is not read, and is in no batch. Without it nobody
    knows, and all are read."""


class OptimizerRecord(Record[C, OptimizerFactory]):
    """The optimizer that steps the dense parameters, in place of `train.optimizer.dense`.

    Its learning rate is an option of its own. Tables keep their fused optimizer.
    """

    slot = "optimizer"


class CallbackRecord(Record[C, Callback]):
    """A callback: it acts beside training, before and after steps, on metrics, on checkpoints."""

    slot = "callbacks"
    fills = "many"


OTHERS_DOC = (
    "the planner of the others, which plans what this one leaves to it, a record of the sharding "
    "slot: `others: {use: name, option: value}`. Without it, a sharding has TorchRec's planner "
    "behind it, and a cache that of the slot sharding."
)
"""What registry.yaml may say of every record that stands in front of a planner."""


def stands_in_front(record: Record[Any, Any]) -> bool:
    """Whether the record's planner stands in front of another, which registry.yaml names."""
    return isinstance(record, ShardingRecord | CacheRecord) and record.in_front


SLOTS: dict[str, type[Record[Any, Any]]] = {
    record.slot: record
    for record in (
        LogRecord,
        DatasetRecord,
        EtlRecord,
        StatsRecord,
        ReaderRecord,
        DedupRecord,
        PreprocessRecord,
        ShardingRecord,
        CacheRecord,
        PoolingRecord,
        ModelRecord,
        OptimizerRecord,
        CallbackRecord,
    )
}
"""Slot name to record type, in the order of the data's way."""

HOST_USES: tuple[str, ...] = (
    "dataset",
    "etl",
    "stats",
    "reader",
    "dedup",
    "preprocess",
    "sharding",
    "cache",
    "model",
    "optimizer",
    "callbacks",
)
"""Slots that the host itself reads; the others must be in some chosen record's `uses`."""

"""The records that hooks yield, one type for each slot: what a plugin can provide.

A record has a `name` (what registry.yaml calls it), a `summary`, a `config` (a frozen `Config`
dataclass) and `build(config, context)`; `needs` lists capabilities ("cuda", or "import:ray"),
`uses` the neighbour slots that it reads from its context. A slot that registry.yaml fills and
nobody uses is an error, never silence.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

from recd_plugins.config import Config
from recd_plugins.data.dataset import Dataset
from recd_plugins.data.schema import Schema
from recd_plugins.slots.builds import (
    Callback,
    DedupConverter,
    DensePreprocess,
    Etl,
    LogStore,
    OptimizerFactory,
    Planner,
    PoolingFactory,
    Preprocess,
    Reader,
    TableStats,
)
from recd_plugins.slots.context import Context

if TYPE_CHECKING:
    from torch import nn  # noqa: F401  # the base of ModelRecord names it

__all__ = [
    "HOST_USES",
    "OTHERS_DOC",
    "SLOTS",
    "CacheRecord",
    "CallbackRecord",
    "DatasetRecord",
    "DedupRecord",
    "EtlRecord",
    "LogRecord",
    "ModelRecord",
    "OptimizerRecord",
    "PoolingRecord",
    "PreprocessRecord",
    "ReaderRecord",
    "Record",
    "ShardingRecord",
    "StatsRecord",
    "stands_in_front",
]

C = TypeVar("C", bound=Config)
T = TypeVar("T", covariant=True)


@dataclass(frozen=True, kw_only=True)
class Record(Generic[C, T]):
    """One way to fill a slot.

    Each rank that needs the result calls `build` itself, and all ranks do so in the same order.
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
    """Options that no row depends on, such as how long to wait for rows: a resumed job may change
    them."""
    places: tuple[str, ...] = ()
    """Options that say where files lie, as `train`, or `join.table` of each that `join` lists: a
    resumed job may change them if `pins.json` of the run shows that the files are the same."""


class EtlRecord(Record[C, Etl]):
    """A step from table to table, run once, before training."""

    slot = "etl"
    fills = "many"


class StatsRecord(Record[C, TableStats]):
    """A measure of tables: `recd data stats` uses the chosen ones, or else all that exist.

    No other command reads the slot, and no trainer does.
    """

    slot = "stats"
    fills = "many"


class ReaderRecord(Record[C, Reader]):
    """A reader: it makes the batches of a rank from a table.

    If its config has an attribute `forks` that is true, a rank of `recd train` copies itself for
    `fork_server` of recd_plugins.api.reading, so workers start with everything imported that the
    rank has imported. Its `consumers`, if there are any, are the processes of a rank among which
    streams are divided.
    """

    slot = "reader"


class DedupRecord(Record[C, DedupConverter]):
    """A converter: it makes unique samples and an inverse lookup of a batch's feature groups."""

    slot = "dedup"


class PreprocessRecord(Record[C, Preprocess | DensePreprocess]):
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

    It is a planner in front of the sharding slot's, and is asked in its place; or in front of the
    one that registry.yaml names as `others`, a record of the sharding slot with its options.
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
    the model nor a transform of these needs is not read, and is in no batch. Without it that is not
    known, and all are read."""


class OptimizerRecord(Record[C, OptimizerFactory]):
    """The optimizer that steps the dense parameters, instead of `train.optimizer.dense`.

    Its learning rate is an option of its own. Tables keep their fused optimizer.
    """

    slot = "optimizer"


class CallbackRecord(Record[C, Callback]):
    """A callback: it acts beside training, before and after steps, on metrics, on checkpoints."""

    slot = "callbacks"
    fills = "many"


OTHERS_DOC = (
    "the planner behind, which plans what this one leaves to it, a record of the sharding slot: "
    "`others: {use: name, option: value}`. Without it, a sharding has TorchRec's planner behind "
    "it, and a cache that of the slot sharding."
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

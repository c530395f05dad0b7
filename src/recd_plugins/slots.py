"""The slots: what a plugin can provide, one record type each.

A hook yields records. A record has a `name` (what registry.yaml calls it), a `summary`,
a `config` (a frozen `Config` dataclass) and `build(config, context)`; `needs` lists
capabilities ("cuda", or "import:ray"), `uses` the neighbour slots that it reads from
its context. A slot that registry.yaml fills and nobody uses is an error, never silence.
What records build is in `protocols`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

from recd_plugins.config import Config
from recd_plugins.data.dataset import Dataset, Tables
from recd_plugins.data.schema import Schema
from recd_plugins.errors import PluginError
from recd_plugins.protocols import (
    DedupConverter,
    Etl,
    Explains,
    Loader,
    LogStore,
    Planner,
    Pooling,
    PoolingFactory,
    Preprocess,
    Reader,
    TableStats,
)

if TYPE_CHECKING:
    from torch import nn  # noqa: F401  (in a string, below)

    from recd_plugins.data.batch import Batch

__all__ = [
    "SLOTS",
    "CacheRecord",
    "Context",
    "DatasetRecord",
    "DedupConverter",
    "DedupRecord",
    "Etl",
    "EtlRecord",
    "Explains",
    "Loader",
    "LogRecord",
    "LogStore",
    "ModelRecord",
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
]

C = TypeVar("C", bound=Config)
T = TypeVar("T", covariant=True)


@dataclass(frozen=True, kw_only=True)
class Context:
    """What a record's `build` may know."""

    device: Literal["cpu", "cuda"] = "cpu"
    seed: int = 0
    """`train.seed`; 0 for `dataset` and `etl`, whose tables runs of any seed share."""
    folder: Path = Path("data")
    """Where prepared tables, logs and caches of this registry live."""
    batch_size: int = 512
    """Samples per rank and step."""
    fused: Mapping[str, Any] = field(default_factory=dict)
    """The tables' fused optimizer, as TorchRec's `fused_params`."""
    schema: Schema | None = None
    """The batches' schema; there for `dedup`, and from the `model` slot on."""
    tables: Tables | None = None
    """The prepared tables, as `preprocess` finds them; there for `dedup`."""
    batches: Callable[[], Iterable[Batch]] | None = None
    """The train split's batches as rank 0's model gets them; there for `sharding` and `cache`."""
    neighbours: Mapping[str, Any] = field(default_factory=dict)
    """What the slots named in the record's `uses` built."""

    def require_schema(self) -> Schema:
        if self.schema is None:
            raise PluginError(
                "the schema is not known when this slot is built: it follows the dataset."
            )
        return self.schema

    def require_tables(self) -> Tables:
        if self.tables is None:
            raise PluginError(
                "the prepared tables are not known when this slot is built: they follow the "
                "dataset, and are there for dedup alone."
            )
        return self.tables


@dataclass(frozen=True, kw_only=True)
class Record(Generic[C, T]):
    """One way to fill a slot."""

    slot: ClassVar[str]
    fills: ClassVar[Literal["one", "many", "by feature"]] = "one"
    """How registry.yaml names it: one record, a list, or a mapping from feature to record."""

    name: str
    summary: str
    config: type[C]
    build: Callable[[C, Context], T]
    needs: tuple[str, ...] = ()
    uses: tuple[str, ...] = ()


class LogRecord(Record[C, LogStore]):
    """Where raw logs go and how they are routed to log shards."""

    slot = "log"


class DatasetRecord(Record[C, Dataset]):
    """A source of rows under a schema, in a train and a test split."""

    slot = "dataset"


class EtlRecord(Record[C, Etl]):
    """A step from table to table, run once, before training."""

    slot = "etl"
    fills = "many"


class StatsRecord(Record[C, TableStats]):
    """What a table tells of itself: `recd data stats` asks those chosen, or else all there are."""

    slot = "stats"
    fills = "many"


class ReaderRecord(Record[C, Reader]):
    """How the batches of a rank are read from a table."""

    slot = "reader"


class DedupRecord(Record[C, DedupConverter]):
    """How feature groups of a batch become unique samples and an inverse lookup."""

    slot = "dedup"


class PreprocessRecord(Record[C, Preprocess]):
    """A transform of features, row by row, on the reader's side."""

    slot = "preprocess"
    fills = "many"


class ShardingRecord(Record[C, Planner]):
    """Where embedding rows go: a planner and its sharders."""

    slot = "sharding"


class CacheRecord(Record[C, Planner]):
    """Which rows are kept close, and what that does to ids and batches.

    A planner in front of the sharding slot's, its neighbour, and in whose place it is asked.
    """

    slot = "cache"


class PoolingRecord(Record[C, PoolingFactory]):
    """How a feature's sequence of embeddings becomes one vector; a model uses it."""

    slot = "pooling"
    fills = "by feature"


class ModelRecord(Record[C, "nn.Module"]):
    """The model: `forward(batch) -> (loss, (loss, logits, labels, weights))`, the latter detached.

    Tables are made on the meta device and sized by the context's schema.
    """

    slot = "model"


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
)
"""Slots that the host itself reads; the others must be in some chosen record's `uses`."""

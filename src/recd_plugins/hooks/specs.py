"""The hooks, one per slot, grouped by when their records come into play; and one for advice.

A hook takes no arguments and returns the records that its plugin provides:

    @hookimpl
    def recd_pooling():
        return [PoolingRecord(name="last", summary="The last id.", config=Last, build=last)]
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from recd_plugins.additions import Addition
from recd_plugins.hooks.markers import hookspec
from recd_plugins.slots import (
    SLOTS,
    CacheRecord,
    CallbackRecord,
    DatasetRecord,
    DedupRecord,
    EtlRecord,
    LogRecord,
    ModelRecord,
    OptimizerRecord,
    PoolingRecord,
    PreprocessRecord,
    ReaderRecord,
    ShardingRecord,
    StatsRecord,
)

__all__ = [
    "ADDITIONS",
    "HOOKS",
    "AdviceSpecs",
    "BatchSpecs",
    "ModelSpecs",
    "PlacementSpecs",
    "RunSpecs",
    "TableSpecs",
]


class TableSpecs:
    """The hooks of the way from logs to tables, before training."""

    @hookspec
    def recd_log(self) -> Iterable[LogRecord[Any]]:  # type: ignore[empty-body]
        """Stores for raw logs."""

    @hookspec
    def recd_dataset(self) -> Iterable[DatasetRecord[Any]]:  # type: ignore[empty-body]
        """Sources of rows."""

    @hookspec
    def recd_etl(self) -> Iterable[EtlRecord[Any]]:  # type: ignore[empty-body]
        """Steps from table to table."""

    @hookspec
    def recd_stats(self) -> Iterable[StatsRecord[Any]]:  # type: ignore[empty-body]
        """Measures of a table."""


class BatchSpecs:
    """The hooks of the way from a table to a rank's batches, while training."""

    @hookspec
    def recd_reader(self) -> Iterable[ReaderRecord[Any]]:  # type: ignore[empty-body]
        """Readers of a table."""

    @hookspec
    def recd_dedup(self) -> Iterable[DedupRecord[Any]]:  # type: ignore[empty-body]
        """Converters to unique samples."""

    @hookspec
    def recd_preprocess(self) -> Iterable[PreprocessRecord[Any]]:  # type: ignore[empty-body]
        """Transforms of features."""


class PlacementSpecs:
    """The hooks that decide where embedding rows live."""

    @hookspec
    def recd_sharding(self) -> Iterable[ShardingRecord[Any]]:  # type: ignore[empty-body]
        """Planners with their sharders."""

    @hookspec
    def recd_cache(self) -> Iterable[CacheRecord[Any]]:  # type: ignore[empty-body]
        """Caches of hot rows: planners in front of the sharding slot's."""


class ModelSpecs:
    """The hooks of the model that is trained."""

    @hookspec
    def recd_pooling(self) -> Iterable[PoolingRecord[Any]]:  # type: ignore[empty-body]
        """Poolings of sequences."""

    @hookspec
    def recd_model(self) -> Iterable[ModelRecord[Any]]:  # type: ignore[empty-body]
        """Models."""


class RunSpecs:
    """The hooks of a run, while a model is trained."""

    @hookspec
    def recd_optimizer(self) -> Iterable[OptimizerRecord[Any]]:  # type: ignore[empty-body]
        """Optimizers of the dense parameters."""

    @hookspec
    def recd_callbacks(self) -> Iterable[CallbackRecord[Any]]:  # type: ignore[empty-body]
        """Callbacks of a run."""


class AdviceSpecs:
    """The hook of what `recd advise` weighs, before there is a registry."""

    @hookspec
    def recd_additions(self) -> Iterable[Addition]:  # type: ignore[empty-body]
        """The additions that the plugin offers to a registry."""


HOOKS: dict[str, str] = {f"recd_{slot}": slot for slot in SLOTS}
"""Hook name to slot name."""

ADDITIONS = "recd_additions"
"""The hook that fills no slot."""

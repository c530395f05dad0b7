"""The host's own plugin: what a slot means when registry.yaml is silent. Always on."""

from __future__ import annotations

from typing import Any

from recd_plugins.callbacks.clipping import ClippingConfig, build_clipping
from recd_plugins.callbacks.early_stopping import EarlyStoppingConfig, build_early_stopping
from recd_plugins.callbacks.extra_metrics import ExtraMetricsConfig, build_extra_metrics
from recd_plugins.callbacks.mixed_precision import MixedPrecisionConfig, build_mixed_precision
from recd_plugins.callbacks.schedule import ScheduleConfig, build_schedule
from recd_plugins.data.parquet_tables import ParquetConfig, build_parquet
from recd_plugins.data.reader.local_reader import LocalReaderConfig, build_local_reader
from recd_plugins.hooks.markers import hookimpl
from recd_plugins.planning.torchrec_plan.torchrec_planner import (
    TorchRecPlannerConfig,
    build_torchrec_planner,
)
from recd_plugins.slots import CallbackRecord, DatasetRecord, ReaderRecord, ShardingRecord


@hookimpl
def recd_dataset() -> list[DatasetRecord[ParquetConfig]]:
    return [
        DatasetRecord(
            name="parquet",
            summary="Tables that are there already: folders of Parquet files.",
            config=ParquetConfig,
            build=build_parquet,
            places=(
                "train",
                "test",
                "join.table",
                "schema.sparse.vocabulary",
                "join.sparse.vocabulary",
            ),
        )
    ]


@hookimpl
def recd_reader() -> list[ReaderRecord[LocalReaderConfig]]:
    return [
        ReaderRecord(
            name="local",
            summary="Each rank reads its share of the row groups, in its own process.",
            config=LocalReaderConfig,
            build=build_local_reader,
        )
    ]


@hookimpl
def recd_sharding() -> list[ShardingRecord[TorchRecPlannerConfig]]:
    return [
        ShardingRecord(
            name="torchrec",
            summary="TorchRec's own planner: table-, row- and column-wise by its cost model.",
            config=TorchRecPlannerConfig,
            build=build_torchrec_planner,
        )
    ]


@hookimpl
def recd_callbacks() -> list[CallbackRecord[Any]]:
    return [
        CallbackRecord(
            name="schedule",
            summary="Learning rates by torch's schedulers, after a linear warm-up.",
            config=ScheduleConfig,
            build=build_schedule,
        ),
        CallbackRecord(
            name="clipping",
            summary="Dense gradients clipped by norm or value.",
            config=ClippingConfig,
            build=build_clipping,
        ),
        CallbackRecord(
            name="early_stopping",
            summary="The run ends when a metric no longer improves.",
            config=EarlyStoppingConfig,
            build=build_early_stopping,
        ),
        CallbackRecord(
            name="extra_metrics",
            summary="Metrics of torchrec.metrics beside loss, NE and AUC.",
            config=ExtraMetricsConfig,
            build=build_extra_metrics,
        ),
        CallbackRecord(
            name="mixed_precision",
            summary="The dense part of the model in bfloat16, by torch.autocast.",
            config=MixedPrecisionConfig,
            build=build_mixed_precision,
        ),
    ]

"""The host's own plugin: what a slot means when registry.yaml is silent. Always on."""

from __future__ import annotations

from recd_plugins.data.local_reader import LocalReaderConfig, build_local_reader
from recd_plugins.data.parquet import ParquetConfig, build_parquet
from recd_plugins.hooks.markers import hookimpl
from recd_plugins.planning.torchrec_planner import TorchRecPlannerConfig, build_torchrec_planner
from recd_plugins.slots import DatasetRecord, ReaderRecord, ShardingRecord


@hookimpl
def recd_dataset() -> list[DatasetRecord[ParquetConfig]]:
    return [
        DatasetRecord(
            name="parquet",
            summary="Tables that are there already: folders of Parquet files.",
            config=ParquetConfig,
            build=build_parquet,
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

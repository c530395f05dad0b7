"""RecD: session deduplication from logs to training.

`log/` shards raw logs by session (O1), `etl/` clusters tables by session (O2), `dedup/` finds the
unique samples of a batch (O3), and `stats/` measures how much a table repeats itself. Transforms of
any plugin run on unique samples (O4); the built-in ones are in recd_dsi, which comes with this
plugin.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from recd_dedup.additions import ADDITIONS
from recd_dedup.dedup.converters import (
    GroupsConfig,
    NoneConfig,
    build_exact,
    build_none,
    build_partial,
)
from recd_dedup.etl.cluster import ClusterConfig, build_cluster
from recd_dedup.etl.downsample import (
    DownsampleConfig,
    build_downsample_samples,
    build_downsample_sessions,
)
from recd_dedup.log.growing_log import GrowingLogConfig, build_growing_log
from recd_dedup.log.kafka import KafkaConfig, build_kafka
from recd_dedup.log.logged_dataset import LoggedConfig, build_logged
from recd_dedup.log.shards import ZstdShardsConfig, build_zstd_shards
from recd_dedup.stats.measure import SessionStatsConfig, build_session_stats
from recd_plugins.api import (
    Addition,
    DatasetRecord,
    DedupRecord,
    EtlRecord,
    LogRecord,
    StatsRecord,
    hookimpl,
)

brings = ("recd_dsi",)


@hookimpl
def recd_log() -> list[LogRecord[Any]]:
    return [
        LogRecord(
            name="zstd_shards",
            summary="Shard files in zstd blocks, routed by session or by message.",
            config=ZstdShardsConfig,
            build=build_zstd_shards,
        ),
        LogRecord(
            name="kafka",
            summary="A Kafka topic, keyed by session, in zstd.",
            config=KafkaConfig,
            build=build_kafka,
            needs=("import:confluent_kafka",),
        ),
    ]


@hookimpl
def recd_etl() -> list[EtlRecord[Any]]:
    return [
        EtlRecord(
            name="cluster_by_session",
            summary="A session's samples side by side, in time order; bounded memory.",
            config=ClusterConfig,
            build=build_cluster,
        ),
        EtlRecord(
            name="downsample_sessions",
            summary="Whole sessions, kept with a probability: S stays.",
            config=DownsampleConfig,
            build=build_downsample_sessions,
        ),
        EtlRecord(
            name="downsample_samples",
            summary="Samples, kept with a probability each: S falls.",
            config=DownsampleConfig,
            build=build_downsample_samples,
        ),
    ]


@hookimpl
def recd_dataset() -> list[DatasetRecord[Any]]:
    return [
        DatasetRecord(
            name="logged",
            summary="What the log slot holds: requests and their events, joined.",
            config=LoggedConfig,
            build=build_logged,
            uses=("log",),
        ),
        DatasetRecord(
            name="growing_log",
            summary="What services still write to the log slot, joined period by period.",
            config=GrowingLogConfig,
            build=build_growing_log,
            uses=("log",),
            grows=True,
            free=("until", "ends_when_sealed", "patience", "keep"),
        ),
    ]


@hookimpl
def recd_dedup() -> list[DedupRecord[Any]]:
    return [
        DedupRecord(
            name="exact",
            summary="Equal samples of a group share their lists, as an IKJT.",
            config=GroupsConfig,
            build=build_exact,
        ),
        DedupRecord(
            name="partial",
            summary="Equal and shifted samples share their values, as a partial IKJT.",
            config=GroupsConfig,
            build=build_partial,
        ),
        DedupRecord(
            name="none",
            summary="Every feature stays a plain KJT.",
            config=NoneConfig,
            build=build_none,
        ),
    ]


@hookimpl
def recd_stats() -> list[StatsRecord[Any]]:
    return [
        StatsRecord(
            name="sessions",
            summary="Samples per session, duplicates, DedupeFactor (RecD, section 3).",
            config=SessionStatsConfig,
            build=build_session_stats,
        ),
    ]


@hookimpl
def recd_additions() -> Sequence[Addition]:
    return ADDITIONS

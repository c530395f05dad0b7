"""DLRM: its models, its poolings of sequences, and its data.

`models/` builds nets over TorchRec tables, `poolings/` turns a sequence into one vector, and
`datasets/` writes rows: random, synthetic traces, sessions, Criteo, MovieLens, yoochoose.
"""

from __future__ import annotations

from typing import Any

from recd_dlrm.datasets.criteo.dataset import CriteoConfig, build_criteo
from recd_dlrm.datasets.movielens import MovieLensConfig, build_movielens
from recd_dlrm.datasets.random import RandomConfig, build_random
from recd_dlrm.datasets.sessions.dataset import SessionsConfig, build_sessions
from recd_dlrm.datasets.trace.dataset import TraceConfig, build_trace
from recd_dlrm.datasets.yoochoose import YoochooseConfig, build_yoochoose
from recd_dlrm.models.dlrm import DlrmConfig, DlrmDcnConfig, build_dlrm, build_dlrm_dcn
from recd_dlrm.models.sequence_dlrm import SequenceDlrmConfig, build_sequence_dlrm
from recd_dlrm.poolings.attention import AttentionConfig, build_attention
from recd_dlrm.poolings.reduce import ReduceConfig, build_max, build_mean, build_sum
from recd_dlrm.poolings.transformer import TransformerConfig, build_transformer
from recd_plugins.api import DatasetRecord, ModelRecord, PoolingRecord, hookimpl


@hookimpl
def recd_dataset() -> list[DatasetRecord[Any]]:
    return [
        DatasetRecord(
            name="random",
            summary="Random dense values and ids, a coin's label.",
            config=RandomConfig,
            build=build_random,
        ),
        DatasetRecord(
            name="synthetic_trace",
            summary="Ids whose LRU stack distances follow those of a real trace.",
            config=TraceConfig,
            build=build_trace,
        ),
        DatasetRecord(
            name="sessions",
            summary="Generated sessions of users: interleaved, repetitive, learnable.",
            config=SessionsConfig,
            build=build_sessions,
        ),
        DatasetRecord(
            name="criteo",
            summary="Criteo Kaggle and Terabyte click logs, from their raw TSV.",
            config=CriteoConfig,
            build=build_criteo,
        ),
        DatasetRecord(
            name="movielens",
            summary="MovieLens ratings as sessions, with frozen or growing histories.",
            config=MovieLensConfig,
            build=build_movielens,
        ),
        DatasetRecord(
            name="yoochoose",
            summary="Yoochoose clicks: the next item against seeded negatives.",
            config=YoochooseConfig,
            build=build_yoochoose,
        ),
    ]


@hookimpl
def recd_pooling() -> list[PoolingRecord[Any]]:
    return [
        PoolingRecord(
            name="sum",
            summary="The sum of the sequence's embeddings.",
            config=ReduceConfig,
            build=build_sum,
        ),
        PoolingRecord(
            name="mean",
            summary="Their mean.",
            config=ReduceConfig,
            build=build_mean,
        ),
        PoolingRecord(
            name="max",
            summary="Their largest value in each dimension.",
            config=ReduceConfig,
            build=build_max,
        ),
        PoolingRecord(
            name="attention",
            summary="Target attention (DIN): weighted by how each fits the sample's item.",
            config=AttentionConfig,
            build=build_attention,
        ),
        PoolingRecord(
            name="transformer",
            summary="Self-attention over the sequence, then its mean.",
            config=TransformerConfig,
            build=build_transformer,
        ),
    ]


@hookimpl
def recd_model() -> list[ModelRecord[Any]]:
    return [
        ModelRecord(
            name="dlrm",
            summary="TorchRec's DLRM: pooled features, dot-product interaction.",
            config=DlrmConfig,
            build=build_dlrm,
            takes=DlrmConfig.takes,
        ),
        ModelRecord(
            name="dlrm_dcn",
            summary="TorchRec's DLRM_DCN: a low-rank cross network for interaction.",
            config=DlrmDcnConfig,
            build=build_dlrm_dcn,
            takes=DlrmDcnConfig.takes,
        ),
        ModelRecord(
            name="sequence_dlrm",
            summary="DLRM over unpooled sequences, each through a pooling of choice.",
            config=SequenceDlrmConfig,
            build=build_sequence_dlrm,
            takes=SequenceDlrmConfig.takes,
            uses=("pooling",),
        ),
    ]

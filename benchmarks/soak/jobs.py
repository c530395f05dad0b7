"""The jobs that are watched: each trains without an end, with checkpoints all along."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["JOBS"]

TRAIN = {
    "ranks": 2,
    "batch_size": 64,
    "steps": 100_000_000,
    "log_every": 10,
    "checkpoint_every": 25,
    "eval_every": 100,
    "device": "cpu",
}
PLAIN: Mapping[str, Any] = {
    "plugins": ["recd_dlrm", "recd_dedup", "recd_flexshard", "recd_scars"],
    "dataset": {"use": "sessions", "samples": 8_000, "test_fraction": 0.02},
    "model": {"use": "sequence_dlrm", "embedding_dim": 16, "bottom": [32], "top": [32]},
    "pooling": {"history": {"use": "attention", "hidden": [16]}},
    "sharding": {"use": "torchrec", "search": "greedy"},
    "train": TRAIN,
}
SLOW_LINKS = {"ranks_per_node": 1, "inter_node_gbps": 0.01}
"""Links on which replicas are worth their operations."""

JOBS: Mapping[str, Mapping[str, Any]] = {
    "plain": PLAIN,
    "RecD with workers": {
        **PLAIN,
        "etl": [{"use": "cluster_by_session"}],
        "dedup": {"use": "exact", "groups": "auto", "weigh": "bytes"},
        "reader": {"use": "local", "workers": 1},
    },
    "FlexShard with re-tiering": {
        **PLAIN,
        "sharding": {"use": "flexshard", "goal": "memory_neutral"},
        "topology": SLOW_LINKS,
        "train": {**TRAIN, "retier_every": 20},
    },
    "SCARS with hot batches": {
        **PLAIN,
        "cache": {"use": "scars", "size": "hit_rate", "hit_rate": 0.5, "hot_batches": True},
        "topology": SLOW_LINKS,
    },
}
"""By name."""

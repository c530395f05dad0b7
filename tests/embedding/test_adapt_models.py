"""Rung 3 (two gloo ranks): a registry's models, adapted, train as they do without dedup."""

from __future__ import annotations

import dataclasses
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from registry_jobs import train_registry
from torch import nn

from recd_dlrm.datasets.sessions.dataset import default_features
from recd_plugins.data.batch import Batch
from recd_plugins.registry.settings import OptimizerSettings
from recd_plugins.stack import load
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.testing.parity import assert_parity, reference_of

STEPS = 4
MODELS: dict[str, dict[str, Any]] = {
    "dlrm": {},
    "dlrm_dcn": {"cross_layers": 1, "low_rank": 4},
    "sequence_dlrm": {},
}
OPTIMIZER: dict[str, Any] = {"tables": "sgd", "tables_lr": 0.1, "dense": "sgd", "dense_lr": 0.1}
FEATURES = [
    dataclasses.asdict(dataclasses.replace(feature, num_ids=min(feature.num_ids, 1_000)))
    for feature in default_features()
]
"""With small tables: the reference trains them whole, in each step."""
POOLING = {"history": {"use": "attention"}, "history_category": {"use": "transformer"}}


def registry(folder: Path, model: str, **dedup: Any) -> dict[str, Any]:
    small = {"use": model, "embedding_dim": 8, "bottom": [16], "top": [16], **MODELS[model]}
    pooling = {"pooling": POOLING} if model == "sequence_dlrm" else {}
    return {
        "plugins": ["recd_dlrm", "recd_dedup"],
        "folder": str(folder),
        "dataset": {
            "use": "sessions",
            "samples": 1024,
            "concurrent_sessions": 8,
            "features": FEATURES,
        },
        "sharding": {"use": "torchrec", "search": "greedy"},
        "model": small,
        "train": {"batch_size": 32, "optimizer": OPTIMIZER},
        **pooling,
        **dedup,
    }


def model_of(values: dict[str, Any]) -> nn.Module:
    return load(values).model()


def batches_of(values: dict[str, Any]) -> list[list[Batch]]:
    loaders = [load(values).loader(rank, 2) for rank in range(2)]
    return [list(step) for step in islice(zip(*loaders, strict=True), STEPS)]


@pytest.mark.parametrize(
    ("model", "dedup"),
    [("dlrm", "exact"), ("dlrm_dcn", "exact"), ("sequence_dlrm", "exact"), ("dlrm", "partial")],
)
def test_a_model_trains_adapted_as_it_trains_without(
    gloo_pool: GlooPool, tmp_path_factory: pytest.TempPathFactory, model: str, dedup: str
) -> None:
    folder = tmp_path_factory.getbasetemp() / "tables"
    values = registry(folder, model)
    plain = gloo_pool.run(train_registry, values, STEPS)[0]
    by_bytes = {"use": dedup, "weigh": "bytes"}  # tables as small as these save no time
    adapted = gloo_pool.run(train_registry, registry(folder, model, dedup=by_bytes), STEPS)[0]
    optimizer = OptimizerSettings(**OPTIMIZER)
    bounds = reference_of(partial(model_of, values), batches_of(values), optimizer=optimizer).bounds
    assert_parity(adapted.trained, plain.trained, bounds)
    assert adapted.pipelined == adapted.sharded == plain.sharded
    assert adapted.names == plain.names
    assert "adapted to unique samples:" in adapted.explained
    assert "adapted" not in plain.explained

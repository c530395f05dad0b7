"""Rung 3 (two gloo ranks): a registry's models, adapted, train as they do without dedup."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from registry_jobs import train_registry

from recd_plugins.testing.gloo import GlooPool
from recd_plugins.testing.parity import assert_parity

STEPS = 4
MODELS: dict[str, dict[str, Any]] = {
    "dlrm": {},
    "dlrm_dcn": {"cross_layers": 1, "low_rank": 4},
    "sequence_dlrm": {},
}
POOLING = {"history": {"use": "attention"}, "history_category": {"use": "transformer"}}


def registry(folder: Path, model: str, **dedup: str) -> dict[str, Any]:
    small = {"use": model, "embedding_dim": 8, "bottom": [16], "top": [16], **MODELS[model]}
    optimizer = {"tables": "sgd", "tables_lr": 0.1, "dense": "sgd", "dense_lr": 0.1}
    pooling = {"pooling": POOLING} if model == "sequence_dlrm" else {}
    return {
        "plugins": ["recd_dlrm", "recd_dedup"],
        "folder": str(folder),
        "dataset": {"use": "sessions", "samples": 1024, "concurrent_sessions": 8},
        "sharding": {"use": "torchrec", "search": "greedy"},
        "model": small,
        "train": {"batch_size": 32, "optimizer": optimizer},
        **pooling,
        **dedup,
    }


@pytest.mark.parametrize(
    ("model", "dedup"),
    [("dlrm", "exact"), ("dlrm_dcn", "exact"), ("sequence_dlrm", "exact"), ("dlrm", "partial")],
)
def test_a_model_trains_adapted_as_it_trains_without(
    gloo_pool: GlooPool, tmp_path_factory: pytest.TempPathFactory, model: str, dedup: str
) -> None:
    folder = tmp_path_factory.getbasetemp() / "tables"
    plain = gloo_pool.run(train_registry, registry(folder, model), STEPS)[0]
    adapted = gloo_pool.run(train_registry, registry(folder, model, dedup=dedup), STEPS)[0]
    # Sums of the same numbers in another order.
    assert_parity(adapted.trained, plain.trained, atol=1e-6)
    assert adapted.pipelined == adapted.sharded == plain.sharded
    assert adapted.names == plain.names
    assert "adapted to unique samples:" in adapted.explained
    assert "adapted" not in plain.explained

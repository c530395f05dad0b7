"""Rung 3 (two gloo ranks): a registry's models, adapted, train as they do without dedup."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from registry_jobs import train_registry

from recd_plugins.testing.gloo import GlooPool
from recd_plugins.testing.parity import assert_parity

STEPS = 6
MODELS = {
    "dlrm": {},
    "dlrm_dcn": {"cross_layers": 1, "low_rank": 4},
    "sequence_dlrm": {},
}


def registry(folder: Path, model: str, dedup: Mapping[str, Any]) -> dict[str, Any]:
    small = {"use": model, "embedding_dim": 8, "bottom": [16], "top": [16], **MODELS[model]}
    optimizer = {"tables": "sgd", "tables_lr": 0.1, "dense": "sgd", "dense_lr": 0.1}
    return {
        "plugins": ["recd_dlrm", "recd_dedup"],
        "folder": str(folder),
        "dataset": {"use": "sessions", "samples": 1024, "concurrent_sessions": 8},
        "sharding": {"use": "torchrec", "search": "greedy"},
        "model": small,
        "train": {"batch_size": 32, "optimizer": optimizer},
        **dedup,
    }


@pytest.mark.parametrize("model", MODELS)
def test_a_model_trains_adapted_as_it_trains_without(
    gloo_pool: GlooPool, tmp_path_factory: pytest.TempPathFactory, model: str
) -> None:
    folder = tmp_path_factory.getbasetemp() / "tables"
    dedup = {"dedup": {"use": "exact"}}
    plain = gloo_pool.run(train_registry, registry(folder, model, {}), STEPS)[0]
    adapted = gloo_pool.run(train_registry, registry(folder, model, dedup), STEPS)[0]
    # Sums of the same numbers in another order.
    assert_parity(adapted.trained, plain.trained, atol=1e-6)
    assert adapted.pipelined == adapted.sharded == plain.sharded
    assert adapted.parameters == plain.parameters
    assert sorted(adapted.states) == sorted(plain.states)

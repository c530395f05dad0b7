"""Rung 3 (ranks): tables drawn as a stranger's lake might hold them train on two ranks: by
TorchRec's own plan, with all that can choose choosing, and by what `recd advise` writes.

`DRAWN=1000:1100 pytest tests/data/test_drawn_advice.py` draws others.
"""

from __future__ import annotations

import os
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml
from drawn_table import drawn
from typer.testing import CliRunner

from recd_plugins.cli.main import app
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.testing.training import train_quietly

FIRST, LAST = map(int, os.environ.get("DRAWN", "62:66").split(":"))
AUTO = {
    "dedup": {"use": "exact", "groups": "auto"},
    "sharding": {"use": "flexshard", "goal": "auto", "budget_gb": 0.01},
    "cache": {"use": "scars", "size": "plan"},
}
EMPTY = ("none of its", "holds no rows")
"""What is said of draws whose filters leave nothing to train on."""


@pytest.mark.parametrize("seed", range(FIRST, LAST))
def test_a_drawn_table_trains_by_itself_by_auto_and_as_advised(
    seed: int, tmp_path: Path, gloo_pool: GlooPool
) -> None:
    own = job(seed, tmp_path)
    file, advised = tmp_path / "own.yaml", tmp_path / "advised.yaml"
    file.write_text(yaml.safe_dump(own), encoding="utf-8")
    said = CliRunner().invoke(
        app, ["advise", "-r", str(file), "--out", str(advised), "--budget-gb", "0.01"]
    )
    if said.exit_code and any(one in said.output for one in EMPTY):
        pytest.skip("nothing is left of this table")
    assert not said.exit_code, said.output
    sides = {"own": own, "auto": own | AUTO, "advised": yaml.safe_load(advised.read_text("utf-8"))}
    for name, values in sides.items():
        values = {**values, "folder": str(tmp_path / f"runs of {name}")}
        summary, _ = gloo_pool.run(train_quietly, values, world_size=2)
        assert summary["step"] == 3, name
        assert summary["test"] is not None


def job(seed: int, folder: Path) -> dict[str, Any]:
    """The registry of a drawn table, with a model of few rows and a link."""
    random, registry = Random(f"advice {seed}"), drawn(seed, folder).registry
    for number, one in enumerate(registry["dataset"]["schema"].get("sparse", ())):
        if one.get("num_ids", 0) > 2_000_000:
            one |= {"ids": "hash", "num_ids": 1000}
        if "." in one["name"]:  # of which torch allows none
            one.setdefault("table", f"table_{number}")
    return {
        **registry,
        "plugins": ["recd_dlrm", "recd_dedup", "recd_dsi", "recd_flexshard", "recd_scars"],
        "reader": {**registry["reader"], "tail": "pad"},
        "model": {"use": "dlrm", "embedding_dim": 8, "bottom": [16, 8], "top": [8]},
        "topology": {
            "ranks_per_node": random.choice([1, 2]),
            "inter_node_gbps": random.choice([0.005, 1.0]),
            "intra_node_gbps": 1.0,
        },
        "train": {**registry["train"], "ranks": 2, "steps": 3, "threads": 1},
    }

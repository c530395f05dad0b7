"""Rung 1 and 4 (values, a run): how many workers a trainer needs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from service_jobs import GROUPS
from typer.testing import CliRunner

from recd_dsi.service.cli import serve
from recd_dsi.service.sizing import Sizing, Supply


def test_workers_are_the_demand_over_the_supply() -> None:
    supply = Supply(batches=50, seconds=10.0, processor_seconds=8.0, batch_bytes=1000)
    sizing = Sizing(
        ranks=4, batch_size=16, step_ms=(900.0, 400.0, 100.0), supply=supply, margin=1.5
    )
    assert (sizing.demand, supply.rate) == (10.0, 5.0)  # batches a second
    assert (sizing.workers, sizing.workers_of_a_rank) == (3, 1)
    assert (sizing.cores, sizing.bytes_per_second) == (1.6, 10_000.0)


@pytest.mark.ranks
@pytest.mark.slow
def test_the_command_measures_both_sides(tables: Path, tmp_path: Path) -> None:
    registry = {
        "plugins": ["recd_dlrm", "recd_dedup"],
        "folder": str(tmp_path),
        "dataset": {
            "use": "parquet",
            "train": str(tables / "train"),
            "test": str(tables / "test"),
        },
        "dedup": {"use": "exact", "groups": GROUPS},
        "model": {"use": "dlrm", "embedding_dim": 4, "bottom": [4], "top": [4]},
        "train": {"batch_size": 32, "ranks": 1, "device": "cpu"},
    }
    file = tmp_path / "registry.yaml"
    file.write_text(json.dumps(registry))
    short = ["--steps", "2", "--rounds", "2", "--batches", "60"]
    done = CliRunner().invoke(serve, ["--advise", "-r", str(file), *short, "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert (found["rounds"], found["steps"], found["device"]) == (2, 2, "cpu")
    sides = found["sides"]
    assert list(sides) == ["with dedup", "without dedup"]
    for side in sides.values():
        assert len(side["step_ms"]) == 2
        assert side["supply"]["batches"] >= 60  # of epochs of 46
        assert side["supply"]["processor_seconds"] > 0
        assert side["workers"] >= 1
    assert (
        sides["with dedup"]["supply"]["batch_bytes"]
        != (sides["without dedup"]["supply"]["batch_bytes"])
    )

    done = CliRunner().invoke(serve, ["advise", "-r", str(file), "reader=nobodys"])
    assert done.exit_code == 2
    assert "reader 'nobodys'" in done.output

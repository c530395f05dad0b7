"""Ladder: a forecast beside its fact as values, then of two gloo ranks that train."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from recd_plugins.stack import load
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.trainer.measure.beside import Beside, lines
from recd_plugins.trainer.measure.runs_compared import page, read_run


def test_forecast_and_fact_part_by_more_than_a_tenth_and_out_of_the_interval() -> None:
    served = Beside(what="t", unit="share", forecast=0.5, interval=(0.4, 0.6), fact=0.41)
    assert not served.parted
    assert served.words == ("t", "50.0±10.0%", "41.0%")
    assert Beside(what="t", unit="share", forecast=0.5, interval=(0.4, 0.6), fact=0.39).parted
    assert not Beside(what="b", unit="bytes", forecast=1000, fact=1090).parted
    moved = Beside(what="b", unit="bytes", forecast=1000, fact=2000, note="cluster the table")
    assert list(lines([moved]))[1:] == [
        "b                     0.977 KiB  1.95 KiB",
        "b: forecast and fact part: cluster the table",
    ]
    assert Beside.of(json.loads(json.dumps(moved.values()))) == moved
    unknown = Beside(what="hot", unit="batches", forecast=None, fact=0, note="none were made")
    assert not unknown.parted
    assert list(lines([unknown]))[-1] == "none were made"


def registry(folder: Path, **more: Any) -> dict[str, Any]:
    user, item = ({"name": name, "kind": name, "num_ids": 2000} for name in ("user", "item"))
    return {
        "plugins": ["recd_dlrm", "recd_dedup", "recd_scars"],
        "folder": str(folder),
        "dataset": {
            "use": "sessions",
            "samples": 8192,
            "samples_per_session": 8,
            "session_sigma": 0.2,
            "features": [{**user, "length": 6, "stay": 1.0}, item],
            "dense": 2,
        },
        "etl": [{"use": "cluster_by_session"}],
        "dedup": {"use": "exact", "groups": [["user"]]},
        "reader": {"use": "local", "sessions": "whole"},
        "model": {"use": "dlrm", "embedding_dim": 8},
        "cache": {"use": "scars", "size": "hit_rate", "hit_rate": 0.3, "coalesce": "rank"},
        "train": {"ranks": 2, "batch_size": 128, "steps": 32, "log_every": 8, **more},
    }


def trained(values: dict[str, Any]) -> list[dict[str, Any]]:
    from recd_plugins.trainer.run import train

    found: list[dict[str, Any]] = train(load(values), torch.device("cpu"))["forecasts"]
    return found if dist.get_rank() == 0 else []


def test_a_run_says_what_was_forecast_and_what_came(gloo_pool: GlooPool, tmp_path: Path) -> None:
    run = tmp_path / "run"
    found, _ = gloo_pool.run(trained, registry(tmp_path, run=str(run), eval_batches=1))
    by_what = {one["what"].split(",")[0]: one for one in found}
    assert {what.split(":")[0] for what in by_what} == {
        "t_user",
        "t_item",
        "bytes of collectives",
        "dedupe factor",
        "hot batches",
    }
    for what, one in by_what.items():
        if one["forecast"] is not None:
            # All 32 batches of the epoch were counted, and read for the dedupe factor; but one in 8
            # is looked at for what tiers serve, and bytes are those of one step.
            assert one["fact"] == pytest.approx(one["forecast"], rel=0.15), what
    assert by_what["hot batches"]["note"].startswith("hot batches are on, and none were made")
    assert json.loads((run / "summary.json").read_text())["forecasts"] == json.loads(
        json.dumps(found)
    )
    shown = page([read_run(run)], "run")
    assert "Forecast beside fact" in shown
    assert "lookups that DP serves" in shown
    assert "all-to-all, ids" in shown

"""Example runs: the registries of examples/ on gloo ranks, with real data where they need it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from recd_plugins.registry import Registry
from recd_plugins.stack import load
from recd_plugins.testing.gloo import GlooPool

EXAMPLES = Path(__file__).parents[2] / "examples"
REGISTRIES = sorted(path.name for path in EXAMPLES.glob("*.yaml"))

SOURCES = {
    "criteo.yaml": {"train": ["criteo/kaggle_8k.tsv"], "test": ["criteo/kaggle_2k.tsv"]},
    "movielens.yaml": {"path": "ml100k/ml-100k.inter"},
    "yoochoose.yaml": {"path": "yoochoose/clicks.tsv"},
}
"""Options of an example's dataset that name files, and the real files to give it."""

QUICK = ["sharding={use: torchrec, search: greedy}", "train.device=cpu", "train.checkpoint_every=0"]
"""Greedy plans take milliseconds; without a checkpoint but the last."""

RealData = Callable[[str], Path]


def sources(example: str, real_data: RealData) -> list[str]:
    """The overrides that give an example its real files."""
    return [
        f"dataset.{option}={json.dumps([str(real_data(name)) for name in names])}"
        if isinstance(names, list)
        else f"dataset.{option}={real_data(names)}"
        for option, names in SOURCES.get(example, {}).items()
    ]


def run(example: str, folder: str, overrides: list[str]) -> dict[str, Any]:
    """On a rank: train; the summary."""
    from recd_plugins.trainer.run import train

    paths = [f"folder={folder}/data", f"train.run={folder}/run"]
    stack = load(EXAMPLES / example, [*QUICK, *paths, *overrides])
    return train(stack, torch.device("cpu"))


def metrics_lines(folder: Path, kind: str) -> list[dict[str, Any]]:
    """The lines of metrics of a kind."""
    lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, lines) if line["kind"] == kind]


def test_there_are_examples_and_real_files_only_for_those() -> None:
    assert len(REGISTRIES) >= 5
    assert SOURCES.keys() <= set(REGISTRIES)


@pytest.mark.parametrize("example", REGISTRIES)
def test_an_example_is_a_valid_composition(example: str) -> None:
    registry = Registry.load(EXAMPLES / example)
    for slot in ("dataset", "reader", "model", "sharding"):
        assert registry.one(slot).where == slot


@pytest.mark.parametrize("example", REGISTRIES)
def test_an_example_trains_on_two_ranks(
    example: str, real_data: RealData, gloo_pool: GlooPool, tmp_path: Path
) -> None:
    short = ["train.steps=2", "train.log_every=1", "train.eval_batches=1"]
    overrides = [*sources(example, real_data), *short]
    if example not in SOURCES:
        overrides += ["dataset.samples=2048", "dataset.test_samples=512"]
    one, other = gloo_pool.run(run, example, str(tmp_path), overrides)
    assert one["train"] == other["train"]  # metrics are those of all ranks
    assert one["finished"]
    steps = metrics_lines(tmp_path, "train")
    assert [line["step"] for line in steps] == [1, 2]
    assert all(math.isfinite(line["loss"]) for line in [*steps, *metrics_lines(tmp_path, "test")])
    assert steps[1]["loss"] != steps[0]["loss"]


@pytest.mark.parametrize("example", ["movielens.yaml", "yoochoose.yaml"])
def test_real_histories_are_learnt(
    example: str, real_data: RealData, gloo_pool: GlooPool, tmp_path: Path
) -> None:
    gloo_pool.run(run, example, str(tmp_path), sources(example, real_data))
    (test,) = metrics_lines(tmp_path, "test")
    assert test["ne"] < 0.95  # of later sessions; the base rate alone is 1
    assert test["auc"] > 0.68


def test_criteo_is_learnt_alike_on_one_rank_and_two(
    real_data: RealData, gloo_pool: GlooPool, tmp_path: Path
) -> None:
    """Kaggle rows: 8,000 to train on, 2,000 to test on; 256 samples a step, in two streams."""
    overrides = sources("criteo.yaml", real_data)
    lines = []
    for ranks in (1, 2):
        batch_size = f"train.batch_size={256 // ranks}"
        gloo_pool.run(run, "criteo.yaml", str(tmp_path), [*overrides, batch_size], world_size=ranks)
        lines.append([*metrics_lines(tmp_path, "train"), *metrics_lines(tmp_path, "test")])
    alone, together = lines
    assert alone[-1]["samples"] == 2000
    assert alone[-1]["ne"] < 1
    assert alone[-1]["auc"] > 0.7
    assert [line["step"] for line in alone] == [10, 20, 30, 40, 50, 60, 62, 62]
    for one, two in zip(alone, together, strict=True):
        assert two["samples"] == one["samples"]
        for name in ("loss", "ne"):  # two ranks add float32 gradients in another order
            assert two[name] == pytest.approx(one[name], abs=1e-6)

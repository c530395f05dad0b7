"""Rung 1 and 4 (values, a run on two ranks): RecD's trainer suite and the models it runs on."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch
import yaml

from benchmarks.models import groups, registry, sessions
from benchmarks.recd_train.__main__ import compare
from benchmarks.recd_train.ablation import draw
from benchmarks.recd_train.figures import TrainBench
from benchmarks.recd_train.measured import BASELINE, MeasuredTraining
from benchmarks.recd_train.memory import tensor_memory
from benchmarks.recd_train.ranks import TrainSteps
from recd_plugins.stack import load
from recd_plugins.testing.gloo import GlooPool

TARGETS = {
    "RM1-like step, S = 16.5": (4, False),
    "O5 + O6 alone, RM1-like step": (1, False),
    "O5 + O6 alone, step memory": (100, True),
    "step memory, RM1-like": (15, True),
    "RM1-like step, S = 4": (2.2, False),
    "throughput at S = 1": (0.95, False),
    "RM2-like step": (1.4, False),
    "RM3-like step": (1.5, False),
    "all-to-all bytes over deduplicated features": (None, False),
}
"""Rows of the issue; where the target follows the DedupeFactor, it is not named here."""

PAPER = {
    "rm1": ({"clicks": 4, "views": 4, "likes": 3, "searches": 3, "follows": 2}, 2048),
    "rm2": ({"views": 6}, 2048),
    "rm3": ({"views": 11}, 1152),
}
"""Sequence features by group, and the baseline's batch size."""


@pytest.mark.parametrize("name", PAPER)
def test_a_model_is_the_papers(name: str) -> None:
    values = registry(name)
    features = values["dataset"]["features"]
    sequences, batch_size = PAPER[name]
    assert Counter(f["group"] for f in features if f.get("sequence")) == sequences
    others = Counter(f["kind"] for f in features if not f.get("sequence"))
    assert others == {"user": 96, "item": 48}  # about 100 are deduplicated
    assert {key: len(group) for key, group in zip(sequences, groups(values), strict=False)} == (
        sequences
    )
    assert values["train"]["batch_size"] == batch_size
    assert load(values).registry.chosen("dedup")


@pytest.mark.parametrize("name", PAPER)
def test_one_knob_scales_every_size(name: str) -> None:
    full, small = registry(name), registry(name, 1 / 4)
    assert registry(name, 1.0) == yaml.safe_load(
        (Path(registry.__code__.co_filename).parent / f"{name}.yaml").read_text()
    )
    count = Counter((f["kind"], "group" in f) for f in small["dataset"]["features"])
    assert count[("user", False)] == 24
    assert count[("item", False)] == 12
    assert count[("user", True)] == sum(PAPER[name][0].values())
    assert small["model"]["embedding_dim"] == full["model"]["embedding_dim"] // 4
    assert small["train"]["batch_size"] == full["train"]["batch_size"] // 4
    before, after = (values["dataset"]["features"][0] for values in (full, small))
    for size in ("length", "max_length", "num_ids"):
        assert after[size] == before[size] / 4
    assert sessions(name, 1 / 4, samples=10, seed=3).samples == 10


def test_memory_is_what_is_held_at_once() -> None:
    def step() -> None:
        one = torch.ones(250_000)  # 1 MB each
        two = one + 1
        del one
        (two * 2).sum()

    scalars = 1000
    kept = []
    for _ in range(3):  # what a step leaves behind is not the next one's
        assert 2_000_000 <= tensor_memory(step) <= 2_000_000 + scalars
        assert 4_000_000 <= tensor_memory(lambda: kept.append(torch.ones(1_000_000))) <= 4_001_000
    kept.append(torch.ones(10))
    assert tensor_memory(kept.clear) < scalars


def test_gains_are_samples_a_second_round_by_round() -> None:
    sides = {
        BASELINE: _steps([2.0, 4.0, 3.0], samples=10, memory=[200, 100]),
        "three": _steps([3.0, 4.0, 4.5], samples=30, memory=[50, 20]),
    }
    measured = MeasuredTraining(sides=sides, samples_per_session=16.5)
    assert measured.gains("three") == [2.0, 3.0, 2.0]
    assert measured.gains("three", "cpu") == [2.0, 3.0, 2.0]
    assert measured.memory_shares("three") == [25.0, 20.0]
    figure = measured.faster("three times the batch", "three", target=2.0)
    assert (figure.value, figure.met) == (2.0, True)
    lighter = measured.lighter("memory", "three", target=15)
    assert (lighter.value, lighter.met) == (22.5, False)


def _steps(seconds: list[float], *, samples: int, memory: list[int]) -> TrainSteps:
    return TrainSteps(
        seconds=seconds,
        cpu=[2 * one for one in seconds],
        samples=samples,
        loss=0.5,
        traffic={},
        ids=0,
        ids_kept=0,
        memory=memory,
    )


def test_the_suite_on_tiny_models(gloo_pool: GlooPool, tmp_path: Path) -> None:
    bench = TrainBench(
        folder=tmp_path,
        pool=gloo_pool,
        scale=1 / 32,
        samples=768,
        rounds=1,
        batches=1,
        warm_up=0,
    )
    ablation = bench.ablation()
    figures = {figure.name: figure for figure in compare(bench, ablation).figures}
    for name, (target, at_most) in TARGETS.items():
        assert figures[name].target == target or target is None
        assert figures[name].at_most == at_most
        assert figures[name].note
    # What no load of the machine changes.
    assert figures["all-to-all bytes over deduplicated features"].met
    share = figures["all-to-all bytes over deduplicated features"].share
    assert share is not None
    assert 0.9 < share <= 1.05
    for name in ("RM1-like step, S = 16.5", "RM3-like step", "throughput at S = 1"):
        limit = figures[name].limit
        assert limit is not None
        assert 1 <= limit.value <= ablation.sides["+ O7"].dedupe_factor * 2
        assert limit.of.count("x an unprofiled one") == 2  # the baseline's step, and ours
    assert figures["step memory, RM1-like"].value < 50
    plain, lookups, recd, _ = ablation.sides.values()
    assert recd.dedupe_factor > 3
    assert recd.parts.keys() == plain.parts.keys()
    assert recd.parts["dense"] > 0
    assert not lookups.parts  # it has no limit
    # The same samples; sums over unique ones add floats in another order.
    assert [lookups.loss, recd.loss] == pytest.approx([plain.loss] * 2, abs=1e-5)
    draw(ablation, picture := tmp_path / "figures" / "ablation.png")
    assert picture.read_bytes().startswith(b"\x89PNG")

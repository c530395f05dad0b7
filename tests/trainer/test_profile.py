"""Ladder: value tests of what is watched, then two gloo ranks under the profiler."""

from __future__ import annotations

import gc
import gzip
import json
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from probe_plugin import probe_registry
from torch import nn

from recd_plugins.embedding.pooled_check import PooledCheck
from recd_plugins.stack import load
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.trainer.measure.breakdown import PARTS, STEP, breakdown
from recd_plugins.trainer.measure.step_profiler import StepProfiler, pooling_modules, spans_of

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("start", "stop", "after", "steps", "watched"),
    [
        (0, 100, 20, 5, range(20, 26)),  # one to warm up, then five
        (50, 100, 20, 3, range(70, 74)),
        (0, 12, 20, 5, range(4, 10)),  # too short for 20: the last that fit
        (0, 9, 20, 5, range(1, 7)),
        (0, 8, 20, 5, range(0)),
        (0, 100, 20, 0, range(0)),
    ],
)
def test_which_steps_are_watched(
    start: int, stop: int, after: int, steps: int, watched: range
) -> None:
    profile = StepProfiler(nn.Module(), CPU, start=start, stop=stop, after=after, steps=steps)
    assert [step for step in range(120) if profile.covers(step)] == list(watched)
    assert profile.too_short == (steps > 0 and not watched)


class Pooled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.poolings = nn.ModuleList([nn.Linear(1, 1), nn.Sequential(nn.Linear(1, 1))])
        self.last_pooling = nn.Identity()
        self.any_name = nn.AvgPool1d(1)
        self.top = nn.Linear(1, 1)


class LastPooling(nn.Linear):
    pass


def test_what_is_recorded_on_the_cpu_is_what_torch_says_of_it() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for _ in range(2):
            with torch.profiler.record_function(STEP):
                with torch.profiler.record_function("## pooling ##"):
                    loss = model(torch.ones(3, 4)).sum()
                loss.backward()
    spans, none = spans_of(profiler, CPU)
    torchs, _ = spans_of(profiler, torch.device("cuda"))  # of which it has no event
    assert none == []
    parts = breakdown(spans)
    assert parts == pytest.approx(breakdown(torchs), rel=1e-6, abs=1e-9)
    assert parts["pooling"] > 0
    assert {span.name for span in torchs} <= {span.name for span in spans}


def test_pooling_modules_are_found_by_name_or_class() -> None:
    model = nn.Sequential(Pooled(), LastPooling(1, 1), nn.Linear(1, 1))
    assert [name for name, _ in pooling_modules(model)] == [
        "0.poolings.0",
        "0.poolings.1",
        "0.last_pooling",
        "1",
    ]


REGISTRY = {
    "plugins": ["recd_dlrm"],
    "dataset": {"use": "sessions", "samples": 600, "test_fraction": 0.1},
    "model": {"use": "sequence_dlrm", "embedding_dim": 8, "bottom": [8], "top": [8]},
    "pooling": {"history": {"use": "attention", "hidden": [8]}},
    "sharding": {"use": "torchrec", "search": "greedy"},
}


def trained(registry: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """On a rank: the summary of a run, and how many hooks are left in the end, beside the check of
    what a pooling makes."""
    from recd_plugins.trainer.loop import Loop
    from recd_plugins.trainer.run import train

    jobs = []
    run = Loop.run

    def seen(loop: Loop, *args: Any) -> dict[str, Any]:
        jobs.append(loop._job)
        return run(loop, *args)

    Loop.run = seen  # type: ignore[method-assign]  # to look at the model after the run
    try:
        summary = train(load(registry), CPU)
    finally:
        Loop.run = run  # type: ignore[method-assign]
    modules = [module for _, module in pooling_modules(jobs[0].model)]
    hooks = (
        hook
        for one in modules
        for hook in (*one._forward_hooks.values(), *one._forward_pre_hooks.values())
    )
    owners = [getattr(hook, "__self__", hook) for hook in hooks]
    return summary, sum(not isinstance(owner, PooledCheck) for owner in owners)


def test_a_run_breaks_its_step_down(tmp_path: Path, gloo_pool: GlooPool) -> None:
    train = {"batch_size": 16, "steps": 10, "log_every": 4, "checkpoint_every": 0}
    train |= {"device": "cpu", "run": str(tmp_path / "run"), "profile_steps": 3}
    registry = {**REGISTRY, "folder": str(tmp_path / "data"), "train": train}
    load(registry).prepare()
    (summary, hooks), (other, _) = gloo_pool.run(trained, registry)
    parts = summary["parts_ms"]
    assert parts == other["parts_ms"]
    assert list(parts) == list(PARTS)
    assert all(parts[part] > 0 for part in PARTS)
    assert hooks == 0
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    (profile,) = [line for line in lines if line["kind"] == "profile"]
    assert profile == {"kind": "profile", "step": 8, **parts}  # steps 5 to 7, counted from 0
    ranks = json.loads((tmp_path / "run/timeline.json").read_text())["ranks"]
    assert len(ranks) == 2
    for rank in ranks:
        names, starts, ends = zip(*rank["thread"], strict=True)
        assert set(names) <= set(PARTS)
        assert starts[0] == 0
        assert starts[1:] == ends[:-1]
        assert ends[-1] == pytest.approx(rank["ms"], abs=1e-3)
        assert {name for name, _, _ in rank["collectives"]} >= {"all_to_all", "all_reduce"}
        assert all(0 <= start < end <= rank["ms"] + 1e-3 for _, start, end in rank["collectives"])
    with gzip.open(tmp_path / "run/trace.json.gz") as file:
        names = {event.get("name") for event in json.load(file)["traceEvents"]}
    assert any(name.startswith("## pooling ") for name in names if name)


def test_a_short_run_says_that_it_is(
    tmp_path: Path, gloo_pool: GlooPool, capfd: pytest.CaptureFixture[str]
) -> None:
    registry = probe_registry(tmp_path, steps=4, profile_steps=5, checkpoint_every=0)
    for summary, _ in gloo_pool.run(trained, registry):
        assert summary["parts_ms"] is None
    assert "4 steps are too few to profile 5 of them" in capfd.readouterr().out


def left_behind(registry: dict[str, Any]) -> tuple[int, int, bool]:
    """On a rank: the step at which a run ended, the hooks that are left, and whether kineto still
    records."""
    summary, hooks = trained(registry)
    return summary["step"], hooks, torch.autograd._profiler_enabled()


def test_a_run_that_ends_among_the_watched_steps_leaves_nothing(
    tmp_path: Path, gloo_pool: GlooPool
) -> None:
    """kineto ended ranks with SIGSEGV in the next run of the same processes that was profiled."""
    train = {"batch_size": 16, "steps": 16, "log_every": 4, "checkpoint_every": 0}
    train |= {"device": "cpu", "run": str(tmp_path / "run"), "profile_steps": 6}
    stops = {"use": "early_stopping", "split": "train", "patience": 1, "min_delta": 10.0}
    registry = {**REGISTRY, "folder": str(tmp_path / "data"), "train": train, "callbacks": [stops]}
    load(registry).prepare()
    assert gloo_pool.run(left_behind, registry) == [(9, 0, False)] * 2  # steps 5 to 10 are watched


def profile_is_freed() -> bool:
    """On a rank: whether nothing of the profile is left once it is finished."""
    profile = StepProfiler(nn.Module(), CPU, start=0, stop=20, after=2, steps=2)
    gc.disable()  # nobody frees it by chance
    try:
        for number in range(6):
            with profile.step(number):
                torch.ones(8).sum()
            if profile.ends(number):
                watched = weakref.ref(profile._profiler)
                profile.finish(None)
        return watched() is None
    finally:
        gc.enable()


def test_the_profile_is_freed_as_it_is_finished(gloo_pool: GlooPool) -> None:
    """kineto ended ranks with SIGSEGV where garbage was collected steps later."""
    assert gloo_pool.run(profile_is_freed) == [True, True]

"""Ladder: value tests of a run's cost, then two gloo ranks that measure one."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from probe_plugin import probe_registry

from recd_plugins.data.batch import Batch
from recd_plugins.stack import load
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.trainer.measure.step_cost import CostMeter, CostSoFar, StepCost


def cost(**fields: Any) -> StepCost:
    plain = {"steps": 5, "step_ms": 10, "data_wait": 0.1, "dedupe_factor": None}
    return StepCost(**{**plain, "peak_memory_mib": 100, **fields})


def deduplicated(factor: float, ids: float) -> dict[str, float]:
    return {"dedupe_factor": factor, "deduplicated_ids": ids}


def mean_cost(costs: list[StepCost]) -> StepCost | None:
    so_far = CostSoFar()
    for one in costs:
        so_far.add(one)
    return so_far.mean()


def test_a_run_costs_what_its_steps_cost() -> None:
    slow = {"all_to_all": {"ids": 10.0, "forward": 4.0}}
    costs = [
        cost(step_ms=900, data_wait=0.9, peak_memory_mib=300),
        cost(step_ms=12, **deduplicated(2, 30), traffic=slow, reading_ms={"decode": 2, "nap": 1}),
        cost(step_ms=10, **deduplicated(100, 50), traffic={"all_to_all": {"ids": 20.0}}),
        cost(steps=15, reading_ms={"decode": 6.0, "nap": 1}),
    ]
    assert mean_cost(costs) == StepCost(
        steps=30,
        step_ms=12,
        data_wait=0.1,
        dedupe_factor=80 / 15.5,  # of both batches' ids, not between 2 and 100
        deduplicated_ids=40,
        peak_memory_mib=300,
        traffic={"all_to_all": {"ids": 15.0, "forward": 2.0}},
        reading_ms={"decode": 5.0, "nap": 1.0},
    )
    assert mean_cost([]) is None
    assert costs[1].seconds == pytest.approx(0.06)


def test_ranks_are_told_apart_since_there_were_as_many() -> None:
    """An elastic run goes on with fewer ranks, or more."""
    two = cost(by_rank={"step_ms": [8.0, 12.0]}, sent=[[1.0, 2.0], [3.0, 4.0]])
    one = [cost(by_rank={"step_ms": [step_ms]}, sent=[[step_ms]]) for step_ms in (20.0, 30.0)]
    whole = mean_cost([two, one[0], cost(steps=15, by_rank=one[1].by_rank, sent=one[1].sent)])
    assert whole is not None
    assert whole.steps == 25
    assert whole.by_rank == {"step_ms": [27.5]}
    assert whole.sent == [[25.0]]


def test_a_cost_is_reported_in_a_line() -> None:
    traffic = {"all_reduce": {"backward": 2048.0}, "all_to_all": {"ids": 512.0, "forward": 3e8}}
    assert str(cost(dedupe_factor=2.5, traffic=traffic)) == (
        "a step: 10.0 ms, 10% of it waiting for data; all-reduce 2.0 KiB (backward 2.0 KiB), "
        "all-to-all 286 MiB (ids 0.5 KiB, forward 286 MiB) a rank; dedupe factor 2.50 in "
        "sampled batches; peak memory 100 MiB"
    )
    assert cost(reading_ms={"decode": 2.0, "hand over": 0.25}).reading() == (
        "reading a batch: 2.25 ms of whoever reads: decode 2.00, hand over 0.25"
    )
    assert str(cost()) == "a step: 10.0 ms, 10% of it waiting for data; peak memory 100 MiB"


def trained(registry: dict[str, Any]) -> dict[str, Any]:
    """On a rank: the summary of a run."""
    from recd_plugins.trainer.run import train

    return train(load(registry), torch.device("cpu"))


def costs_of(run: Path) -> list[dict[str, Any]]:
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if line["kind"] == "cost"]


def batches_of(registry: dict[str, Any]) -> list[list[Batch]]:
    """Of each rank, those of the first epoch."""
    return [list(load(registry).loader(rank, 2)) for rank in range(2)]


def test_a_run_measures_its_steps(tmp_path: Path, gloo_pool: GlooPool) -> None:
    registry = probe_registry(tmp_path, rows=256, steps=12, log_every=4, checkpoint_every=0)
    summaries = gloo_pool.run(trained, registry)
    found = costs_of(tmp_path / "run")
    assert [line["step"] for line in found] == [4, 8, 12]
    assert all(line["steps"] == 4 and line["step_ms"] > 0 for line in found)
    assert all(0 < line["data_wait"] < 1 for line in found)
    assert all(line["dedupe_factor"] is None for line in found)
    reading = ["I/O", "decode", "gather", "hand over"]
    assert all(list(line["reading_ms"]) == reading for line in found)
    assert found[0]["reading_ms"]["decode"] > 0
    # Step 3, counted from 0, is sampled; the others are too soon after it.
    assert [bool(line["traffic"]) for line in found] == [True, False, False]
    assert set(found[0]["traffic"]["all_to_all"]) == {"ids", "forward", "backward"}
    linear = 2 + 8 * 4  # the probe's dense parameters, and its bias
    assert found[0]["traffic"]["all_reduce"] == {"backward": 4 * (linear + 1)}
    for summary in summaries:  # alike on every rank, but for the clock
        cost = summary["cost"]
        assert cost["steps"] == 12
        assert cost["traffic"]["all_reduce"] == found[0]["traffic"]["all_reduce"]
        assert summary["peak_memory_mib"] == cost["peak_memory_mib"] > 100
    assert summaries[0]["cost"] == summaries[1]["cost"]
    for line in found:
        step, waited = line["by_rank"]["step_ms"], line["by_rank"]["wait_ms"]
        assert sum(step) / 2 == pytest.approx(line["step_ms"])
        assert sum(waited) / sum(step) == pytest.approx(line["data_wait"])
        owned = line["memory_mib"]
        whole = [sum(sizes) for sizes in zip(*owned.values(), strict=True)]
        assert max(whole) == pytest.approx(line["peak_memory_mib"])
        assert owned["gradients"] == [4 * (linear + 1) / 2**20] * 2
        assert owned["dense"] >= owned["gradients"]
    sent = found[0]["sent"]
    through = sum(found[0]["traffic"]["all_to_all"].values())
    # `through` is the ranks' mean: each hands on what its own tables and samples are.
    assert [sum(row) for row in sent] == pytest.approx([through] * 2, rel=0.5)
    assert sum(map(sum, sent)) == pytest.approx(2 * through)


@pytest.mark.parametrize(
    ("start", "steps", "every", "sampled"),
    [
        (0, 100, 10, [9, 29, 49, 69, 89]),
        (0, 60, 1, [3, 23, 43]),
        (0, 66, 32, [31, 63]),
        (30, 60, 10, [39]),
        (0, 12, 20, []),
    ],
)
def test_which_steps_are_sampled(
    start: int, steps: int, every: int, sampled: list[int], gloo_pool: GlooPool
) -> None:
    (found,) = gloo_pool.run(counted_steps, start, steps, every, world_size=1)
    assert found == sampled


def counted_steps(start: int, steps: int, every: int) -> list[int]:
    """On a rank: the steps whose all-reduces were counted."""
    positions: Any = SimpleNamespace(waited=0.0, read_seconds={})
    meter = CostMeter(positions, torch.device("cpu"), start=start, steps=steps, every=every)
    found = []
    for number in range(start, steps):
        training: Any = SimpleNamespace(step=number)
        meter.before_step(training)
        dist.all_reduce(torch.ones(1))
        meter.after_step(training)
        if meter.cost().traffic:
            found.append(number)
    return found


def test_ids_move_as_they_are_read(tmp_path: Path, gloo_pool: GlooPool) -> None:
    """Step 3 exchanges the ids of step 4: of table-wise tables 8 bytes each, once."""
    registry = probe_registry(tmp_path, rows=128, steps=6, log_every=4, checkpoint_every=0)
    registry["sharding"]["constraints"] = {"*": {"sharding_types": ["table_wise"]}}
    gloo_pool.run(trained, registry)
    (first, _) = costs_of(tmp_path / "run")
    ids = sum(batches[4].features.values().numel() for batches in batches_of(registry)) / 2
    lengths = 4 * 8 * 4  # an int32 for each of 4 features and 8 samples
    splits = 2 * 2 * 3 * 8  # to 2 ranks, for 2 collections: 3 int64 (lengths, values, samples)
    assert first["traffic"]["all_to_all"]["ids"] == 8 * ids + lengths + splits


def test_a_deduplicated_run_tells_its_factor(tmp_path: Path, gloo_pool: GlooPool) -> None:
    registry = probe_registry(tmp_path, rows=768, steps=6, log_every=4, checkpoint_every=0)
    registry["train"]["batch_size"] = 64
    registry["plugins"].append("recd_dedup")
    registry["dedup"] = {"use": "exact", "groups": [["shop"]]}
    summaries = gloo_pool.run(trained, registry)
    # Step 3 reads the batch of step 5.
    counts = [batches[5].dedup.id_counts() for batches in batches_of(registry)]
    expected = sum(ids for ids, _ in counts) / sum(kept for _, kept in counts)
    assert expected > 1.01
    (first, second) = costs_of(tmp_path / "run")
    assert math.isclose(first["dedupe_factor"], expected, rel_tol=1e-12)
    assert first["deduplicated_ids"] == sum(ids for ids, _ in counts) / 2
    assert second["dedupe_factor"] is None
    assert summaries[0]["cost"]["dedupe_factor"] == first["dedupe_factor"]

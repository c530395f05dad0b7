"""`benchmarks.combined`: each registry has what the one before has, and figures are the steps'."""

from __future__ import annotations

import dataclasses
import os
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.combined.__main__ import figures
from benchmarks.combined.additions import ALL, CLUSTER_MODELS, HALF, PLAIN, OnCluster
from benchmarks.combined.on_nodes import NodeSteps
from benchmarks.recd_train.ranks import TrainSteps
from recd_plugins.planning.cluster.topology import PRESETS, save_topology
from recd_plugins.stack import load

DENSE = {(False, "fp32"): 100, (True, "fp32"): 70, (True, "bf16"): 35}
"""Bytes of dense gradients out of a node, by whether they cross nodes once, and in what
precision."""


@pytest.mark.parametrize("model", CLUSTER_MODELS)
def test_each_addition_is_one_more_and_may_be_loaded(model: str, tmp_path: Path) -> None:
    save_topology(PRESETS["a100_dgx"], tmp_path / "topology.yaml")
    workload = OnCluster(
        model=model,
        scale=1 / 16,
        folder=tmp_path,
        samples=64,
        topology=tmp_path / "topology.yaml",
        ranks=4,
    )
    chosen = CLUSTER_MODELS[model]
    for side in chosen.sides.values():
        load(workload.registry(side)).check()
    on_the_way = [workload.registry(side) for side in chosen.way.values()]
    slots = [set(values) for values in on_the_way]
    assert all(before <= after for before, after in pairwise(slots))
    assert slots[-1] - slots[0] == {"etl", "reader", "dedup", "cache"}
    assert on_the_way[-1]["sharding"] == on_the_way[-2]["sharding"]
    assert chosen.recd in chosen.way


def test_figures_leave_out_the_dense_gradients() -> None:
    chosen = CLUSTER_MODELS["rm1"]
    sides = {name: _steps(seconds=2.0, sent=1_100.0, memory=100) for name in chosen.sides}
    once = _steps(seconds=0.25, sent=90.0, memory=30)
    sides[ALL] = dataclasses.replace(once, dense_once=True)
    in_16_bits = dataclasses.replace(sides[ALL], sent=45.0, dense_kind="bf16", loss=0.51)
    sides[HALF] = in_16_bits
    found = {
        one.name: one for one in figures([NodeSteps(sides=sides, dense=DENSE)] * 4, "rm1", 200)
    }
    faster = found["all together, against plain TorchRec"]
    assert (faster.value, faster.target, faster.met) == (8.0, 8.0, True)
    fewer = found["bytes between nodes, all together"]
    assert (fewer.value, fewer.met) == (1_000 / 20, True)
    memory = found["the step's memory, all together"]
    assert (memory.value, memory.met) == (30.0, False)
    halved = found["bytes between nodes, all together, in 16 bits"]
    assert (halved.value, halved.met) == (1_000 / 10, True)
    assert found["loss, all together, in 16 bits, off all together"].value == pytest.approx(2.0)


def test_nodes_of_four_ranks_have_figures_and_targets_of_their_own() -> None:
    chosen = CLUSTER_MODELS["rm1"]
    sides = {name: _steps(seconds=2.0, sent=1_100.0, memory=100) for name in chosen.sides}
    ranks = [NodeSteps(sides=sides, dense=DENSE)] * 8
    found = {one.name: one for one in figures(ranks, "rm1", 200, wide=True)}
    assert found["all together, 2 x 4 ranks, against plain TorchRec"].target is None
    assert found["bytes between nodes, all together, 2 x 4 ranks"].target is None
    own = found["all together, 2 x 4 ranks, against TorchRec's own best plan"]
    assert own.target == chosen.faster_than_own
    assert not own.met


def test_the_limit_is_the_longer_of_computing_and_sending() -> None:
    chosen, parts = CLUSTER_MODELS["rm1"], {"pooling": 800.0, "dense": 200.0, "exposed": 999.0}
    sides = {name: _steps(seconds=2.0, sent=1_100.0, memory=100) for name in chosen.sides}
    sides[PLAIN] = dataclasses.replace(sides[PLAIN], parts=parts, ids_plain=80)
    ours = _steps(seconds=0.5, sent=5e6, memory=30)
    sides[ALL] = dataclasses.replace(ours, ids=80, ids_kept=10)
    cores = len(os.sched_getaffinity(0))
    computing = 4 * 2.0 * (800 / 8 + 200) / 1000 / cores  # over a factor of 8
    for mbit, least in ((1_000_000, computing), (4, 10.0)):
        ranks = [NodeSteps(sides=sides, dense=DENSE)] * 4
        found = {one.name: one for one in figures(ranks, "rm1", mbit)}
        faster = found[f"all together, {mbit} mbit, against plain TorchRec"]
        assert faster.limit is not None
        assert faster.limit.value == pytest.approx(2.0 / least)
        assert faster.share == pytest.approx(4.0 * least / 2.0)


def _steps(*, seconds: float, sent: float, memory: int) -> TrainSteps:
    return TrainSteps(
        seconds=[seconds] * 3,
        cpu=[seconds] * 3,
        samples=8,
        loss=0.5,
        traffic={},
        ids=0,
        ids_kept=0,
        memory=[memory],
        sent=sent,
    )

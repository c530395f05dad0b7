"""The registries of `benchmarks.combined`: each has what the one before has, and one thing more."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from benchmarks.combined.additions import ADDITIONS, OWN, OnCluster
from recd_plugins.planning.topology import PRESETS, save_topology
from recd_plugins.stack import load


def test_each_addition_is_one_more_and_may_be_loaded(tmp_path: Path) -> None:
    save_topology(PRESETS["a100_dgx"], tmp_path / "topology.yaml")
    workload = OnCluster(
        model="rm1",
        scale=1 / 16,
        folder=tmp_path,
        samples=64,
        topology=tmp_path / "topology.yaml",
        ranks=4,
    )
    made = {name: workload.registry(side) for name, side in ADDITIONS.items()}
    for values in made.values():
        load(values).check()
    on_the_way = [values for name, values in made.items() if name != OWN]
    slots = [set(values) for values in on_the_way]
    assert all(before <= after for before, after in pairwise(slots))
    assert slots[-1] - slots[0] == {"etl", "reader", "dedup", "cache"}
    assert on_the_way[-1]["sharding"] == on_the_way[-2]["sharding"]

"""Value tests: settings that are drawn are the same whenever they are drawn, and can be trained."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.advise.drawn import SEEDS, DrawnSetting, automatic
from recd_plugins.registry import Registry

TOPOLOGY = Path("a100_dgx")


@pytest.mark.parametrize("seed", SEEDS)
def test_a_seed_says_all_of_a_job(seed: int, tmp_path: Path) -> None:
    one, same = (DrawnSetting(seed).registry(tmp_path, TOPOLOGY, 1_000) for _ in range(2))
    assert one == same
    nodes, each, _ = DrawnSetting(seed).ranks
    assert one["train"]["ranks"] == nodes * each


@pytest.mark.parametrize("seed", SEEDS)
def test_registries_of_a_job_load_and_differ_in_what_chooses_alone(
    seed: int, tmp_path: Path
) -> None:
    own = DrawnSetting(seed).registry(tmp_path, TOPOLOGY, 1_000)
    Registry.load(own)
    auto = automatic(own)
    Registry.load(auto)
    assert {name for name in auto if auto[name] != own.get(name)} == {"dedup", "sharding", "cache"}


def test_settings_are_of_all_kinds() -> None:
    jobs = [DrawnSetting(seed).registry(Path(), TOPOLOGY, 1) for seed in SEEDS]
    assert {"etl" in job for job in jobs} == {"pooling" in job for job in jobs} == {True, False}
    assert {DrawnSetting(seed).ranks[0] for seed in SEEDS} == {1, 2}
    assert len({DrawnSetting(seed).name for seed in SEEDS}) == len(SEEDS)

"""Value tests: the stages of the search by which the regret of an advice is judged."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
import pytest

from benchmarks.advise.regret import (
    ADVISED,
    ASSEMBLED,
    AT_ONCE,
    FINALISTS,
    SETTINGS,
    Ratios,
    Stage,
    begun,
    judged,
    search,
    searched,
    stages_of,
)
from recd_plugins.errors import CapabilityError

NAMES = [f"r{number}" for number in range(44)]
SPEEDS = dict(
    zip(NAMES, np.random.default_rng(0).permutation(np.linspace(0.2, 1.3, 44)), strict=True)
)


class Timings:
    """Registries whose speeds are known, timed with an error that falls with the rounds."""

    def __init__(self, cannot: str = "", calls: int = 1000) -> None:
        self.draw, self.cannot, self.calls = np.random.default_rng(1), cannot, calls
        self.rounds: dict[str, int] = dict.fromkeys(NAMES, 0)
        self.held: set[str] = set()
        self.most_held = 0

    def timed(self, some: Sequence[str], stage: Stage) -> Ratios:
        self.calls -= 1
        there = [name for name in some if name != self.cannot]
        self.held |= {*there}
        self.most_held = max(self.most_held, len(self.held))
        for name in there:
            self.rounds[name] += stage.rounds
        off = 0.05 / np.sqrt(stage.rounds * stage.steps)
        return {name: SPEEDS[name] * (1 + off * self.draw.standard_normal()) for name in there}

    def going_on(self, names: Collection[str]) -> None:
        self.held &= {*names}

    def search(self, found: list[Ratios]) -> bool:
        rest = self.timed, self.going_on, lambda: self.calls <= 0
        return search(NAMES, stages_of(len(NAMES)), found, *rest)


def test_the_finalists_have_the_fastest_and_slow_ones_take_few_rounds() -> None:
    timings, found = Timings(), []
    assert timings.search(found)
    best = sorted(NAMES, key=SPEEDS.__getitem__, reverse=True)
    looked, half, finalists = map(set, found)
    assert looked == set(NAMES)
    assert len(half) == 22
    assert len(finalists) == FINALISTS
    assert set(best[:15]) <= half
    assert set(best[:3]) <= finalists
    assert max(found[-1], key=found[-1].__getitem__) in best[:2]
    assert {timings.rounds[name] for name in best[-15:]} == {stages_of(44)[0].rounds}
    assert timings.rounds[best[0]] == sum(stage.rounds for stage in stages_of(44))
    assert timings.most_held <= len(half) + AT_ONCE


def test_the_best_is_judged_by_rounds_that_did_not_choose_it() -> None:
    """One of each pair that is assembled is slower by its place, in either order."""
    placed: list[str] = []
    orders: list[tuple[str, ...]] = []

    def anew(order: Sequence[str]) -> None:
        placed[:] = order
        orders.append(tuple(order))

    def timed(names: Sequence[str]) -> list[list[float]]:
        own = {ADVISED: 1.1, "r1": 1.0}
        return [[own[name] * (1.2 if placed[0] == name else 1.0)] * 3 for name in names]

    ratios = judged("r1", anew, timed)
    assert orders == [(ADVISED, "r1"), ("r1", ADVISED)] * ASSEMBLED
    assert ratios == pytest.approx([1.1 * 1.2, 1.1 / 1.2] * ASSEMBLED)


def test_a_search_goes_on_where_another_was_left() -> None:
    found: list[Ratios] = []
    runs = 0
    rounds: dict[str, int] = dict.fromkeys(NAMES, 0)
    while True:
        timings = Timings(calls=2)
        done, runs = timings.search(found), runs + 1
        for name in NAMES:
            rounds[name] += timings.rounds[name]
        if done:
            break
    assert runs == 5  # of 6 calls of all, 3 of the half and 1 of the finalists
    assert [len(one) for one in found] == [44, 22, FINALISTS]
    assert max(rounds.values()) == sum(stage.rounds for stage in stages_of(44))


def test_a_search_goes_on_from_one_of_its_sizes_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    full = {"samples": 32_768, "quick": False, "most": None}
    assert begun(tmp_path, full) is None
    assert not capsys.readouterr().err
    (tmp_path / "timed.json").write_text("{}")
    assert begun(tmp_path, full) is None
    assert "timed.json is of an older search, without stages: this" in capsys.readouterr().err
    stages = tmp_path / "stages.json"
    for sizes in (full, full | {"quick": True}, full | {"samples": 8_192}, full | {"most": 6}, {}):
        stages.write_text(json.dumps({"sizes": sizes, "stages": []} if sizes else {"stages": []}))
        if sizes == full:
            assert begun(tmp_path, full) == {"sizes": full, "stages": []}
            continue
        with pytest.raises(CapabilityError, match="Give --folder another folder"):
            begun(tmp_path, full)


def test_what_cannot_be_is_left_out() -> None:
    timings, found = Timings(cannot=NAMES[0]), []
    assert timings.search(found)
    assert NAMES[0] not in found[0]
    assert len(found[0]) == 43


def test_the_search_has_forty_registries_and_more() -> None:
    for setting in SETTINGS:
        base = setting.registry(Path("data"), Path("topology.yaml"), 100)
        assert len(searched(base)) >= 40

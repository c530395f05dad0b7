"""Rung 1 (values): the registries that are compared, and what their steps come to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.honesty.scored_ids import sides, table_of
from benchmarks.honesty.step_time import (
    LONGER,
    MODELS,
    SIDES,
    TABLES,
    Case,
    figures,
    outcome,
    registry,
    timed,
)
from recd_plugins.registry import Registry


def found(plain: float, auto: float, best: float, why: str) -> dict[str, Any]:
    seconds = {"plain": plain, "auto": auto, "all": best, "sequences": best}
    rounds = {side: [one] * 3 for side, one in seconds.items()}
    worked = rounds | {"auto": [2 * auto] * 3}
    return {"seconds": rounds, "worked": worked, "why": {"auto": why}}


def test_twenty_tables_of_which_sides_differ_in_dedup_alone(tmp_path: Path) -> None:
    assert len(set(TABLES)) == 20
    for model in MODELS:
        case = Case(table=TABLES[-1], model=model, folder=tmp_path, samples=10)
        values = {side: registry(case, side) for side in SIDES}
        for side in SIDES:
            Registry.load(values[side])
        groups = {side: values[side].pop("dedup", {}).get("groups") for side in SIDES}
        assert all(values[side] == values["plain"] for side in SIDES)
        assert groups["auto"] == "auto"
        assert groups["plain"] is None
        assert 0 < len(groups["sequences"]) < len(groups["all"])


def test_what_steps_come_to(tmp_path: Path) -> None:
    case = Case(table=TABLES[0], model="small", folder=tmp_path, samples=10)
    chosen = outcome(case, found(3.0, 2.0, 1.5, "  a: deduplicated alone, factor 2"))
    left = outcome(case, found(3.0, 3.0, 4.0, "  a: left as it is"))
    assert (chosen.auto, chosen.best, chosen.chose) == (1.5, 2.0, True)
    assert (left.auto, left.best, left.chose) == (1.0, 1.0, False)
    assert (chosen.auto_worked, left.auto_worked) == (0.75, 0.5)
    least, of_chosen, median = figures([chosen, left])
    assert (least.value, least.met) == (1.0, True)
    assert (of_chosen.value, median.value, median.met) == (1.5, 1.5, True)


class Timings:
    """What ranks find when they are asked, one after the other."""

    def __init__(self, *found: dict[str, Any]) -> None:
        self.found = list(found)
        self.rounds: list[int] = []

    def run(self, job: Any, sides: Any, rounds: int, steps: int) -> list[dict[str, Any]]:
        self.rounds.append(rounds)
        return [self.found.pop(0)]


def test_what_seems_to_miss_a_promise_is_timed_again_and_that_counts(tmp_path: Path) -> None:
    case = Case(table=TABLES[0], model="small", folder=tmp_path, samples=10)
    slower, alike = found(3.0, 4.0, 3.0, "  a: left"), found(3.0, 3.0, 3.0, "  a: left")
    missed = found(3.0, 2.5, 2.0, "  a: deduplicated alone")
    pool = Timings(slower, alike, missed, alike, alike)
    again, found_again, once = (timed(case, pool, rounds=3, steps=2) for _ in range(3))
    assert (again.before, again.auto) == (0.75, 1.0)
    assert (found_again.before, found_again.auto, once.before) == (1.2, 1.0, None)
    assert pool.rounds == [3, 3 * LONGER, 3, 3 * LONGER, 3]


def test_scored_ids_are_the_same_ids(tmp_path: Path) -> None:
    for values in sides(tmp_path, 16).values():
        Registry.load(values)
    plain, scored = (table_of(tmp_path / str(one), 16, one) for one in (False, True))
    ids, others = (table.read(table.stripes[0]) for table in (plain, scored))
    assert ids["history"].equals(others["history"])
    weights = others["history_weights"].to_pylist()
    assert weights[0] == weights[7] != weights[8]
    assert all(0 <= weight < 1 for row in weights for weight in row)
    assert [len(row) for row in weights] == [20] * 16

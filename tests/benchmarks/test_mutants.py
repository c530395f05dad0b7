"""Rung 1 (values): small changes of a module run in the place of its own code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks import mutants
from benchmarks.mutants import ROOT, Patch, module_of, mutants_of

SOURCE = """
from __future__ import annotations
from dataclasses import dataclass, field
from functools import cache

LIMIT = 3

@dataclass(frozen=True)
class Pair:
    one: int = 1
    two: int | None = None
    more: list[int] = field(default_factory=list)

    @property
    def both(self) -> int:
        return self.one + (self.two or 0)

    @staticmethod
    def largest(pairs):
        return max(pair.both for pair in pairs)

@cache
def doubled(number: int) -> int:
    return number * 2

def within(number, least=0):
    return least <= number < LIMIT
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module, new in each test: changes stay in the one that they are made to."""
    made = ModuleType("small_changes")
    made.__file__ = str(tmp_path / "small_changes.py")
    monkeypatch.setitem(sys.modules, made.__name__, made)
    exec(compile(SOURCE, made.__file__, "exec"), vars(made))
    return made


@pytest.mark.parametrize(
    ("before", "after", "expression", "is_now"),
    [
        ("LIMIT = 3", "LIMIT = 2", "m.within(2)", False),
        ("< LIMIT", "<= LIMIT", "m.within(3)", True),
        ("least=0", "least=1", "m.within(0)", False),
        ("one: int = 1", "one: int = 2", "m.Pair().both", 2),
        ("one: int = 1", "one: int = 2", "m.Pair().more or m.Pair().one", 2),
        ("self.one +", "self.one -", "m.Pair(3, 2).both", 1),
        ("max(", "min(", "m.Pair.largest([m.Pair(1), m.Pair(2)])", 1),
        ("* 2", "/ 2", "m.doubled(2)", 1),
    ],
)
def test_a_change_runs_in_the_place_of_the_original(
    module: ModuleType, before: str, after: str, expression: str, is_now: object
) -> None:
    assert eval(expression, {"m": module}) != is_now
    assert Patch(module).apply(SOURCE.replace(before, after))
    assert eval(expression, {"m": module}) == is_now


@pytest.mark.parametrize(("before", "after"), [("int | None", "int & None"), ("LIMIT", "LIMIT")])
def test_a_change_of_what_does_not_run_is_none(module: ModuleType, before: str, after: str) -> None:
    assert not Patch(module).apply(SOURCE.replace(before, after))


def test_a_file_is_found_with_the_tests_that_import_it() -> None:
    module = module_of(ROOT / "src/recd_plugins/planning/prices/cost.py")
    assert module == "recd_plugins.planning.prices.cost"
    assert str(ROOT / "tests/planning/test_cost.py") in mutants.tests_of(module)


def test_operators_conditions_and_numbers_are_turned_once() -> None:
    pytest.importorskip("cosmic_ray", reason="`make mutants` installs cosmic-ray")
    changed = [one.after for one in mutants_of("def f(a):\n    return a < 3 and a + 1\n")]
    assert {"return a <= 3 and a + 1", "return a < 3 or a + 1", "return a < 3 and a - 1"} <= {
        *changed
    }
    assert sum("< 4" in one or "< 2" in one for one in changed) == 2


def test_the_command_says_what_no_test_notices(tmp_path: Path) -> None:
    pytest.importorskip("cosmic_ray", reason="`make mutants` installs cosmic-ray")
    command = [sys.executable, "-m", "benchmarks.mutants", "src/recd_plugins/data/reader/order.py"]
    tests = ["--tests", "tests/data/test_order.py", "--most", "3"]
    found = subprocess.run([*command, *tests], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "changes noticed" in found.stdout

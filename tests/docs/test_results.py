"""RESULTS.md and README's table are what the kept results say; compared commits, what got worse."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from benchmarks import compare
from benchmarks.kept import KeptResult, kept_results
from benchmarks.pages import (
    BEGIN,
    DOCS,
    LIMITS,
    PAGE,
    README,
    headline_rows,
    limit_rows,
    results_page,
    table_rows,
)
from benchmarks.shown import END, TABLES

CONDITIONS = {
    "machine": {"cpu": "one", "cores": 2, "load_average_before": 0.1},
    "versions": {"torch": "2", "torchrec": "1"},
    "settings": {"quick": False},
}


def figure(name: str, value: float, **more: Any) -> dict[str, Any]:
    known = {"unit": "x faster", "target": None, "at_most": False, "spread": 0.05, "met": None}
    return {"name": name, "value": value, **known, **more}


def result(commit: str, *figures: dict[str, Any], date: str = "2026-01-01") -> KeptResult:
    return KeptResult(
        suite="combined", date=date, commit=commit, conditions=CONDITIONS, figures=figures
    )


def test_the_pages_are_drawn_from_what_is_kept() -> None:
    results = kept_results()
    assert PAGE.read_text() == results_page(results), "python -m benchmarks --draw"
    drawn = [(README, BEGIN, headline_rows(results)), (LIMITS, BEGIN, limit_rows(results))]
    drawn += [(DOCS / one.page, one.mark, table_rows(results, one)) for one in TABLES]
    for page, mark, rows in drawn:
        _, found, rest = page.read_text().partition(f"{mark}\n")
        table, _, _ = rest.partition(END)
        assert found
        assert table == "".join(f"{row}\n" for row in rows), "python -m benchmarks --draw"


def test_the_readme_is_short_and_has_no_figure_twice() -> None:
    """A figure of a kept run takes the place of the one that was written down by hand."""
    text = README.read_text()
    assert len(text.splitlines()) < 120
    drawn, _, by_hand = text.partition(BEGIN)[2].partition(END)
    measured = {line.split("|")[-2].strip() for line in drawn.splitlines()[3:]}
    rows = by_hand.partition("## Who it is for")[0]
    assert not [command for command in measured if command.removesuffix(" --quick`") in rows]


def test_a_result_is_kept_beside_those_before(tmp_path: Path) -> None:
    one = result("abc", figure("a step", 2.0))
    paths = [one.write(tmp_path), one.write(tmp_path)]
    assert [path.name for path in paths] == [
        "combined-2026-01-01-abc.json",
        "combined-2026-01-01-abc-2.json",
    ]
    assert kept_results(tmp_path) == [dataclasses.replace(one, figures=[*one.figures])] * 2


def test_a_run_that_goes_on_is_kept_over_what_it_had(tmp_path: Path) -> None:
    path = result("abc", figure("a step", 2.0)).write(tmp_path)
    whole = result("abc", figure("a step", 2.0), figure("another", 3.0))
    assert whole.write(tmp_path, over=path) == path
    assert [one.figures for one in kept_results(tmp_path)] == [[*whole.figures]]


def test_another_gpu_is_another_machine() -> None:
    one = result("abc")
    kinds = {
        dataclasses.replace(one, conditions=CONDITIONS | {"settings": {"device": device}}).processor
        for device in ({"name": "H100"}, {"name": "H200"}, {"kind": "cpu"}, "cpu")
    }
    assert kinds == {"H100, one, 2 cores", "H200, one, 2 cores", "one, 2 cores"}


def test_a_page_has_misses_and_the_trend() -> None:
    before = result("abc", figure("a step", 4.0), figure("bytes", 9.0, target=8.0, met=True))
    after = result(
        "def",
        figure("a step", 4.1),
        figure("bytes", 7.0, target=8.0, met=False),
        date="2026-02-01",
    )
    page = results_page([before, after])
    assert "Of 1 figures with a target, 0 meet it." in page
    assert "| a step | 4.1x faster |  |  |  |  | 5% | as before |" in page
    assert "| bytes | 7x faster |  |  | ≥ 8 | **missed** | 5% | -22% since abc |" in page


def test_a_limit_stands_beside_its_figure() -> None:
    """Of the newest run that has it; older files have none."""
    limit = {"value": 8.0, "of": "bytes over the link"}
    results = [
        result("abc", figure("a step", 4.0, limit=limit, share=0.5), figure("old", 1.0)),
        result("def", figure("a step", 6.0, limit=limit, share=0.75), date="2026-02-01"),
    ]
    assert "| a step | 6x faster | 8 | 75% |  |  | 5% | +50% since abc |" in results_page(results)
    (row,) = list(limit_rows(results))[2:]
    assert row.startswith(
        "| a step | 6x faster | 8 | 75% | bytes over the link | combined, 2026-02"
    )


def test_another_machine_is_no_trend() -> None:
    own = [
        result("abc", figure("a step", 4.0, target=3.9, met=True)),
        result("def", figure("a step", 3.0, target=3.9, met=False), date="2026-02-01"),
    ]
    machine = {"cpu": "Another(R) Processor", "cores": 4, "load_average_before": 0.1}
    there = dataclasses.replace(own[1], conditions={**CONDITIONS, "machine": machine})
    page = results_page([own[0], there])
    assert "| **missed** | 5% |  | 4x faster (met), one, 2 cores |" in page
    assert not [*compare.changes([own[0], there], "abc", "def", quick=False)]
    page = results_page([there, dataclasses.replace(own[1], date="2026-03-01")])
    assert "| **missed** | 5% |  | 3x faster, Another, 4 cores |" in page
    assert "elsewhere |" not in results_page(own)


def test_what_a_run_left_out_stays_as_it_was() -> None:
    before = result("abc", figure("a step", 4.0), figure("another", 1.0))
    page = results_page([before, result("def", figure("a step", 4.0), date="2026-02-01")])
    assert "| another | 1x faster |  |  |  |  | 5% | of 2026-01-01, abc |" in page


@pytest.mark.parametrize(
    ("unit", "after", "worse"),
    [
        ("x faster", 3.0, True),
        ("x faster", 3.9, False),
        ("ms", 3.0, False),
        ("ms", 4.3, True),
        ("NE", 4.3, True),
    ],
)
def test_what_got_worse_between_two_commits_is_found(unit: str, after: float, worse: bool) -> None:
    results = [
        result("abc", figure("a step", 4.0, unit=unit)),
        result("def", figure("a step", after, unit=unit)),
    ]
    (change,) = compare.changes(results, "abc", "def", quick=False)
    assert change.worse is worse
    assert not [*compare.changes(results, "abc", "def", quick=True)]

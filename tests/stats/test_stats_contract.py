"""Value tests: each rule of the `stats` slot, broken once, is named."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from recd_plugins.config import Config
from recd_plugins.data.progress import Progress
from recd_plugins.data.stats_report import StatsReport, StatsTable
from recd_plugins.data.table import Table
from recd_plugins.slots import Context, StatsRecord
from recd_plugins.testing.conformance import ContractBroken, check_record

COUNTER = itertools.count()

GOOD: Mapping[str, Any] = {
    "values": {"rows": 3},
    "tables": [StatsTable(title="rows", columns=["what", "count"], rows=[["rows", "3"]])],
    "figures": {"bar": lambda figure: figure.add_subplot().bar([1], [3])},
}


class Fixed:
    """Finds what its options say."""

    def __init__(self, **report: Any) -> None:
        self._report = report

    def measure(self, table: Table, progress: Progress) -> StatsReport:
        return StatsReport(**{**GOOD, **self._report})


class Drawn(Fixed):
    def measure(self, table: Table, progress: Progress) -> StatsReport:
        return StatsReport(values={"draw": next(COUNTER)})


class Vandal(Fixed):
    def measure(self, table: Table, progress: Progress) -> StatsReport:
        with Path(table.files[0]).open("ab") as file:
            file.write(b"!")
        return super().measure(table, progress)


class Mapped(Fixed):
    def measure(self, table: Table, progress: Progress) -> Any:
        return {"rows": 3}


def record(stats: Fixed) -> StatsRecord[Config]:
    def build(config: Config, context: Context) -> Fixed:
        return stats

    return StatsRecord(name="mine", summary="Mine.", config=Config, build=build)


def test_a_record_that_keeps_the_contract_passes() -> None:
    check_record(record(Fixed()))
    check_record(record(Fixed(tables=(), figures={})))


BROKEN = {
    "must return a StatsReport": Mapped(),
    "must leave the table as it is": Vandal(),
    "must be what JSON takes": Fixed(values={"rows": float("nan")}),
    "must find the same values": Drawn(),
    "table 'rows' must be a text for each column, of which it has 1": Fixed(
        tables=[StatsTable(title="rows", columns=["what"], rows=[["rows", "3"]])]
    ),
    "table 'counts' must be a text": Fixed(
        tables=[StatsTable(title="counts", columns=["count"], rows=[[3]])]  # type: ignore[list-item]
    ),
    "figure 'a/b' must be a word": Fixed(figures={"a/b": GOOD["figures"]["bar"]}),
    "figure 'bar' draws nothing": Fixed(figures={"bar": lambda figure: None}),
}


@pytest.mark.parametrize("rule", BROKEN)
def test_a_record_that_breaks_a_rule_is_reported(rule: str) -> None:
    with pytest.raises(ContractBroken) as caught:
        check_record(record(BROKEN[rule]))
    assert rule in str(caught.value)
    assert str(caught.value).startswith("stats 'mine': ")

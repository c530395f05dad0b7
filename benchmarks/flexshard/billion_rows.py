"""How much time and memory planning takes for 10^9 rows in many tables."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator

from benchmarks.flexshard.memory import K
from benchmarks.flexshard.paper import PRICES
from benchmarks.harness import Figure
from benchmarks.peak_memory import peak_memory
from recd_flexshard.policy.goals import choose
from recd_plugins.planning.access.parametric import zipf
from recd_plugins.planning.prices.ledger import Ledger
from recd_plugins.planning.tables.profiled_table import ProfiledTable

__all__ = ["billion_rows"]


def billion_rows(tables: int = 100, rows: int = 10**7) -> Iterator[Figure]:
    """`goal: auto` over many large tables of several widths."""
    each = {
        f"t{i}": ProfiledTable(
            name=f"t{i}", rows=zipf(rows, 10 + i, 1 + i / 200), dim=64 * (1 + i % 4)
        )
        for i in range(tables)
    }
    begun = time.perf_counter()
    ledger = choose(each, dataclasses.replace(PRICES, reduce="touched", k=K), goal="auto")
    seconds = time.perf_counter() - begun
    note = f"{tables} tables of {rows:,} rows, goal auto"
    yield Figure(name="planning", value=seconds, unit="s", target=60, at_most=True, note=note)
    yield Figure(
        name="planning, peak memory",
        value=peak_memory() / 2**30,
        unit="GiB",
        target=12,
        at_most=True,
        note=f"{note}; the whole process",
    )
    assert ledger.ms <= Ledger.of(each, {}, ledger.prices).ms

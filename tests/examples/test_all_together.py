"""Rung 4 (an example run): each paper sends less than the one before, and learns the same."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest


def test_each_sends_less_and_learns_alike(run_example: Callable[..., str]) -> None:
    printed = run_example("all_together.py", "8")
    assert "scars: size plan, as sharding: flexshard has it" in printed
    found = re.findall(r"^│ (row-wise|\+ \w+) +│(.*)│$", printed, re.MULTILINE)
    rows = {name: [float(cell.replace(",", "")) for cell in row.split("│")] for name, row in found}
    assert list(rows) == ["row-wise", "+ RecD", "+ FlexShard", "+ SCARS"], printed
    plain, recd, flexshard, scars = rows.values()
    assert plain[1] > 3 * recd[1]  # MB through all-to-alls
    assert recd[1] > 4 * flexshard[1]
    assert flexshard[1] >= scars[1]
    # Equal but for the order in which floats are added; hot batches have other samples, too.
    for losses in (recd[3:], flexshard[3:]):
        assert losses == pytest.approx(plain[3:], abs=2e-6)
    assert scars[4] == pytest.approx(plain[4], rel=0.02)

"""Rung 4 (an example run): RecD while training sends less, needs less and learns the same."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest


def test_both_sides_learn_alike_and_recd_saves(run_example: Callable[..., str]) -> None:
    printed = run_example("recd_train.py")
    rows = re.findall(r"^│ (plain KJT|RecD) +│(.*)│$", printed, re.MULTILINE)
    assert [name for name, _ in rows] == ["plain KJT", "RecD"], printed
    plain, ours = ([float(cell.replace(",", "")) for cell in row.split("│")] for _, row in rows)
    assert plain[1] > 5 * ours[1]  # MB through all-to-alls
    assert plain[2] > ours[2]  # MiB
    # Equal but for the order in which floats are added, over 8 steps.
    assert ours[3:] == pytest.approx(plain[3:], abs=1e-4)

"""Rung 4 (an example run): SCARS sends less and learns the same as TorchRec alone."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.mark.parametrize("log", ["made up", "real"])
def test_a_cache_sends_less_and_learns_alike(
    log: str, real_data: Callable[[str], Path], run_example: Callable[..., str], tmp_path: Path
) -> None:
    logs = [] if log == "made up" else [str(real_data("criteo/kaggle_8k.tsv"))]
    printed = run_example("scars.py", "8", *logs)
    assert re.search(r"lookups of the hottest rows: .*1000: '\d\d%'", printed)
    assert (tmp_path / "scars.png").read_bytes().startswith(b"\x89PNG")
    rows = re.findall(r"^│ (TorchRec|SCARS) +│(.*)│$", printed, re.MULTILINE)
    assert [name for name, _ in rows] == ["TorchRec", "SCARS"], printed
    # Of each: ms, MB through all-to-alls and others, losses.
    plain, ours = ([float(cell.replace(",", "")) for cell in row.split("│")] for _, row in rows)
    assert plain[1] > 2 * ours[1]  # MB through all-to-alls
    assert sum(plain[1:3]) > 1.5 * sum(ours[1:3])  # and with the replicas' gradients
    # Equal but for the order in which floats are added, in each of the steps.
    assert ours[3:] == pytest.approx(plain[3:], abs=2e-5)

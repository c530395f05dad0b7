"""Rung 4 (an example run): SCARS sends less and learns the same as TorchRec alone."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "scars.py"


def run(folder: Path, *arguments: str) -> tuple[list[float], list[float]]:
    """The rows of the table: ms, MB through all-to-alls and others, losses."""
    command = [sys.executable, str(EXAMPLE), *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert re.search(r"lookups of the hottest rows: .*1000: '\d\d%'", done.stdout)
    assert (folder / "scars.png").read_bytes().startswith(b"\x89PNG")
    rows = re.findall(r"^│ (TorchRec|SCARS) +│(.*)│$", done.stdout, re.MULTILINE)
    assert [name for name, _ in rows] == ["TorchRec", "SCARS"], done.stdout
    plain, ours = ([float(cell.replace(",", "")) for cell in row.split("│")] for _, row in rows)
    return plain, ours


@pytest.mark.parametrize("log", ["made up", "real"])
def test_a_cache_sends_less_and_learns_alike(
    log: str, real_data: Callable[[str], Path], tmp_path: Path
) -> None:
    arguments = ["12"] if log == "made up" else ["12", str(real_data("criteo/kaggle_8k.tsv"))]
    plain, ours = run(tmp_path, *arguments)
    assert plain[1] > 2 * ours[1]  # MB through all-to-alls
    assert sum(plain[1:3]) > 1.5 * sum(ours[1:3])  # and with the replicas' gradients
    # Equal but for the order in which floats are added, in each of the steps.
    assert ours[3:] == pytest.approx(plain[3:], abs=2e-5)


def test_it_stays_thin() -> None:
    assert len(EXAMPLE.read_text().splitlines()) < 60

"""Rung 4 (an example run): FlexShard sends less and learns the same as row-wise."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "flexshard.py"


def test_replicas_send_less_and_learn_alike(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLE), "12"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert re.search(r"lookups of the hottest rows: .*1000: '\d\d%'", done.stdout)
    assert "tier plan: goal auto; 2 nodes of 2 ranks" in done.stdout
    rows = re.findall(r"^│ (row-wise|FlexShard) +│(.*)│$", done.stdout, re.MULTILINE)
    assert [name for name, _ in rows] == ["row-wise", "FlexShard"], done.stdout
    plain, ours = ([float(cell.replace(",", "")) for cell in row.split("│")] for _, row in rows)
    assert plain[1] > 3 * ours[1]  # MB through all-to-alls
    assert sum(plain[1:3]) > 2 * sum(ours[1:3])  # and with the replicas' gradients
    # Equal but for the order in which floats are added, over 12 steps; six digits are shown.
    assert ours[3:] == pytest.approx(plain[3:], abs=2e-6)


@pytest.mark.parametrize("steps", ["7", "x", "-1"])
@pytest.mark.parametrize("name", ["flexshard.py", "scars.py"])
def test_too_few_steps_are_one_message(name: str, steps: str, tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLE.with_name(name)), steps]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert done.stderr.startswith(f"{steps}: say 8 steps at least")


def test_it_stays_thin() -> None:
    assert len(EXAMPLE.read_text().splitlines()) < 60

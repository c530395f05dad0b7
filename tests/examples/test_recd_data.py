"""Rung 4 (an example run): RecD's data side, as a user starts it, saves something at each step."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "recd_data.py"


def test_every_step_saves(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    steps = dict(re.findall(r"^(O\d) .* ([\d.]+)x$", done.stdout, re.MULTILINE))
    assert list(steps) == ["O1", "O2", "O3", "O4"], done.stdout
    assert all(float(saved) > 1 for saved in steps.values()), done.stdout
    assert "60,000 requests -> 60,000 samples (0 duplicates)" in done.stdout
    assert re.search(r"samples a session, in the table +1\d\.\d\d", done.stdout)


def test_it_stays_thin() -> None:
    assert len(EXAMPLE.read_text().splitlines()) < 60

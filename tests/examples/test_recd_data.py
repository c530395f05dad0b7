"""Rung 4 (an example run): RecD's data side, as a user starts it, saves something at each step."""

from __future__ import annotations

import re
from collections.abc import Callable


def test_every_step_saves(run_example: Callable[..., str]) -> None:
    printed = run_example("recd_data.py")
    steps = dict(re.findall(r"^(O\d) .* ([\d.]+)x$", printed, re.MULTILINE))
    assert list(steps) == ["O1", "O2", "O3", "O4"], printed
    assert all(float(saved) > 1 for saved in steps.values()), printed
    assert "24,000 requests -> 24,000 samples (0 duplicates)" in printed
    assert re.search(r"samples a session, in the table +1\d\.\d\d", printed)

"""Rung 4 (an example run): a log is trained while it is written, to its end."""

from __future__ import annotations

import re
from collections.abc import Callable


def test_each_sample_is_trained_once(run_example: Callable[..., str]) -> None:
    printed = run_example("growing_log.py", "3000")
    assert re.findall(r"^period (\d):", printed, re.MULTILINE) == [*"012345"]
    trained = re.search(r"^([\d,]+) samples trained", printed, re.MULTILINE)
    assert trained is not None
    assert 2_500 < int(trained[1].replace(",", "")) < 3_000  # the others are held out

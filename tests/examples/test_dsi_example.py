"""Rung 4 (an example run): examples/dsi.py lays a table out anew and transforms its batches."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest


@pytest.mark.slow
def test_the_example_reads_less_and_transforms(run_example: Callable[..., str]) -> None:
    shown = run_example("dsi.py", "2000")
    assert "f3_pairs, f17_f31, dense_0_bucket of 512 samples" in shown
    factor = re.search(r"([\d.]+)x fewer ids of f3 are transformed", shown)
    assert factor is not None
    assert float(factor[1]) > 1
    assert re.search(r"the chain is [\d,]+ bytes of JSON, [0-9a-f]{12}", shown)

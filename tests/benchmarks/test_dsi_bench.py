"""Rung 3 (small runs): DSI's figures are of what they say, on small data."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.dsi.layouts import flattening, reordering, striping
from benchmarks.dsi.over_s3 import over_s3
from benchmarks.dsi.transforms import DENSE, IN_PLACE, NEW, transforms


@pytest.mark.slow
def test_each_figure_is_there_and_layouts_are_counted(tmp_path: Path) -> None:
    against, unique = transforms(64, 1)
    assert against.target == 50
    assert all(f"{name} " in against.note for name in (*IN_PLACE, *NEW, *DENSE))
    assert unique.target == pytest.approx(0.9 * 8)
    (flat,) = flattening(tmp_path / "maps", 1, rows=200, features=50)
    assert flat.target == 3
    assert flat.value > 0
    ios, read = reordering(tmp_path / "order", rows=200, columns=40, wanted=8)
    assert (ios.met, read.met) == (True, True)
    assert "foretells 2" in ios.note
    assert ios.share == 1
    assert read.share is not None
    assert 0.9 < read.share <= 1
    assert unique.limit is not None
    assert unique.limit.value == pytest.approx(8)
    stripes = striping(tmp_path / "stripes", 1, rows=400, columns=8, wanted=2)
    assert "20 and 2 I/Os" in stripes.note
    whole, layout = over_s3(tmp_path / "s3", 1, rows=400, columns=40, wanted=8)
    assert (whole.target, layout.target) == (3, None)
    assert "18, 4 and 4 requests" in whole.note

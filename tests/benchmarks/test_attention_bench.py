"""Rung 4 (a run): the attention suite measures, and its sides compute the same."""

from __future__ import annotations

import pytest

from benchmarks.attention import compare_all, target_grid


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.usefixtures("one_thread")
def test_every_comparison_on_a_small_batch() -> None:
    grid = target_grid([1, 20], [1, 30], samples=60, rounds=1, values=256)
    report = compare_all(rows=8, samples=32, rounds=2, grid=grid)
    figures = {figure.name: figure for figure in report.figures}
    for baseline in ("padded + mask", "nested SDPA"):
        figure = figures[f"jagged attention: ours against {baseline}"]
        assert figure.target == 6.0
        assert figure.met == (figure.value >= 6.0)
    assert len(figures) == len(report.figures) == 9
    assert all(figure.value > 0 for figure in figures.values())
    assert report.settings["threads"] == 1

"""Value tests: how far a prediction is off, and where figure 6 puts it."""

from __future__ import annotations

import pytest
from matplotlib.figure import Figure

from benchmarks.flexshard.observed import Observed, draw_observed, worst

PLANS = [
    Observed(plan="row-wise", predicted=100, observed=104),
    Observed(plan="2-tier", predicted=50, observed=50),
    Observed(plan="3-tier", predicted=21, observed=20),
]


def test_the_worst_prediction_is_the_one_furthest_off() -> None:
    assert worst(PLANS).plan == "3-tier"
    assert worst(PLANS).error == pytest.approx(0.05)
    assert PLANS[1].error == 0


def test_figure_6_compares_reductions_against_the_baseline() -> None:
    figure = Figure()
    draw_observed(figure, PLANS, what="bytes between nodes", baseline="row-wise")
    (axes,) = figure.axes
    diagonal, two, three = axes.lines
    assert list(diagonal.get_xdata()) == list(diagonal.get_ydata())
    assert list(two.get_xdata()) == [50]
    assert list(two.get_ydata()) == [pytest.approx(100 * (1 - 50 / 104))]
    assert list(three.get_xdata()) == [79]
    assert "5.0%" in axes.get_title()

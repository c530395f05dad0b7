"""Rung 4 (runs on two ranks): deduplication changes no loss; curves become figures, a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.accuracy import DATASETS, ORDERS, AccuracyCurve, Run, compare, draw, trained
from recd_plugins.testing.gloo import GlooPool

SMALL: dict[str, Any] = {
    **DATASETS["sessions"],
    "model": {"use": "sequence_dlrm", "embedding_dim": 8, "bottom": [16], "top": [16]},
    "train": {"batch_size": 128},
}


def test_deduplication_changes_nothing_but_the_order_of_sums(
    gloo_pool: GlooPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(DATASETS, "sessions", SMALL)
    curves = trained(tmp_path, gloo_pool, ["sessions"], [0], steps=2)
    assert len(curves) == 2 * len(ORDERS)
    for order in ORDERS:
        plain, ours = (curves[Run("sessions", order, dedup, 0)] for dedup in (False, True))
        for kind in (0, 1):
            # Over 2 steps; training makes the rounding errors of sums grow.
            assert ours[kind].gap(plain[kind]) < 1e-6
    figures = {figure.name: figure for figure in compare(curves)}
    for order in ORDERS:
        assert figures[f"sessions, {order}: largest difference of loss, IKJT and KJT"].met
    shown = figures["sessions, clustered: AUC on later sessions"]
    assert (shown.target, shown.baseline) != (None, None)
    draw(curves, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_a_gap_is_the_largest_difference_of_losses() -> None:
    ours = AccuracyCurve([5, 10], [0.5, 0.4], [1.0, 0.9], [0.5, 0.6])
    theirs = AccuracyCurve([5, 10], [0.5, 0.25], [1.0, 0.8], [0.5, 0.7])
    assert ours.gap(theirs) == pytest.approx(0.15)

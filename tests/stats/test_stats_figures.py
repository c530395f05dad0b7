"""Value tests: figures show what was measured; the command on generated and real tables."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from brute_force import Sample, table_of
from matplotlib.figure import Figure
from typer.testing import CliRunner

from recd_dedup.stats.measure import SessionStats, SessionStatsConfig
from recd_plugins.cli.main import app
from recd_plugins.data.progress import silent
from recd_plugins.data.stats_report import StatsReport

PLUGIN = """
from recd_dedup.stats.measure import SessionStatsConfig, build_session_stats
from recd_plugins import hookimpl
from recd_plugins.slots import StatsRecord

@hookimpl
def recd_stats():
    return [StatsRecord(name="sessions", summary="Repetition.", config=SessionStatsConfig,
                        build=build_session_stats)]
"""

SAMPLES: list[Sample] = [
    (session, {"likes": [session, 2, 3], "shares": [], "item": [at % 50]})
    for at, session in enumerate([1, 2, 1, 3, 1, 2, 1, 4])
]


@pytest.fixture
def report(tmp_path: Path) -> StatsReport:
    config = SessionStatsConfig(batch_size=4)
    table = table_of(tmp_path / "table", SAMPLES)
    return SessionStats(config, tmp_path / "scratch").measure(table, silent)


def drawn(report: StatsReport, name: str) -> Figure:
    figure = Figure(layout="constrained")
    report.figures[name](figure)
    figure.canvas.draw()  # what savefig does: warnings are errors
    return figure


def test_the_histograms_hold_every_session(report: StatsReport) -> None:
    table, batch = drawn(report, "samples_per_session").axes
    bars = {round(bar.get_x() + 0.5): bar.get_height() for bar in table.patches}
    assert {size: share for size, share in bars.items() if share} == {1: 50, 2: 25, 4: 25}
    assert "mean 2.00" in table.get_title(loc="left")
    # Batches hold the sessions 1 2 1 3 and 1 2 1 4: of six, two have two samples.
    shares = {round(bar.get_x() + 0.5): bar.get_height() for bar in batch.patches}
    assert shares[1] == pytest.approx(400 / 6)
    assert shares[2] == pytest.approx(200 / 6)
    assert "batch of 4" in batch.get_title(loc="left")
    for axes in (table, batch):
        assert axes.get_xlabel() == "samples of a session"
    assert table.get_ylabel() == "sessions (%)"


def test_the_bars_are_shares_as_wide_as_bytes_and_sorted(report: StatsReport) -> None:
    for axes, share in zip(drawn(report, "duplicates").axes, ("exact", "partial"), strict=True):
        features = report.values["features"]
        heights = [bar.get_height() for bar in axes.patches]
        assert heights == sorted((100 * one[share] for one in features), reverse=True)
        widths = {round(bar.get_width(), 6) for bar in axes.patches}
        assert widths == {75.0, 25.0, 0.0}  # 3 ids, 1 id, none
        assert sum(bar.get_width() for bar in axes.patches) == pytest.approx(100)
        assert axes.get_xlabel().endswith("(%)")
        (line,) = axes.lines
        assert np.array(line.get_ydata()).max() == pytest.approx(50)  # S = 2


@pytest.mark.parametrize("size", [1, 2, 3, 5000])
def test_any_largest_session_has_its_bin(size: int, tmp_path: Path) -> None:
    lists = {"likes": [1], "shares": [2], "item": [3]}
    table = table_of(tmp_path / "table", [(9, lists)] * size, rows_per_stripe=1000)
    stats = SessionStats(SessionStatsConfig(), tmp_path)
    table_axes, _ = drawn(stats.measure(table, silent), "samples_per_session").axes
    assert sum(bar.get_height() for bar in table_axes.patches) == pytest.approx(100)


def recd(*arguments: str) -> Any:
    result = CliRunner().invoke(app, ["data", *arguments, "--json"])
    assert result.exit_code == 0, (result.output, result.exception)
    return json.loads(result.stdout)


def prepared(folder: Path, dataset: Mapping[str, Any]) -> Any:
    """The `sessions` measure of the dataset's train table, by the command alone."""
    (folder / "session_measure.py").write_text(PLUGIN)
    registry = folder / "registry.yaml"
    registry.write_text(
        json.dumps(
            {
                "plugins": ["recd_dlrm", "./session_measure.py"],
                "folder": str(folder / "data"),
                "dataset": dict(dataset),
            }
        )
    )
    table = recd("prepare", "-r", str(registry))["train"]["path"]
    found = recd("stats", table, "-r", str(registry), "--figures", str(folder / "figures"))
    assert [Path(path).name for path in found["figures"]] == [
        "sessions-samples_per_session.png",
        "sessions-duplicates.png",
    ]
    assert all(Path(path).stat().st_size > 10_000 for path in found["figures"])
    return found["stats"]["sessions"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "session_measure", raising=False)
    return tmp_path


@pytest.mark.slow
def test_generated_sessions_repeat_as_their_config_says(folder: Path) -> None:
    found = prepared(folder, {"use": "sessions", "samples": 20_000, "concurrent_sessions": 2_000})
    features = {feature["name"]: feature for feature in found["features"]}
    for name, stay in {"user_id": 1.0, "user_topics": 0.95, "history": 0.9}.items():
        assert features[name]["stay"] == pytest.approx(stay, abs=0.01)
    assert features["item"]["stay"] < 0.1
    groups = found["together"]["groups"]
    assert ["history", "history_category"] in groups
    assert ["user_topics", "user_brands"] in groups


@pytest.mark.parametrize("history", ["frozen", "growing"])
@pytest.mark.slow
def test_real_histories_repeat_as_they_were_made(
    history: str, folder: Path, real_data: Callable[[str], Path]
) -> None:
    path = str(real_data("ml100k/ml-100k.inter"))
    found = prepared(folder, {"use": "movielens", "path": path, "history": history})
    features = {feature["name"]: feature for feature in found["features"]}
    most = found["duplicates"]["most"]
    assert features["user"]["exact"] == pytest.approx(most)
    assert features["item"]["exact"] == 0
    if history == "frozen":  # at the session's start
        assert features["history"]["stay"] == 1
        assert features["history"]["exact"] == pytest.approx(most)
    else:  # by the item before
        assert features["history"]["stay"] < 0.1
        assert features["history"]["exact"] < 0.1
        assert features["history"]["partial"] > 0.85

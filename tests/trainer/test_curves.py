"""Value tests: what runs have logged comes back as rows and curves; then `recd report`."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from typer.testing import CliRunner

from recd_plugins.cli.main import app
from recd_plugins.errors import DataError
from recd_plugins.trainer.measure.breakdown import PARTS
from recd_plugins.trainer.measure.metrics import Metrics
from recd_plugins.trainer.measure.run_log import Curve, read_run
from recd_plugins.trainer.measure.runs_compared import draw_curves, row, spread
from recd_plugins.trainer.measure.step_cost import StepCost
from recd_plugins.trainer.run_report import RunReport

COST = StepCost(
    steps=20,
    step_ms=12.5,
    data_wait=0.1,
    dedupe_factor=3.5,
    peak_memory_mib=512,
    traffic={"all_to_all": {"ids": 2**20, "forward": 3 * 2**20}, "all_reduce": {"backward": 7}},
)


def write_run(folder: Path, *, ended: bool = True, parts: bool = False) -> Path:
    """A run of 20 steps, evaluated twice; the second line of its AUC is not defined."""
    report = RunReport(folder, speaks=True, steps=20)
    for step in (10, 20):
        trained = Metrics(loss=1 / step, ne=0.9, auc=0.6, samples=64)
        report.metrics("train", step, dataclasses.asdict(trained) | {"samples_per_second": 100.0})
        report.values("cost", step, dataclasses.asdict(COST))
        auc = 0.75 if step == 10 else float("nan")
        tested = Metrics(loss=2 / step, ne=0.8, auc=auc, samples=64)
        report.metrics("test", step, dataclasses.asdict(tested))
    summary = {"samples_per_second": 123.0, "cost": dataclasses.asdict(COST), "parts_ms": None}
    if parts:
        summary["parts_ms"] = dict.fromkeys(PARTS, 1.0)
    report.close(summary)
    if not ended:
        (folder / "summary.json").unlink()
    return folder


def test_a_run_comes_back_as_it_was_logged(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "first"))
    assert run.name == "first"
    assert run.curve("train", "loss") == Curve(steps=[10, 20], values=[0.1, 0.05])
    assert run.curve("test", "auc") == Curve(steps=[10], values=[0.75])
    assert run.curve("profile", "data") == Curve(steps=[], values=[])
    assert row(run) == {
        "steps": 20,
        "loss": 0.05,
        "test_loss": 0.1,
        "test_ne": 0.8,
        "test_auc": 0.75,
        "samples_per_second": 123.0,
        "step_ms": 12.5,
        "dedupe_factor": 3.5,
        "collectives_mib": 4 + 7 / 2**20,
        "all_to_all_mib": 4.0,
        "peak_memory_mib": 512.0,
        "reading_ms": None,
    }


def test_a_run_that_has_not_ended_has_curves_alone(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "running", ended=False)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "st')  # being written
    run = read_run(folder, "mine")
    assert run.name == "mine"
    assert len(run.curve("train", "loss").steps) == 2
    assert row(run)["loss"] == 0.05
    assert row(run)["step_ms"] is None


def test_what_is_no_run_is_reported(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"holds no metrics\.jsonl, so no run\. Name a folder"):
        read_run(tmp_path)
    with pytest.raises(DataError, match=r"plan\.json: there is no such path\. Name a folder"):
        read_run(tmp_path / "plan.json")
    (tmp_path / "metrics.jsonl").write_text("{\n")
    with pytest.raises(DataError, match="is damaged"):
        read_run(tmp_path)


def test_each_run_is_a_line_in_each_panel(tmp_path: Path) -> None:
    runs = [read_run(write_run(tmp_path / name)) for name in ("one", "two")]
    figure = Figure()
    draw_curves(runs, figure)
    assert [axes.get_title() for axes in figure.axes] == ["training loss", "test loss", "test AUC"]
    for axes in figure.axes:
        assert [line.get_label() for line in axes.lines] == ["one", "two"]
    assert list(figure.axes[0].lines[1].get_ydata()) == [0.1, 0.05]
    empty = Figure()
    draw_curves([], empty)
    assert not empty.axes


def test_a_single_evaluation_is_a_value_on_axes_that_mean_something(tmp_path: Path) -> None:
    """Runs that agree show through each other, as dots and as lines."""
    runs = []
    for name in ("one", "two"):
        report = RunReport(tmp_path / name, speaks=True, steps=20)
        for step in (10, 20):
            report.metrics("train", step, {"loss": 0.5, "ne": 0.9, "auc": 0.6})
        report.metrics("test", 20, {"loss": 0.6931, "ne": 0.8, "auc": 0.7})
        report.close({})
        runs.append(read_run(tmp_path / name))
    figure = Figure()
    draw_curves(runs, figure)
    for axes, value in zip(figure.axes, (0.5, 0.6931, 0.7), strict=True):
        low, high = axes.get_ylim()
        assert high - low >= 0.02 * value
        one, two = axes.lines
        assert (one.get_linestyle(), two.get_linestyle()) == ("-", "--")
        assert one.get_markersize() > two.get_markersize()
    single = figure.axes[1]
    assert single.get_xlim()[0] == 0
    assert [text.get_text().strip() for text in single.texts] == ["0.6931"]


def test_rates_have_their_spread(tmp_path: Path) -> None:
    """The first line is left out: kernels compile in it."""
    report = RunReport(tmp_path / "run", speaks=True, steps=60)
    for step, rate in enumerate((1.0, 90.0, 100.0, 110.0, 100.0), 1):
        loss = {"loss": 0.5, "ne": 0.9, "auc": 0.6}
        report.metrics("train", step, loss | {"samples_per_second": rate})
    report.close({"samples_per_second": 100.0})
    run = read_run(tmp_path / "run")
    assert spread(run) == {"samples_per_second": (100.0, 100.0)}
    assert spread(read_run(write_run(tmp_path / "short"))) == {}


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["report", *arguments])


def test_the_table_has_large_rates_as_whole_numbers(tmp_path: Path) -> None:
    report = RunReport(tmp_path / "run", speaks=True, steps=60)
    for step, rate in enumerate((1.0, 9123.0, 10_088.0, 12_940.0, 13_000.0), 1):
        loss = {"loss": 0.5, "ne": 0.9, "auc": 0.6}
        report.metrics("train", step, loss | {"samples_per_second": rate})
    report.close({"samples_per_second": 10_088.0})
    result = invoke(str(tmp_path / "run"), "--out", str(tmp_path / "report.html"))
    assert result.exit_code == 0, result.output
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in result.output.split("\n")]
    assert ["samples/s", "10,088"] in cells
    page = (tmp_path / "report.html").read_text()
    assert all(cell in page for name, cell in filter(None, cells) if name != "quartiles")
    (between,) = (cell[1] for cell in cells if cell and cell[0] == "quartiles")
    assert re.fullmatch(r"[\d,]+ to 1[23],\d{3}", between)


def test_the_command_writes_page_and_figure(tmp_path: Path) -> None:
    write_run(tmp_path / "one")
    write_run(tmp_path / "two")
    out, figure = tmp_path / "pages/report.html", tmp_path / "figures/curves.png"
    runs = [f"plain={tmp_path / 'one'}", str(tmp_path / "two")]
    result = invoke(*runs, "--out", str(out), "--figure", str(figure), "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    assert found["page"] == str(out)
    assert list(found["runs"]) == ["plain", "two"]
    assert found["runs"]["two"]["dedupe_factor"] == 3.5
    assert "<svg" in out.read_text()
    assert figure.read_bytes().startswith(b"\x89PNG")
    shown = invoke(*runs, "--out", str(out)).output
    assert re.search(r"test AUC +│ +0\.7500 │ +0\.7500", shown)


def test_a_folder_without_a_run_is_a_users_mistake(tmp_path: Path) -> None:
    result = invoke(str(tmp_path), "--out", str(tmp_path / "report.html"))
    assert result.exit_code == 2
    assert not (tmp_path / "report.html").exists()

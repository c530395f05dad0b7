"""Value tests, and one run: console, metrics.jsonl, TensorBoard and summary say the same."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import io
import json
import math
import os
import re
import shutil
import signal
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from full_disk import files_of_at_most
from probe_plugin import probe_registry
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from recd_plugins.errors import DataError, RecdError
from recd_plugins.notices import NoticeWarning
from recd_plugins.stack import load
from recd_plugins.storage.whole_file import of_path
from recd_plugins.testing.batches import random_table
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.testing.probe import SCHEMA
from recd_plugins.trainer.checkpoints.checkpoint import ReachedState
from recd_plugins.trainer.measure.metrics import Metrics
from recd_plugins.trainer.run_folder import naming_lost_folder
from recd_plugins.trainer.run_report import RunReport


def metrics(step: int, rate: float | None = None) -> dict[str, float]:
    found = dataclasses.asdict(Metrics(loss=1 / step, ne=0.9, auc=0.75, samples=64))
    return found if rate is None else found | {"samples_per_second": rate}


def lines(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def report(run: Path, *, steps: int = 100, start: int = 0, speaks: bool = True) -> RunReport:
    reached = ReachedState(step=start, loader={}) if start else None
    return RunReport(run, speaks=speaks, steps=steps, reached=reached)


def test_metrics_are_reported_everywhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_report = report(tmp_path / "run")
    run_report.metrics("train", 5, metrics(5, 1234.5))
    run_report.metrics("test", 5, metrics(4))
    run_report.close({"step": 5})
    train, test = lines(tmp_path / "run")
    same = {"step": 5, "ne": 0.9, "auc": 0.75, "samples": 64}
    assert train == {"kind": "train", "loss": 0.2, "samples_per_second": 1234.5, **same}
    assert test == {"kind": "test", "loss": 0.25, **same}
    first, second = capsys.readouterr().out.splitlines()
    assert re.fullmatch(
        r"train step   5/100  loss 0\.2000  NE 0\.9000  AUC 0\.7500 +1,234 samples/s  \d:\d\d left",
        first,
    )
    assert second == "test  step   5/100  loss 0.2500  NE 0.9000  AUC 0.7500"
    assert json.loads((tmp_path / "run/summary.json").read_text()) == {"step": 5}


def test_a_full_disk_behind_the_output_is_named_as_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    run_report = report(tmp_path / "run")
    with monkeypatch.context() as patched:
        patched.setattr("sys.stdout", Full())
        with pytest.raises(OSError, match="standard output"), of_path(tmp_path):
            run_report.say("a line")
    run_report.close({})


def test_lines_that_the_disk_has_no_room_for_end_a_run_or_are_left_out(tmp_path: Path) -> None:
    """None is left torn: a resumed run would read no line behind it."""
    for on_full in ("stop", "go_on"):
        run = tmp_path / on_full
        run_report = RunReport(run, speaks=True, steps=9, on_full=on_full)
        run_report.values("mine", 1, {"text": "a line"})
        size = (run / "metrics.jsonl").stat().st_size
        with files_of_at_most(size + 20):
            if on_full == "stop":
                says = r"metrics\.jsonl: the disk has no room for it \(File too large\)\. Make room"
                with pytest.raises(RecdError, match=says):
                    run_report.values("mine", 2, {"text": "another"})
                assert (run / "metrics.jsonl").stat().st_size == size
            else:
                with pytest.warns(NoticeWarning, match=r"metrics\.jsonl: .*: lines are left out"):
                    run_report.values("mine", 2, {"text": "another"})
        run_report.values("mine", 3, {"text": "there is room again"})
        run_report.close({"step": 3})
        assert [line["step"] for line in lines(run)] == [1, 3]
        assert run_report.lines == 2


def test_a_metric_of_a_callback_that_has_no_value_is_undefined(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_report = report(tmp_path / "run")
    run_report.metrics("test", 5, {**metrics(4), "mine": None})
    run_report.close({"step": 5})
    assert capsys.readouterr().out.endswith("AUC 0.7500  mine undefined\n")
    assert lines(tmp_path / "run")[0]["mine"] is None


def test_what_callbacks_leave_is_json_however_deep_a_number_that_is_none_lies(
    tmp_path: Path,
) -> None:
    run_report = report(tmp_path / "run")
    run_report.values("mine", 5, {"each": [{"share": math.nan}]})
    run_report.close({"step": 5, "mine": {"least": math.inf, "rates": (0.5, math.nan)}})
    assert lines(tmp_path / "run")[0]["each"] == [{"share": None}]
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["mine"] == {"least": None, "rates": [0.5, None]}


def steps_on_tensorboard(run: Path, name: str) -> list[int]:
    events = EventAccumulator(str(run / "tensorboard")).Reload()
    return [event.step for event in events.Scalars(name)]


def test_tensorboard_of_a_resumed_run_has_each_scalar_once(tmp_path: Path) -> None:
    """Also of the step that it goes on from, which was evaluated after its checkpoint was made."""
    run_report = report(tmp_path)
    run_report.metrics("train", 10, metrics(10, 1.0))
    reached = ReachedState(step=10, loader={}, so_far={"lines": run_report.lines})
    run_report.metrics("test", 10, metrics(10))
    run_report.metrics("train", 15, metrics(15, 1.0))
    run_report.close({})
    run_report = RunReport(tmp_path, speaks=True, steps=100, reached=reached, again=True)
    run_report.metrics("test", 10, metrics(10))
    run_report.metrics("train", 15, metrics(15, 1.0))
    run_report.close({})
    assert steps_on_tensorboard(tmp_path, "train/loss") == [10, 15]
    assert steps_on_tensorboard(tmp_path, "test/loss") == [10]


def test_tensorboard_has_every_scalar(tmp_path: Path) -> None:
    run_report = report(tmp_path / "run")
    for step in (5, 10):
        run_report.metrics("train", step, metrics(step, 100.0))
    run_report.close({})
    events = EventAccumulator(str(tmp_path / "run/tensorboard"))
    events.Reload()
    names = ("loss", "ne", "auc", "samples", "samples_per_second")
    assert sorted(events.Tags()["scalars"]) == sorted(f"train/{name}" for name in names)
    assert [(e.step, round(e.value, 6)) for e in events.Scalars("train/loss")] == [
        (5, 0.2),
        (10, 0.1),
    ]


def test_a_line_is_written_when_it_is_reported(tmp_path: Path) -> None:
    """What a killed run has reported stays."""
    run_report = report(tmp_path / "run")
    run_report.metrics("train", 5, metrics(5, 1.0))
    assert [line["step"] for line in lines(tmp_path / "run")] == [5]
    run_report.close({})


def train_on_a_rank(registry: dict[str, Any]) -> dict[str, Any]:
    from recd_plugins.trainer.run import train

    return train(load(registry), torch.device("cpu"))


def test_an_empty_test_split_is_reported_and_not_evaluated(
    tmp_path: Path, gloo_pool: GlooPool, capfd: pytest.CaptureFixture[str]
) -> None:
    registry = probe_registry(tmp_path, steps=2, eval_every=1, log_every=1, checkpoint_every=0)
    random_table(tmp_path / "test", SCHEMA, 0)
    for summary in gloo_pool.run(train_on_a_rank, registry):
        assert summary["finished"]
        assert summary["test"] is None
        assert summary["train"]["samples"] == 16
    printed = capfd.readouterr().out
    assert printed.count("the test split is empty: nothing to evaluate") == 2
    assert [line["kind"] for line in lines(tmp_path / "run")] == ["train", "cost"] * 2


def stopped_as_it_reports(registry: dict[str, Any]) -> dict[str, Any]:
    """On a rank: the summary of a run that is asked to stop as its last files are written."""
    close = RunReport.close

    def late(report: RunReport, summary: Mapping[str, Any]) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        close(report, summary)

    with mock.patch.object(RunReport, "close", late):
        return train_on_a_rank(registry)


def test_a_signal_at_the_end_of_a_run_takes_no_report(tmp_path: Path, gloo_pool: GlooPool) -> None:
    registry = probe_registry(tmp_path, steps=2, log_every=1, checkpoint_every=0)
    gloo_pool.run(stopped_as_it_reports, registry, world_size=1)
    assert json.loads((tmp_path / "run/summary.json").read_text())["finished"]


def signalled_as_it_ends(registry: dict[str, Any]) -> bool:
    """On a rank: a run that is sent signals as it closes its reader; whether the answers to them
    are as before after it."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]

    @contextlib.contextmanager
    def late(loader: Any) -> Iterator[Any]:
        yield loader
        for number in numbers:
            os.kill(os.getpid(), number)

    with mock.patch("recd_plugins.trainer.run.closing", late):
        train_on_a_rank(registry)
    return [signal.getsignal(number) for number in numbers] == before


def test_a_signal_after_the_end_of_a_run_ends_nothing(tmp_path: Path, gloo_pool: GlooPool) -> None:
    registry = probe_registry(tmp_path, steps=2, log_every=1, checkpoint_every=0)
    assert gloo_pool.run(signalled_as_it_ends, registry, world_size=1) == [True]


def loses_its_folder(registry: dict[str, Any], made_anew: bool) -> None:
    """On a rank: a run whose folder is moved before its last files are written."""

    def late(report: RunReport, summary: Mapping[str, Any]) -> None:
        run = Path(summary["run"])
        run.rename(run.with_name("moved"))
        if made_anew:
            run.mkdir()
        (run / "tensorboard/events").open("a")

    with (
        mock.patch.object(RunReport, "close", late),
        pytest.raises(DataError, match="the run's folder was removed, moved or replaced while"),
    ):
        train_on_a_rank(registry)


@pytest.mark.parametrize("made_anew", [False, True])
def test_a_folder_that_a_run_loses_is_named(
    made_anew: bool, tmp_path: Path, gloo_pool: GlooPool
) -> None:
    """The plain error names a file of TensorBoard's that nobody has typed."""
    registry = probe_registry(tmp_path, steps=2, log_every=1, checkpoint_every=0)
    gloo_pool.run(loses_its_folder, registry, made_anew, world_size=1)


def test_a_file_that_tensorboard_cannot_write_is_an_error_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread raises it too, where nobody can catch it."""
    shown: list[type[BaseException]] = []
    monkeypatch.setattr("threading.excepthook", lambda error: shown.append(error.exc_type))
    run_report = report(tmp_path)
    shutil.rmtree(tmp_path / "tensorboard")
    with contextlib.suppress(FileNotFoundError):  # unless its thread takes a while to see it
        run_report.metrics("train", 5, metrics(5))
    with pytest.raises(FileNotFoundError, match="tfevents"):
        run_report.close({})
    other = threading.Thread(target=lambda: 1 / 0)
    other.start()
    other.join()
    assert shown == [ZeroDivisionError]


def test_a_file_that_a_run_misses_in_its_folder_stays_an_error_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), naming_lost_folder(tmp_path):
        (tmp_path / "tensorboard/events").open("a")


def test_other_ranks_are_silent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_report = report(tmp_path / "run", speaks=False)
    run_report.say("anything")
    run_report.metrics("train", 5, metrics(5, 1.0))
    run_report.close({"step": 5})
    assert capsys.readouterr().out == ""
    assert not (tmp_path / "run").exists()


def test_a_new_run_writes_anew(tmp_path: Path) -> None:
    for step in (5, 7):
        run_report = report(tmp_path / "run")
        run_report.metrics("train", step, metrics(step, 1.0))
        run_report.close({})
    assert [line["step"] for line in lines(tmp_path / "run")] == [7]


def test_a_resumed_run_keeps_the_lines_up_to_its_checkpoint(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run_report = report(run)
    for step in (5, 10, 15):
        run_report.metrics("train", step, metrics(step, 1.0))
        run_report.metrics("test", step, metrics(step))
    run_report.close({})
    before = (run / "metrics.jsonl").read_text().splitlines()
    run_report = report(run, start=10)
    run_report.metrics("train", 15, metrics(3, 1.0))
    run_report.close({})
    after = (run / "metrics.jsonl").read_text().splitlines()
    assert after[:4] == before[:4]
    assert [(line["kind"], line["step"]) for line in lines(run)[4:]] == [("train", 15)]
    assert lines(run)[-1]["loss"] == 1 / 3


@pytest.mark.parametrize(
    "torn", ['{"kind": "train", "step": 1', '{"kind"', "", '{"step": 10}', "{}\n"]
)
def test_what_a_kill_left_of_a_line_is_dropped(torn: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run_report = report(run)
    run_report.metrics("train", 5, metrics(5, 1.0))
    run_report.close({})
    whole = (run / "metrics.jsonl").read_text()
    (run / "metrics.jsonl").write_text(whole + torn)
    report(run, start=10).close({})
    assert (run / "metrics.jsonl").read_text() == whole


def test_a_run_that_goes_on_has_no_summary_until_it_ends_again(tmp_path: Path) -> None:
    """Else a job whose ranks are ended in between would show it as its own."""
    report(tmp_path).close({"step": 10})
    report(tmp_path, start=10, speaks=False)
    assert (tmp_path / "summary.json").exists()
    resumed = report(tmp_path, start=10)
    assert not (tmp_path / "summary.json").exists()
    resumed.close({"step": 20})
    assert json.loads((tmp_path / "summary.json").read_text()) == {"step": 20}


def test_a_resumed_run_without_its_lines_begins_them(tmp_path: Path) -> None:
    run_report = report(tmp_path / "run", start=10)
    run_report.metrics("train", 15, metrics(15, 1.0))
    run_report.close({})
    assert [line["step"] for line in lines(tmp_path / "run")] == [15]


def test_the_time_left_counts_from_where_this_run_began(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    run_report = report(tmp_path / "run", steps=100, start=50)
    clock[0] += 30
    run_report.metrics("train", 60, metrics(1, 1.0))  # 10 steps in 30 s, 40 to go
    run_report.close({})
    assert capsys.readouterr().out.rstrip().endswith("2:00 left")

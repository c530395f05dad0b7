"""Example runs: `recd train` on two real ranks, killed, interrupted, resumed, under torchrun."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from shutil import rmtree

import pytest
from forked import TORCHRUN, Forked, run_module
from jobs import (
    below,
    children,
    gone,
    metrics,
    printed,
    ranks_of,
    start,
    train,
    until,
    wait_for_step,
    write_registry,
)

import recd_plugins

pytestmark = pytest.mark.slow

ENDLESS = ("train.steps=100000", "train.eval_every=0")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder whose table is prepared once for all runs."""
    folder = tmp_path_factory.mktemp("job")
    write_registry(folder)
    return folder


@pytest.fixture(scope="module")
def uninterrupted(folder: Path) -> str:
    return train(folder, "train.run=runs/whole")[0]


def test_a_run_tells_what_it_did(folder: Path, uninterrupted: str) -> None:
    run = folder / "runs/whole"
    lines = metrics(folder, "runs/whole")
    assert [(line["kind"], line["step"]) for line in lines] == [
        ("train", 5),
        ("train", 10),
        ("test", 12),
        ("train", 15),
        ("train", 20),
        ("test", 24),
        ("train", 25),
        ("train", 30),
        ("test", 30),
    ]
    assert lines[-1]["samples"] == 256  # the whole test split, padding not counted
    assert lines[-2]["samples"] == 5 * 32 * 2
    assert lines[-1]["loss"] < lines[0]["loss"]
    summary = json.loads((run / "summary.json").read_text())
    assert summary["finished"]
    assert summary["test"]["auc"] == lines[-1]["auc"]
    assert list((run / "tensorboard").glob("events*"))
    # keep_checkpoints is 2 by default
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == [
        "step-00000020",
        "step-00000030",
    ]
    assert "plan: cheapest of" in uninterrupted
    assert "train step 30/30  loss" in uninterrupted
    assert "train, steps 26 to 30" in uninterrupted  # its last line of metrics, not all 30 steps
    assert "samples/s on 2 ranks of 32" in uninterrupted


def test_a_run_warns_of_what_it_does_not_use(folder: Path) -> None:
    unused = ("plugins=[recd_dlrm, recd_scars]", "cache.use=scars", "train.steps=1")
    out, err = train(folder, "train.run=runs/unused", *unused)
    assert "notice: cache: scars is not used: " in out
    assert "notice" not in err
    out, err = train(folder, "--json", "train.run=runs/unused", *unused)
    assert json.loads(out)["step"] == 1
    assert "notice: cache: scars is not used: " in err


def latest_checkpoint(run: Path) -> int:
    """The step of it."""
    return max(
        int(one.name.removeprefix("step-")) for one in (run / "checkpoints").glob("step-????????")
    )


def assert_same_metrics(folder: Path, run: str) -> None:
    """Up to step 30 a run that was ended and resumed has the lines of the one that was not."""
    whole = metrics(folder, "runs/whole")
    lines = [line for line in metrics(folder, run) if line["step"] <= 30]
    assert lines in (whole, whole[:-1])  # only a run that ends there tests at step 30


def test_a_killed_run_resumes_bit_for_bit_under_torchrun(folder: Path, uninterrupted: str) -> None:
    # One worker reads what a rank would; and however late we kill it, it has not come to its end.
    options = ("train.run=runs/killed", "reader.workers=1")
    job = start(folder, *options, "train.steps=100000")
    wait_for_step(folder, "runs/killed", 15, job)
    # A reader's worker for each of two ranks, which is another one in each epoch.
    until(
        lambda: [
            [one for server in children(rank) for one in children(server)] for rank in ranks_of(job)
        ],
        lambda workers: len(workers) == 2 and all(workers),
    )
    started = below(job.pid)
    job.send_signal(signal.SIGKILL)
    assert gone(started)  # nobody trains or reads on without a launcher
    printed(job.done(), code=-signal.SIGKILL)
    steps = f"train.steps={max(30, latest_checkpoint(folder / 'runs/killed') + 1)}"
    recd = [*TORCHRUN, str(Path(recd_plugins.__file__).with_name("__main__.py")), "train"]
    resumed = run_module("torch.distributed.run", *recd, *options, steps, "--resume", folder=folder)
    out, _ = printed(resumed)
    assert "resumed after step " in out
    assert_same_metrics(folder, "runs/killed")


def test_ctrl_c_saves_and_resumes_bit_for_bit(folder: Path, uninterrupted: str) -> None:
    # As by a scheduler that starts the same command again: there is no checkpoint at first.
    job = start(folder, "train.run=runs/stopped", "--resume-or-begin", "train.steps=100000")
    wait_for_step(folder, "runs/stopped", 5, job)
    job.send_signal(signal.SIGINT)
    out, err = printed(job.done())
    assert "stopping after this step; a Ctrl-C from now on kills" in err
    assert "`recd train --resume` goes on" in out
    stopped = latest_checkpoint(folder / "runs/stopped")
    assert f"stopped after step {stopped} of 100000" in out
    steps = f"train.steps={max(30, stopped + 1)}"
    out, _ = train(folder, "train.run=runs/stopped", "--resume-or-begin", steps)
    assert f"resumed after step {stopped}" in out
    assert_same_metrics(folder, "runs/stopped")


def test_a_rank_that_dies_stops_the_job(folder: Path, uninterrupted: str) -> None:
    run = "runs/dead"
    job = start(folder, f"train.run={run}", *ENDLESS)
    wait_for_step(folder, run, 5, job)
    ranks = ranks_of(job)
    os.kill(ranks[1], signal.SIGKILL)
    _, err = printed(job.done(), code=1)  # long before ranks give up a peer that says nothing
    assert "error: rank 1 ended with SIGKILL" in err
    assert gone(ranks)


def test_a_rank_that_raises_shows_its_traceback(folder: Path, uninterrupted: str) -> None:
    plugin = folder / "fails_late.py"
    plugin.write_text(
        """
import torch.distributed as dist
from recd_dlrm.models.dlrm import DlrmConfig, build_dlrm
from recd_plugins import hookimpl
from recd_plugins.errors import nearest
from recd_plugins.slots import ModelRecord

def build(config, context):
    model = build_dlrm(config, context)
    def fail(module, inputs):
        if dist.get_rank() == 1:
            nearest(None, ["a defect of the host's, not of the plugin's"])
    model.register_forward_pre_hook(fail)
    return model

@hookimpl
def recd_model():
    return [ModelRecord(name="fails", summary="", config=DlrmConfig, build=build)]
"""
    )
    (folder / "fails.yaml").write_text(
        "plugins: [recd_dlrm, ./fails_late.py]\n"
        "dataset: {use: sessions, samples: 4096, test_fraction: 0.0625}\n"
        "model: {use: fails, embedding_dim: 8, bottom: [16], top: [16]}\n"
        "sharding: {use: torchrec, search: greedy}\n"
        "train: {batch_size: 32, steps: 10, run: runs/fails, device: cpu}\n"
    )
    _, err = train(folder, "-r", "fails.yaml", code=1)
    assert "error: rank 1 ended with exit code 1; it said:" in err
    assert "TypeError: 'NoneType' object is not iterable" in err


def test_a_plugin_that_raises_ctrl_c_is_named_with_the_latest_checkpoint(
    folder: Path, uninterrupted: str
) -> None:
    (folder / "interrupts.py").write_text(
        """
from recd_plugins import hookimpl
from recd_plugins.api import Callback, CallbackRecord, Config

class Interrupts(Callback):
    def after_step(self, training):
        if training.step == 12 and training.rank == 1:
            raise KeyboardInterrupt

@hookimpl
def recd_callbacks():
    build = lambda config, context: Interrupts()
    return [CallbackRecord(name="interrupts", summary="", config=Config, build=build)]
"""
    )
    options = ("plugins=[recd_dlrm, ./interrupts.py]", "callbacks=[interrupts]")
    _, err = train(folder, "train.run=runs/interrupts", *options, code=2)
    assert "'./interrupts.py' in Interrupts.after_step (interrupts.py:8) raised Keyboard" in err
    assert "`recd train --resume` goes on from runs/interrupts/checkpoints/step-00000010" in err


HEARD = """
import os, runpy, signal, sys, time
from pathlib import Path

kind, *sys.argv[1:] = sys.argv[1:]
if kind == "nohup":
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
hears, speaks = os.pipe() if kind == "pipe" else os.openpty()
if os.fork() == 0:
    os.close(speaks)
    os.set_blocking(hears, False)
    while not Path("leaves").exists():
        try:
            os.read(hears, 1 << 16)
        except BlockingIOError:
            time.sleep(0.01)
    os.close(hears)
    Path("left").touch()
    os._exit(0)
for number in (1, 2):
    os.dup2(speaks, number)
sys.stdout = sys.__stdout__ = os.fdopen(1, "w", closefd=False)
sys.stderr = sys.__stderr__ = os.fdopen(2, "w", closefd=False)
for number in (hears, speaks):
    os.close(number)
runpy.run_module("recd_plugins", run_name="__main__", alter_sys=True)
"""
"""`recd`, whose output goes to a terminal or a pipe until whoever hears it leaves."""


def heard(folder: Path, kind: str, *options: str) -> Forked:
    """`recd train <options>`, with the one who hears it gone, past step 5."""
    (folder / "heard.py").write_text(HEARD)
    for name in ("leaves", "left"):
        (folder / name).unlink(missing_ok=True)
    run = f"runs/{kind}"
    job = Forked("heard", kind, "train", f"train.run={run}", *options, folder=folder)
    wait_for_step(folder, run, 5, job)
    (folder / "leaves").touch()
    until((folder / "left").exists, bool)
    return job


@pytest.mark.parametrize(
    ("kind", "number", "code"),
    [("terminal", signal.SIGHUP, -signal.SIGHUP), ("pipe", signal.SIGINT, 1), ("pipe", None, 1)],
    ids=["closed terminal", "Ctrl-C to tee too", "head"],
)
def test_a_job_that_nobody_hears_any_more_saves_and_resumes_bit_for_bit(
    kind: str, number: int | None, code: int, folder: Path, uninterrupted: str
) -> None:
    rmtree(folder / f"runs/{kind}", ignore_errors=True)
    job = heard(folder, kind, "train.steps=100000", "train.checkpoint_every=0")
    started = below(job.pid)
    if number is not None:
        job.send_signal(number)
    printed(job.done(), code=code)
    assert gone(started)
    stopped = latest_checkpoint(folder / f"runs/{kind}")
    steps = f"train.steps={max(30, stopped + 1)}"
    out, _ = train(folder, f"train.run=runs/{kind}", "--resume", steps)
    assert f"resumed after step {stopped}" in out
    assert_same_metrics(folder, f"runs/{kind}")


def test_a_job_that_ignores_hanging_up_comes_to_its_end(folder: Path, uninterrupted: str) -> None:
    """It waits after step 7 until it was hung up on, so that it cannot have ended before."""
    (folder / "waits.py").write_text(
        """
import time
from pathlib import Path
from recd_plugins import hookimpl
from recd_plugins.api import Callback, CallbackRecord, Config

class Waits(Callback):
    def after_step(self, training):
        while training.step == 7 and not Path("hung-up").exists():
            time.sleep(0.01)

@hookimpl
def recd_callbacks():
    build = lambda config, context: Waits()
    return [CallbackRecord(name="waits", summary="", config=Config, build=build)]
"""
    )
    waits = ("plugins=[recd_dlrm, ./waits.py]", "callbacks=[waits]")
    job = heard(folder, "nohup", *waits, "train.steps=12", "train.eval_every=0")
    for one in (job.pid, *ranks_of(job)):
        os.kill(one, signal.SIGHUP)
    (folder / "hung-up").touch()
    printed(job.done())
    summary = json.loads((folder / "runs/nohup/summary.json").read_text())
    assert (summary["step"], summary["finished"]) == (12, True)

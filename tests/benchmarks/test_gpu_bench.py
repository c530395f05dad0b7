"""Rung 4 (a run): the program for a GPU, tried on the CPU; what fails costs its rows alone."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from forked import run_module

from benchmarks.gpu.__main__ import PARTS, ROOT, main
from benchmarks.gpu.parts import Part, Setting, ran
from benchmarks.harness import Figure
from benchmarks.kept import RESULTS
from recd_plugins.cli import doctor
from recd_plugins.testing.gloo import RanksFailed


def test_parts_run_on_the_cpu() -> None:
    before = set(RESULTS.iterdir())
    parts = ["vbe", "hot-batches", "conversion", "kernels"]
    figures = main(["--device", "cpu", "--quick", "--part", *parts])
    assert len(figures) == 7  # the CPU has no variable-batch form to run
    assert not [one.name for one in figures if one.met is False]
    assert all(math.isfinite(one.value) for one in figures)
    assert figures[0].name == "hot-batches: parity"
    assert set(RESULTS.iterdir()) == before, "what the CPU does is no result"


def test_one_failure_costs_one_row() -> None:
    def fails(setting: Setting) -> Iterator[Figure]:
        yield Figure(name="before", value=1, unit="")
        text = "Traceback\ntorch.AcceleratorError: a reason\nCompile with more to know more.\n"
        raise RanksFailed("f failed on 1 of 1 ranks", {0: text})

    part = Part(name="one", about="", run=fails)
    before, row = ran(part, Setting(device="cpu", quick=True, seconds=1))
    assert (before.name, row.name, row.met) == ("before", "one: runs", False)
    assert row.note == "torch.AcceleratorError: a reason"


def forked(command: list[str], cwd: Path, **_: Any) -> subprocess.CompletedProcess[str]:
    """A program of Python in place of `subprocess.run`."""
    python, option, module, *arguments = command
    assert (python, option) == (sys.executable, "-m")
    done = run_module(module, *arguments, folder=cwd)
    return subprocess.CompletedProcess(command, done.code, done.out, done.err)


def test_what_is_not_timed_runs_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it says is `recd doctor`'s, as each check says it here; the CPU has no `vbe`."""
    monkeypatch.setattr("benchmarks.gpu.__main__.subprocess", SimpleNamespace(run=forked))
    said = {
        "versions": doctor._versions(),
        "packages": doctor._packages(),
        "build": doctor._build(),
        "devices": doctor._devices(),
        "names": doctor._names(),
        "launcher": doctor._launcher(),
        "collectives": "all-to-all and all-reduce over 2 ranks",
        "registry": doctor._registry(ROOT / "registry.yaml").replace(f"{ROOT}/", ""),
    }
    monkeypatch.setattr("os.cpu_count", lambda: 16)
    assert main(["--device", "cpu", "--quick", "--part", "vbe", "doctor"]) == [
        Figure(name=f"doctor: {name}", value=1.0, unit="", target=1, note=text[:200])
        for name, text in said.items()
    ]


def test_without_a_gpu_nothing_runs_unasked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(SystemExit):
        main([])
    assert "recd doctor" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["--device", "cpu", "--part", "nothing"])
    assert "there is no part nothing" in capsys.readouterr().err


def test_parts_fit_ten_minutes_and_have_names_of_their_own() -> None:
    assert len({part.name for part in PARTS}) == len(PARTS)
    assert all(0 < part.seconds <= 120 for part in PARTS)

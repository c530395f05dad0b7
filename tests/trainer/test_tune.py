"""Ladder: value and property tests of the search, then `recd tune batch` as a user starts it."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from forked import Done, run_module
from hypothesis import given
from hypothesis import strategies as st
from jobs import DEADLINE, gone
from probe_plugin import probe_registry
from typer.testing import CliRunner

from recd_plugins.cli.main import app
from recd_plugins.launch.launcher import Failure
from recd_plugins.trainer.tuning.trial_rank import _is_out_of_memory
from recd_plugins.trainer.tuning.trials import Search, Trial, _killed_by_memory, largest_batch

pytestmark = pytest.mark.slow


def search(most: int, *, start: int, limit: int = 10**6, precision: float = 0.05) -> Search:
    """Where every batch up to `most` fits."""
    return largest_batch(
        lambda size: Trial(batch_size=size, fits=size <= most),
        start=start,
        limit=limit,
        precision=precision,
    )


def test_it_doubles_then_bisects() -> None:
    found = search(1000, start=128)
    assert [trial.batch_size for trial in found.trials] == [128, 256, 512, 1024, 768, 896, 960, 992]
    assert found.best == Trial(batch_size=992, fits=True)  # 1024 is within 5% of it
    assert not found.exhausted


def test_it_halves_where_the_first_does_not_fit() -> None:
    found = search(100, start=1024, precision=0.2)
    assert [trial.batch_size for trial in found.trials] == [1024, 512, 256, 128, 64, 96, 112]
    assert found.best is not None
    assert found.best.batch_size == 96
    nothing = search(0, start=8)
    assert [trial.batch_size for trial in nothing.trials] == [8, 4, 2, 1]
    assert nothing.best is None


def test_what_there_is_bounds_it() -> None:
    found = search(10**9, start=64, limit=300)
    assert [trial.batch_size for trial in found.trials] == [64, 128, 256, 300]
    assert found.exhausted
    assert search(10**9, start=512, limit=300).trials == [Trial(batch_size=300, fits=True)]


@given(
    most=st.integers(0, 5000),
    start=st.integers(1, 3000),
    limit=st.integers(1, 4000),
    precision=st.floats(0.001, 0.5),
)
def test_the_largest_is_found_to_the_precision(
    most: int, start: int, limit: int, precision: float
) -> None:
    found = search(most, start=start, limit=limit, precision=precision)
    sizes = [trial.batch_size for trial in found.trials]
    assert len(set(sizes)) == len(sizes)  # nothing is tried twice
    largest = min(most, limit)
    if not largest:
        assert found.best is None
        return
    assert found.best is not None
    best = found.best.batch_size
    assert best <= largest <= max(best, best * (1 + precision))
    assert found.exhausted == (most >= limit)
    assert max(sizes) <= limit


def test_what_shows_that_memory_did_not_suffice() -> None:
    with pytest.raises(RuntimeError) as refused:
        torch.empty(2**60, dtype=torch.uint8)
    assert _is_out_of_memory(refused.value)
    assert _is_out_of_memory(MemoryError())
    assert _is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory."))
    assert not _is_out_of_memory(RuntimeError("Connection closed by peer"))
    assert not _is_out_of_memory(ValueError("cannot allocate memory"))
    assert _killed_by_memory(Failure(0, -signal.SIGKILL, ""))
    assert _killed_by_memory(Failure(0, -signal.SIGABRT, "what(): std::bad_alloc"))
    assert not _killed_by_memory(Failure(0, -signal.SIGABRT, "an assertion"))
    assert not _killed_by_memory(Failure(0, -signal.SIGSEGV, ""))
    assert not _killed_by_memory(Failure(0, 1, "bad_alloc"))


HUNGRY = """
import os
import time
from pathlib import Path
import torch
from probe_plugin import ProbeConfig, build
from recd_plugins import hookimpl
from recd_plugins.slots import ModelRecord

def hungry(config, context):
    model = build(config, context)
    def feed(module, inputs):
        size = len(inputs[0])
        if size == 5:
            raise ArithmeticError("a batch of five")
        if size == 6:
            Path("waiting.part").write_text(str(os.getpid()))
            Path("waiting.part").rename("waiting")
            time.sleep(600)
        # 2 MiB a sample; but of 32 a lot more than a trial is granted.
        torch.ones(size * 2**21 if size < 32 else 3 * 2**29, dtype=torch.uint8)
    model.register_forward_pre_hook(feed)
    return model

@hookimpl
def recd_model():
    return [ModelRecord(name="hungry", summary="", config=ProbeConfig, build=hungry)]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder with a registry on one rank, whose model takes memory by the sample."""
    folder = tmp_path_factory.mktemp("tune")
    (folder / "hungry.py").write_text(HUNGRY)
    values = probe_registry(folder, rows=1100, ranks=1)
    registry = {**values, "plugins": ["./hungry.py"], "model": "hungry"}
    (folder / "registry.yaml").write_text(json.dumps(registry))  # JSON is YAML
    return folder


@pytest.fixture
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In that folder, as a user would be; ranks find the kit's model."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), *sys.path]))
    return folder


OPTIONS = ("tune", "batch", "--steps=1", "--budget=160")


def tune(here: Path, *arguments: str) -> Done:
    return run_module(
        "recd_plugins", *OPTIONS, *arguments, folder=here, environment={"TMPDIR": str(here)}
    )


def test_the_largest_batch_is_found_by_real_trials(here: Path) -> None:
    result = tune(here, "--precision=15", "--json", "train.batch_size=16")
    assert result.code == 0, result.err
    found: dict[str, Any] = json.loads(result.out)
    assert {key: found[key] for key in ("budget_mib", "device", "ranks", "gain")} == {
        "budget_mib": 160.0,
        "device": "cpu",
        "ranks": 1,
        "gain": None,  # the registry deduplicates nothing
    }
    assert list(found["sides"]) == ["plain"]
    fits, refused = found["sides"]["plain"]["trials"]
    assert (fits["batch_size"], fits["fits"]) == (16, True)
    assert 32 <= fits["memory_mib"] <= 160
    assert fits["samples_per_second"] > 0
    assert refused == {
        "batch_size": 32,
        "fits": False,
        "memory_mib": None,
        "samples_per_second": None,
        "ids_per_sample": None,
    }
    assert found["heaviest"] is None
    assert found["sides"]["plain"]["best"] == fits
    last = result.err.splitlines()[-1]
    assert last.split() == ["plain", "32", "out", "of", "memory"]
    assert not list(here.glob("recd-trial-*"))


def test_rows_with_more_ids_than_those_that_were_tried_are_told(here: Path) -> None:
    """The first batches are of stripes without ids; those of the last have 50 a row, of which the
    schema takes 10 for nulls."""
    rows, each = 400, [[1] * 40 + [-1] * 10]
    ids = pa.array([*[[]] * (rows - 50), *each * 50], pa.list_(pa.int32()))
    made = pa.table({"click": pa.array([0, 1] * (rows // 2)), "x": [0.5] * rows, "seen": ids})
    pq.write_table(made, here / "uneven.parquet", row_group_size=50)
    sparse = [{"name": "seen", "num_ids": 9, "missing": [-1]}]
    schema = {"session_id": None, "timestamp": None, "label": "click", "dense": ["x"]}
    registry = json.loads((here / "registry.yaml").read_text())
    registry["dataset"] = {
        "use": "parquet",
        "train": str(here / "uneven.parquet"),
        "test": str(here / "uneven.parquet"),
        "schema": {**schema, "sparse": sparse},
    }
    registry["reader"] = {"use": "local", "shuffle": False}
    (here / "uneven.yaml").write_text(json.dumps(registry))
    asked = ("--registry=uneven.yaml", "--precision=15", "train.batch_size=8")
    result = tune(here, *asked)
    assert result.code == 0, result.err
    where = here / "uneven.parquet"
    assert (
        f"note: samples of the batches that were tried have 0.0 ids, but those of {where}, row "
        "group 7 have 40.0: batches of these would need more memory. To try an epoch's batches of "
        "the size found, pass --steps 25."
    ) in result.out
    result = tune(here, *asked, "--steps=50", "--json")
    assert result.code == 0, result.err
    assert json.loads(result.out)["heaviest"] is None
    registry["plugins"] = ["./hungry.py", "recd_dsi"]
    registry["preprocess"] = [{"use": "first_x", "features": "seen", "n": 30}]
    (here / "uneven.yaml").write_text(json.dumps(registry))
    result = tune(here, *asked)  # the ids behind `preprocess` count
    assert result.code == 0, result.err
    assert f"but those of {where}, row group 7 have 30.0: batches of these would" in result.out


def test_a_trial_that_fails_otherwise_is_an_error(here: Path) -> None:
    result = tune(here, "train.batch_size=5")
    assert result.code == 1
    assert "error: rank 0 ended with exit code 1; it said:" in result.err
    assert "ArithmeticError: a batch of five" in result.err
    assert result.out == ""


def test_a_mistake_is_reported_as_one(here: Path) -> None:
    result = tune(here, "train.batch_size=0")
    assert result.code == 2
    assert "train.batch_size: must be >= 1" in result.err


def test_ctrl_c_leaves_nothing_behind(here: Path) -> None:
    """A trial that would wait for long, and a user who does not; its rank is an interpreter."""
    started: list[int] = []

    def interrupt() -> None:
        ends = time.monotonic() + DEADLINE
        while not (here / "waiting").exists() and time.monotonic() < ends:
            time.sleep(0.05)
        started.append(int((here / "waiting").read_text()))
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    result = CliRunner().invoke(app, [*OPTIONS, "train.batch_size=6"])
    thread.join()
    assert result.exit_code == 130
    assert isinstance(result.exception, SystemExit)
    assert gone(started)
    assert not list(here.glob("recd-trial-*"))

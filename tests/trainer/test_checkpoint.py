"""Two gloo ranks: what a run saves, another goes on from, or gets the reason why it cannot."""

from __future__ import annotations

import errno
import io
import json
import os
import pickletools
import random
import re
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

import callback_plugin
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from full_disk import files_of_at_most
from jobs import REGISTRY, metrics

import recd_plugins
from recd_plugins.api.batch import Batch, read_batch
from recd_plugins.api.training import checkpoint_reader
from recd_plugins.errors import DataError, RecdError, RegistryError
from recd_plugins.stack import load
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.trainer.assemble import assemble
from recd_plugins.trainer.checkpoints.checkpoint import Checkpoints, NotFiniteError
from recd_plugins.trainer.checkpoints.files import (
    check_whole,
    checkpoint_of,
    digest_of,
    read_digest,
    write_digest,
)
from recd_plugins.trainer.checkpoints.registry_before import check_registry
from recd_plugins.trainer.checkpoints.reshard import reshard
from recd_plugins.trainer.checkpoints.step_folders import checkpoints_in


def run(folder: str, overrides: list[str], resume: bool = False) -> dict[str, Any] | str:
    """On a rank: train; the summary, or the message of a user's error."""
    from recd_plugins.trainer.run import train

    settings = [f"folder={folder}/data", f"train.run={folder}/run", *overrides]
    source = Path(folder) / "registry.yaml"
    try:
        return train(load(source, settings), torch.device("cpu"), resume=resume)
    except RecdError as error:
        return f"{type(error).__name__}: {error}"


SHORT = ["train.steps=10", "train.eval_every=0", "train.checkpoint_every=5"]


@pytest.fixture(scope="module")
def runs(gloo_pool: GlooPool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With runs of `SHORT`, which tests copy, by ranks and steps; and the tables that they read."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "registry.yaml").write_text(REGISTRY)
    for ranks, steps in ((2, 10), (2, 5), (1, 5)):
        options = [*SHORT, f"train.steps={steps}", f"train.run={folder}/{ranks}-{steps}"]
        gloo_pool.run(run, str(folder), options, world_size=ranks)
    return folder


@pytest.fixture
def folder(tmp_path: Path, runs: Path) -> Path:
    shutil.copy(runs / "registry.yaml", tmp_path)
    shutil.copytree(runs / "data", tmp_path / "data")
    return tmp_path


@pytest.mark.parametrize(
    ("options", "world_size"),
    [
        (["train.optimizer.tables=sgd", "train.optimizer.dense=sgd"], 2),
        (["train.optimizer.tables=adagrad", "train.optimizer.dense=adamw"], 1),
        (["train.optimizer.tables=adagrad", "train.optimizer.dense=adamw"], 2),
        (["model.use=dlrm", "model.embedding_dim=8", "model.bottom=[8]", "model.top=[8]"], 2),
    ],
    ids=["sgd", "adagrad on one rank", "adagrad", "dlrm"],
)
def test_resumed_equals_uninterrupted(
    options: list[str], world_size: int, folder: Path, gloo_pool: GlooPool
) -> None:
    if "model.use=dlrm" in options:  # it has no sequences, so nobody would use the pooling
        text = REGISTRY.replace("pooling:", "#")
        (folder / "registry.yaml").write_text(text)
    options = [*options, "train.steps=6", "train.log_every=3", "train.eval_every=0"]
    whole = [*options, f"train.run={folder}/whole"]
    gloo_pool.run(run, str(folder), whole, world_size=world_size)
    first = [*options, "train.steps=3"]
    gloo_pool.run(run, str(folder), first, world_size=world_size)
    gloo_pool.run(run, str(folder), options, True, world_size=world_size)
    before, after = (
        [line for line in metrics(folder, name) if line["step"] > 3] for name in ("whole", "run")
    )
    assert [line["kind"] for line in before] == ["train", "test"]
    assert after == before


@contextmanager
def snapshots(run: Path, to: Path) -> Iterator[None]:
    """Rank 0 copies a run's folder before and after each checkpoint gets its name, as a kill would
    leave it."""
    put, number = Checkpoints._put, count()

    def copy() -> None:
        if dist.get_rank() == 0 and run.exists():
            shutil.copytree(run, to / f"{next(number):02}", dirs_exist_ok=True)

    def put_between(checkpoints: Checkpoints, part: Path, target: Path) -> None:
        copy()
        put(checkpoints, part, target)
        copy()

    Checkpoints._put = put_between  # type: ignore[method-assign]
    try:
        yield
    finally:
        Checkpoints._put = put  # type: ignore[method-assign]


def killed_anywhere(folder: str, overrides: list[str]) -> list[tuple[Any, Any]]:
    """On a rank: lines and summary of a run, then of runs that were killed at any of its
    checkpoints, and of the finished run, all resumed; without times."""
    root = Path(folder)
    with snapshots(root / "run", root / "killed"):
        run(folder, overrides)
    if dist.get_rank() == 0:
        shutil.copytree(root / "run", root / "killed/finished")
    dist.barrier()
    found = [(reported(root / "run"))]
    for copy in sorted((root / "killed").iterdir()):
        if checkpoints_in(copy / "checkpoints"):
            run(folder, [*overrides, f"train.run={copy}"], resume=True)
            dist.barrier()
            found.append(reported(copy))
    return found


TIMES = (
    *("samples_per_second", "step_ms", "data_wait", "reading_ms", "by_rank", "run"),
    *("peak_memory_mib", "memory_mib"),
)


def reported(run: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """All of metrics.jsonl and of summary.json, but for times and memory."""

    def timeless(value: Any) -> Any:
        if isinstance(value, list):
            return [timeless(one) for one in value]
        if isinstance(value, dict):
            return {name: timeless(one) for name, one in value.items() if name not in TIMES}
        return value

    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return timeless(lines), timeless(json.loads((run / "summary.json").read_text()))


@pytest.mark.parametrize(
    ("options", "resumed", "last"),
    [
        (["train.steps=10", "train.eval_every=5", "train.checkpoint_every=5"], 4, 10),
        (
            [
                "train.steps=12",
                "train.eval_every=3",
                "train.checkpoint_every=6",
                "callbacks=[{use: early_stopping, patience: 1, min_delta: 10.0}]",
            ],
            4,
            7,
        ),
    ],
    ids=["to the last step", "ended by a callback"],
)
def test_a_run_that_was_killed_reports_what_it_would_have(
    options: list[str], resumed: int, last: int, folder: Path, gloo_pool: GlooPool
) -> None:
    options = [
        *options,
        "plugins=[recd_dlrm, recd_dedup]",
        "dataset.samples=1024",  # each run reads them all to forecast its dedupe factor
        "dedup={use: exact, groups: [[history], [user_topics]]}",
        "train.log_every=4",
        "train.eval_batches=1",
    ]
    whole, *others = gloo_pool.run(killed_anywhere, str(folder), options)[0]
    lines, summary = whole
    assert summary["step"] == last
    assert summary["train"] is not None
    assert [line["step"] for line in lines if line["kind"] == "test"][-1] == last
    assert len(others) == resumed
    for found in others:
        assert found == whole


def test_a_run_with_other_choices_is_refused(runs: Path, folder: Path, gloo_pool: GlooPool) -> None:
    shutil.copytree(runs / "2-5", folder / "run")
    for override, world_size, says in (
        ("train.batch_size=16", 2, "was made with train.batch_size=32, now it is 16"),
        ("model.embedding_dim=16", 2, "was made with `model: "),
        ("dataset.samples=2048", 2, "was made with `dataset: "),
        ("train.optimizer.tables=sgd", 2, "was made with train.optimizer.tables="),
        (
            "train.steps=10",
            1,
            "was made by 2 ranks, this job has 1: resume with --ranks 2, or let",
        ),
    ):
        found = gloo_pool.run(run, str(folder), [*SHORT, override], True, world_size=world_size)
        assert isinstance(found[0], str)
        assert found[0].startswith(RegistryError.__name__)
        assert says in found[0]


FEWER = [
    {"name": "item_id", "num_ids": 500, "table": "items"},
    {"name": "history", "num_ids": 500, "table": "items", "sequence": True},
]
"""Features of the dataset whose table has fewer rows."""


def tensors_in(run: Path) -> dict[str, torch.Tensor]:
    """All that a run's latest checkpoint holds of model and optimizers."""
    reader = checkpoint_reader(run)
    kept = reader.read_metadata().state_dict_metadata
    found = {name: torch.empty(one.size, dtype=one.properties.dtype) for name, one in kept.items()}
    dcp.load(found, storage_reader=reader, no_dist=True)
    return found


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_run_begins_from_another_as_if_that_had_gone_on(
    runs: Path, folder: Path, gloo_pool: GlooPool
) -> None:
    """With its weights and optimizer states, at the start of its own data: as the other run would
    go on, to the bit, if its loader were at the start. Another number of ranks may begin; another
    model, other optimizers or tables of other sizes may not."""

    def trained(name: str, *more: str, ranks: int = 2, resume: bool = False) -> Any:
        options = [*SHORT, *more, f"train.run={folder / name}"]
        return gloo_pool.run(run, str(folder), options, resume, world_size=ranks)[0]

    shutil.copytree(runs / "2-5", folder / "first")
    shutil.copytree(runs / "2-5", folder / "goes-on")
    checkpoint = checkpoint_of(folder / "goes-on")
    for file in checkpoint.glob("rank-*.json"):
        state = json.loads(file.read_text())
        state["loader"]["batches"] = 0
        file.write_text(json.dumps(state))
    write_digest(checkpoint, {one: digest_of(checkpoint / one) for one in read_digest(checkpoint)})
    begins = f"train.begin_from={folder / 'first'}"
    trained("goes-on", "train.steps=10", resume=True)
    trained("begun", "train.steps=5", begins)
    begun, goes_on = (tensors_in(folder / name) for name in ("begun", "goes-on"))
    assert begun.keys() == goes_on.keys()
    for name, one in goes_on.items():
        assert torch.equal(begun[name], one), name

    still = ["train.optimizer.tables_lr=1e-30", "train.optimizer.dense_lr=1e-30"]
    trained("alone", "train.steps=1", begins, *still, ranks=1)
    alone, first = (tensors_in(folder / name) for name in ("alone", "first"))
    for name, one in first.items():
        assert not name.startswith("model.") or torch.equal(alone[name], one), name

    for other, says in (
        ("model.embedding_dim=16", "was made with `model: "),
        ("train.optimizer.tables=sgd", "was made with train.optimizer.tables="),
        (f"dataset.features={json.dumps(FEWER)}", "weight' of [500, 8], the run one of [100000"),
        (f"train.begin_from={folder / 'none'}", "holds no checkpoint"),
    ):
        found = trained("refused", "train.steps=1", begins, other)
        assert isinstance(found, str)
        assert says in found
        assert not (folder / "refused").exists()


@pytest.mark.parametrize(
    ("before", "now", "says", "back"),
    [
        ({}, {"train": {"seed": 5}}, "with train.seed=0, now it is 5", {"train": {"seed": 0}}),
        (
            {"train": {"optimizer": {"dense": "sgd"}}},
            {},
            'with train.optimizer.dense="sgd", now it is "adam". Change it back',
            {"train": {"optimizer": {"dense": "sgd", "tables": "rowwise_adagrad"}}},
        ),
        ({}, {"reader": "local"}, 'with no `reader`, but .* `reader: "local"`. Take it out', {}),
        (
            {"dedup": "exact"},
            {},
            'with `dedup: "exact"`.* has no `dedup`. Put it',
            {"dedup": "exact"},
        ),
    ],
)
def test_what_goes_back_to_a_default_is_said_so_that_it_can_be_done(
    before: dict[str, Any], now: dict[str, Any], says: str, back: dict[str, Any]
) -> None:
    with pytest.raises(RegistryError, match=f"step-5: was made {says}"):
        check_registry(Path("step-5"), before, now, ())
    check_registry(Path("step-5"), before, back, ())


def written_before(checkpoint: Path) -> None:
    """Make it one that a version wrote which named tables in another way, and not itself."""
    names = ["job.json", "rank-0.json", "rank-1.json"]
    for name in names:
        held = json.loads((checkpoint / name).read_text())
        if name == "job.json":
            del held["recd_plugins"]
        else:
            held["loader"]["made_for"]["table"] = "a0c74b51dcfc6e1e"
        (checkpoint / name).write_text(json.dumps(held))
    now = {name: digest_of(checkpoint / name) for name in names}
    write_digest(checkpoint, read_digest(checkpoint) | now)


def test_an_older_version_that_wrote_what_is_refused_is_named(
    runs: Path, folder: Path, gloo_pool: GlooPool
) -> None:
    shutil.copytree(runs / "2-5", folder / "run")
    saved = json.loads((folder / "run/checkpoints/step-00000005/job.json").read_text())
    assert saved["recd_plugins"] == recd_plugins.__version__
    message = gloo_pool.run(run, str(folder), [*SHORT, "model.embedding_dim=16"], True)[0]
    assert "wrote the checkpoint" not in message  # it is this version
    written_before(folder / "run/checkpoints/step-00000005")
    message = gloo_pool.run(run, str(folder), SHORT, True)[0]
    assert "was made for table a0c74b51dcfc6e1e, but here is table " in message
    assert "an older version of recd-plugins wrote the checkpoint, and this is " in message
    (folder / "run/pins.json").write_text(
        (folder / "run/pins.json").read_text().replace('"footer": "', '"footer": "other')
    )
    message = gloo_pool.run(run, str(folder), SHORT, True)[0]
    assert "is not what it was when the run began" in message
    assert "an older version of recd-plugins wrote the checkpoint" in message


def test_a_run_says_how_many_rows_it_does_not_train_on(folder: Path, gloo_pool: GlooPool) -> None:
    """As of a day that has more than others; a run of an epoch says nothing of it."""
    options = [*SHORT, "dataset.samples=330", "train.steps={}", "train.eval_batches=1"]
    for steps, says in ((5, "5 steps train 320 of 330 rows: an epoch is train.steps=6\n"), (6, "")):
        named = [one.format(steps) for one in options]
        _, said = gloo_pool.run(done_and_said, str(folder), named, False, world_size=2)[0]
        assert says in said
        assert "rows: an epoch" not in said or says


def done_and_said(
    folder: str, overrides: list[str], resume: bool = True
) -> tuple[dict[str, Any] | str, str]:
    """On a rank: what `run` returns, and what the run printed."""
    printed = io.StringIO()
    with redirect_stdout(printed), redirect_stderr(printed):
        return run(folder, overrides, resume), printed.getvalue()


def test_a_run_goes_on_with_its_tables_where_they_were_moved(
    tmp_path: Path, gloo_pool: GlooPool
) -> None:
    """The same rows in the same order: in others, or without what shows that they are the same,
    it does not."""
    clicks = [0, 1] * 40
    for name, first in (("a", 0), ("b", 7), ("test", 0)):
        ids = [[(first + row) % 50] for row in range(80)]
        (tmp_path / name).mkdir()
        pq.write_table(
            pa.table({"click": clicks, "item": ids}), tmp_path / name / f"{name}.parquet"
        )
    schema = {
        "session_id": None,
        "timestamp": None,
        "label": "click",
        "sparse": [{"name": "item", "num_ids": 57}],
    }
    train, test = [str(tmp_path / "a"), str(tmp_path / "b")], str(tmp_path / "test")
    dataset = {"use": "parquet", "train": train, "test": test, "schema": schema}
    registry = {
        "plugins": ["recd_dlrm"],
        "dataset": dataset,
        "model": {"use": "dlrm", "embedding_dim": 8, "bottom": [8], "top": [8]},
        "sharding": "torchrec",
        "train": {"batch_size": 8, "device": "cpu", "ranks": 1},
    }
    (tmp_path / "registry.yaml").write_text(json.dumps(registry))
    begun = gloo_pool.run(run, str(tmp_path), [*SHORT, "train.steps=5"], world_size=1)[0]
    assert isinstance(begun, dict), begun
    for name in ("a", "b"):
        (tmp_path / "moved").mkdir(exist_ok=True)
        (tmp_path / name).rename(tmp_path / "moved" / name)

    def go_on(*names: str) -> tuple[Any, str]:
        train = json.dumps([str(tmp_path / "moved" / one) for one in names])
        there = [*SHORT, f"dataset.train={train}"]
        done: tuple[Any, str]
        (done,) = gloo_pool.run(done_and_said, str(tmp_path), there, world_size=1)
        return done

    assert "was made with `dataset: " in go_on("b", "a")[0]
    pins = (tmp_path / "run/pins.json").rename(tmp_path / "pins.json")
    assert "was made with `dataset: " in go_on("a", "b")[0]
    pins.rename(tmp_path / "run/pins.json")
    done, said = go_on("a", "b")
    assert isinstance(done, dict), done
    assert f'dataset.train is ["{tmp_path}/moved/a", "{tmp_path}/moved/b"] from here on; ' in said
    assert "The files are the same by their digests in pins.json" in said
    assert metrics(tmp_path, "run")[-1]["step"] == 10


def test_a_checkpoint_of_before_digests_is_not_taken_for_damaged(
    runs: Path, folder: Path, gloo_pool: GlooPool
) -> None:
    shutil.copytree(runs / "2-10", folder / "run")
    checkpoints = folder / "run/checkpoints"
    before = sorted(path.name for path in checkpoints.iterdir())
    # Though the one before is whole: that version may have gone on from one of this version.
    written_before(checkpoints / before[-1])
    (checkpoints / before[-1] / "digest.json").unlink()
    for options in (SHORT, [*SHORT, "train.on_damaged=go_back"]):
        message = gloo_pool.run(run, str(folder), options, True)[0]
        assert isinstance(message, str)
        assert "has no digest.json" in message
        assert "an older version of recd-plugins wrote the checkpoint" in message
        assert "damaged" not in message
        assert "remove" not in message.replace("was removed", "")
        assert sorted(path.name for path in checkpoints.iterdir()) == before


def test_a_checkpoint_that_lost_its_digest_is_damaged(
    runs: Path, folder: Path, gloo_pool: GlooPool
) -> None:
    """For the version that wrote it names itself in job.json, and writes digests."""
    shutil.copytree(runs / "2-10", folder / "run")
    checkpoint = folder / "run/checkpoints/step-00000010"
    (checkpoint / "digest.json").unlink()
    message = gloo_pool.run(run, str(folder), SHORT, True)[0]
    assert f"{checkpoint}/digest.json: cannot be read" in message
    assert "The checkpoint is damaged" in message
    gone_back = gloo_pool.run(run, str(folder), [*SHORT, "train.on_damaged=go_back"], True)[0]
    assert isinstance(gone_back, dict)
    assert checkpoint.with_suffix(".damaged").exists()
    check_whole(checkpoint)  # trained and written again


def run_that_may_not_read(folder: str, name: str) -> dict[str, Any] | str:
    """On a rank: `run` where the system refuses the newest checkpoint's file."""
    refused_file = Path(folder) / "run/checkpoints/step-00000010" / name
    opened = io.open

    def open_(file: Any, *arguments: Any, **options: Any) -> Any:
        if isinstance(file, str | Path) and Path(file) == refused_file:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(file))
        return opened(file, *arguments, **options)

    with mock.patch("io.open", open_):
        try:
            return run(folder, [*SHORT, "train.on_damaged=go_back"], True)
        except OSError as error:
            return f"{error.filename}: {error.strerror}"


@pytest.mark.parametrize("name", ["digest.json", "job.json", "__1_0.distcp"])
def test_a_checkpoint_that_may_not_be_read_is_not_taken_for_damaged(
    name: str, runs: Path, folder: Path, gloo_pool: GlooPool
) -> None:
    """Nor put aside, though a run may go back."""
    shutil.copytree(runs / "2-10", folder / "run")
    file = folder / "run/checkpoints/step-00000010" / name
    for message in gloo_pool.run(run_that_may_not_read, str(folder), name):
        assert message == f"{file}: Permission denied"
    assert file.exists()


def test_a_run_goes_on_at_other_rates(
    folder: Path, gloo_pool: GlooPool, capsys: pytest.CaptureFixture[str]
) -> None:
    sgd = ["train.optimizer.tables=sgd", "train.optimizer.dense=sgd"]
    first = [*SHORT, *sgd, "train.checkpoint_every=1", "train.steps=2"]
    gloo_pool.run(run, str(folder), first, world_size=1)
    still = ["train.steps=3", "train.optimizer.tables_lr=1e-30", "train.optimizer.dense_lr=1e-30"]
    (summary,) = gloo_pool.run(run, str(folder), [*first, *still], True, world_size=1)
    assert summary["step"] == 3, summary
    printed = capsys.readouterr().out
    assert "train.optimizer.tables_lr is 1e-30 from here on; it was 0.05\n" in printed
    assert "train.optimizer.dense_lr is 1e-30 from here on; it was 0.001\n" in printed
    # Weights, and SGD has no other state, stay as they were: the new rates are those in use.
    checkpoints = folder / "run/checkpoints"
    before, after = (read_digest(checkpoints / f"step-{step:08}") for step in (2, 3))
    assert after["__0_0.distcp"] == before["__0_0.distcp"]


def test_a_run_that_goes_on_by_other_code_of_a_plugin_says_so(
    folder: Path, gloo_pool: GlooPool, capsys: pytest.CaptureFixture[str]
) -> None:
    plugin = folder / "strangers_diary.py"
    plugin.write_text(Path(callback_plugin.__file__).read_text())
    options = [
        *SHORT,
        f"plugins=[recd_dlrm, {plugin}]",
        "callbacks=[{use: diary}]",
        "train.checkpoint_every=1",
    ]
    for step in (1, 2):  # the second goes on by the same code, and says nothing of it
        more = [f"train.steps={step}"]
        assert gloo_pool.run(run, str(folder), [*options, *more], step > 1, world_size=1)
    assert "the code of" not in capsys.readouterr().out
    plugin.write_text(f"{plugin.read_text()}# changed\n")
    (summary,) = gloo_pool.run(run, str(folder), [*options, "train.steps=3"], True, world_size=1)
    assert summary["step"] == 3, summary
    says = f"the code of {plugin} has changed: what it says now holds from here on\n"
    assert says in capsys.readouterr().out


def test_a_finished_run_is_evaluated_again_and_not_shortened(
    runs: Path, folder: Path, gloo_pool: GlooPool
) -> None:
    """A run killed in its last evaluation goes on with that; fewer steps make no sense."""
    shutil.copytree(runs / "2-10", folder / "run")
    whole = json.loads((folder / "run/summary.json").read_text())
    again = gloo_pool.run(run, str(folder), SHORT, True)[0]
    assert isinstance(again, dict)
    assert again["test"] == whole["test"]
    message = gloo_pool.run(run, str(folder), [*SHORT, "train.steps=9"], True)[0]
    assert "step-00000010 is past step 9 already; raise train.steps" in message


def test_a_run_goes_on_from_step_a_hundred_million_too(
    runs: Path, folder: Path, gloo_pool: GlooPool
) -> None:
    checkpoints = folder / "run/checkpoints"
    shutil.copytree(runs / "2-10", folder / "run")
    shutil.rmtree(checkpoints / "step-00000005")
    late = (checkpoints / "step-00000010").rename(checkpoints / "step-99999995")
    job = late / "job.json"
    job.write_text(json.dumps(json.loads(job.read_text()) | {"step": 99_999_995}))
    write_digest(late, read_digest(late) | {job.name: digest_of(job)})
    options = [*SHORT, "train.steps=100_000_005"]
    for _ in range(2):  # the second one begins where the first has ended
        summary = gloo_pool.run(run, str(folder), options, True)[0]
        assert isinstance(summary, dict), summary
        assert summary["step"] == 100_000_005
        kept = [one.name for one in checkpoints_in(checkpoints)]
        assert kept == ["step-100000000", "step-100000005"]
    assert checkpoint_of(folder / "run").name == kept[-1]
    with pytest.raises(
        RegistryError, match=r"run has a run already, since .*metrics\.jsonl is there"
    ):
        reshard(runs / "2-10", folder / "run", 1)


def test_a_damaged_checkpoint_is_named(runs: Path, folder: Path, gloo_pool: GlooPool) -> None:
    shutil.copytree(runs / "2-5", folder / "run")
    checkpoint = folder / "run/checkpoints/step-00000005"
    shard, job = checkpoint / "__0_0.distcp", checkpoint / "job.json"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:100])
    for message in gloo_pool.run(run, str(folder), SHORT, True):
        assert isinstance(message, str)
        assert message.startswith(DataError.__name__)
        assert f"{shard}: cannot be read (it has 100 bytes, of {len(whole):,} that" in message
        assert "none is there before it, so restore the file from a copy" in message
        assert "go_back" not in message  # there is nothing to go back to
    shard.write_bytes(whole)
    job.write_text(job.read_text()[:20])
    message = gloo_pool.run(run, str(folder), SHORT, True)[1]
    assert f"{job}: cannot be read" in message


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("job.json", "[]"),
        ("job.json", "{}"),
        ("rank-0.json", "{}"),
        ("rank-0.json", '{"loader": LOADER, "random": {"cpu": "zz"}}'),
    ],
)
def test_json_of_another_shape_is_named(
    name: str, text: str, runs: Path, folder: Path, gloo_pool: GlooPool
) -> None:
    shutil.copytree(runs / "1-5", folder / "run")
    file = folder / "run/checkpoints/step-00000005" / name
    loader = json.dumps(json.loads(file.read_text()).get("loader"))
    file.write_text(text.replace("LOADER", loader))
    (message,) = gloo_pool.run(run, str(folder), SHORT, True, world_size=1)
    assert f"{file}: cannot be read" in message
    assert "The checkpoint is damaged: none is there before it" in message


def test_a_byte_of_any_file_is_missed(runs: Path, folder: Path) -> None:
    """One digit of a step, of a chunk's offset, of the digest itself; one bit of a table."""
    shutil.copytree(runs / "1-5", folder / "run")
    checkpoint = folder / "run/checkpoints/step-00000005"
    check_whole(checkpoint)
    draw = random.Random(0)
    for file in sorted(checkpoint.iterdir()):
        whole = file.read_bytes()
        digits = [match.start() for match in re.finditer(rb"\d", whole)]
        places = digits if file.suffix == ".json" else range(len(whole))
        for at in draw.sample(places, 8):
            file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            with pytest.raises(DataError, match=f"{file.name}: cannot be read") as caught:
                check_whole(checkpoint)
            assert "The checkpoint is damaged: none is there before it" in str(caught.value)
        file.unlink()
        missing = f"{file.name}: cannot be read .*No such file"
        with pytest.raises(DataError, match=missing):
            check_whole(checkpoint)
        file.write_bytes(whole)
    other = checkpoint.rename(checkpoint.with_name("step-00000008"))
    with pytest.raises(DataError, match=r"job.json: cannot be read \(it is of step 5\)"):
        check_whole(other)


def test_a_run_goes_back_to_the_checkpoint_before_if_it_may(
    folder: Path, gloo_pool: GlooPool
) -> None:
    options = [*SHORT, "train.checkpoint_every=2", "train.log_every=2", "train.keep_checkpoints=3"]
    whole = gloo_pool.run(run, str(folder), options)[0]
    checkpoints = folder / "run/checkpoints"
    for step, name in ((10, "job.json"), (8, "__1_0.distcp")):
        file = checkpoints / f"step-{step:08}" / name
        file.write_bytes(file.read_bytes().replace(b"1", b"7", 1))
    message = gloo_pool.run(run, str(folder), options, True)[1]
    assert isinstance(message, str)
    assert "step-00000010/job.json: cannot be read" in message
    advice = "and the one before is taken; `recd train --resume train.on_damaged=go_back` does so"
    assert f"The checkpoint is damaged: remove its folder, {advice} by itself." in message
    with pytest.raises(DataError, match=advice):
        reshard(folder / "run", folder / "other", 1)
    options.append("train.on_damaged=go_back")
    again = gloo_pool.run(run, str(folder), options, True)[0]
    assert isinstance(again, dict)
    assert isinstance(whole, dict)
    assert again["test"] == whole["test"]
    assert sorted(path.name for path in checkpoints.iterdir()) == [
        "step-00000006",
        "step-00000008",
        "step-00000008.damaged",
        "step-00000010",
        "step-00000010.damaged",
    ]
    for path in checkpoints_in(checkpoints):
        (path / "digest.json").write_text("{}")
    message = gloo_pool.run(run, str(folder), options, True)[0]
    assert "step-00000006/digest.json: cannot be read" in message  # none is left


def run_on_a_full_disk(
    folder: str, overrides: list[str], rank: int, code: int
) -> dict[str, Any] | str:
    """On a rank: `run`, where `rank` may write no file of more than 200,000 bytes, or for another
    `code` finds no room for its own file. What it prints would go behind what its process has
    printed before, in a file of any size."""
    printed = io.StringIO()
    disk = (
        nullcontext()
        if dist.get_rank() != rank
        else files_of_at_most(200_000)
        if code == errno.EFBIG
        else mock.patch(
            f"{Checkpoints.__module__}.write_json", side_effect=OSError(code, "no room")
        )
    )
    with redirect_stdout(printed), redirect_stderr(printed), disk:
        return run(folder, overrides, True)


@pytest.mark.parametrize(
    ("rank", "code", "says"),
    [
        (0, errno.EFBIG, "in larger files than the system lets this process write (`ulimit -f`)"),
        (1, errno.EFBIG, "is whole: raise that limit, and `recd train --resume` goes on from it."),
        (1, errno.ENOSPC, "MiB are free on this disk"),
    ],
)
def test_a_checkpoint_without_room_is_an_error_or_left_out(
    rank: int, code: int, says: str, runs: Path, folder: Path, gloo_pool: GlooPool
) -> None:
    gloo_pool.run(run, str(folder), [*SHORT, "train.steps=3"])
    checkpoints = folder / "run/checkpoints"
    for message in gloo_pool.run(run_on_a_full_disk, str(folder), SHORT, rank, code):
        assert isinstance(message, str)
        assert f"{checkpoints}/step-00000005: there is no room for the checkpoint" in message
        assert says in message
        assert f"The checkpoint before, {checkpoints}/step-00000003, is whole" in message
        assert "train.on_full=go_on" in message
    assert [path.name for path in checkpoints.iterdir()] == ["step-00000003"]
    options = [*SHORT, "train.on_full=go_on"]
    summary = gloo_pool.run(run_on_a_full_disk, str(folder), options, rank, code)[0]
    assert isinstance(summary, dict)
    assert (summary["step"], summary["unsaved"]) == (10, [5, 10])
    assert [path.name for path in checkpoints.iterdir()] == ["step-00000003"]
    whole = json.loads((runs / "2-10/summary.json").read_text())
    assert summary["test"] == whole["test"]


def test_a_torn_checkpoint_is_passed_over(runs: Path, folder: Path, gloo_pool: GlooPool) -> None:
    shutil.copytree(runs / "2-5", folder / "run")
    checkpoints = folder / "run/checkpoints"
    for step in (7, 10):  # what a kill in the middle of saving leaves, be it of no regular step
        (checkpoints / f"step-{step:08}.part").mkdir()
    (summary, _) = gloo_pool.run(run, str(folder), SHORT, True)
    assert isinstance(summary, dict)
    assert summary["step"] == 10
    assert sorted(path.name for path in checkpoints.iterdir()) == [
        "step-00000005",
        "step-00000010",
    ]


def left_amid_removal(folder: str) -> tuple[list[str], list[str]]:
    """On a rank: the checkpoints where a kill comes as those are removed that are no longer kept;
    and all that is there once the run is resumed."""
    run = Path(folder)
    checkpoints = Checkpoints(run, keep=1, registry={})
    remove, shutil.rmtree = shutil.rmtree, lambda *_, **__: None  # type: ignore[assignment]
    try:
        checkpoints._put(run / "step-00000003.part", run / "step-00000003")
    finally:
        shutil.rmtree = remove
    whole = [path.name for path in checkpoints_in(run)]
    checkpoints.tidy()
    return whole, sorted(path.name for path in run.iterdir())


def test_of_checkpoints_that_are_removed_a_kill_leaves_no_half(
    tmp_path: Path, gloo_pool: GlooPool
) -> None:
    """Nor more than are kept, though the run has come to its end and saves no other."""
    for name in ("step-00000001", "step-00000002", "step-00000003.part"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "job.json").touch()
    ((whole, left),) = gloo_pool.run(left_amid_removal, str(tmp_path), world_size=1)
    assert whole == left == ["step-00000003"]


def test_a_checkpoint_holds_no_pickled_object(runs: Path, folder: Path) -> None:
    """Tensors lie in torch's archive, whose pickle may name tensors' parts and nothing else."""
    shutil.copytree(runs / "2-5", folder / "run")
    checkpoint = folder / "run/checkpoints/step-00000005"
    names = {path.name for path in checkpoint.iterdir()}
    assert names == {
        "__0_0.distcp",
        "__1_0.distcp",
        "digest.json",
        "job.json",
        "metadata.json",
        "rank-0.json",
        "rank-1.json",
    }
    stored = json.loads((checkpoint / "metadata.json").read_text())["stored"]
    assert len(stored) > 20
    for item in stored:
        whole = (checkpoint / item["file"]).read_bytes()
        part = folder / "part.pt"
        part.write_bytes(whole[item["at"] : item["at"] + item["bytes"]])
        assert isinstance(torch.load(part, weights_only=True), torch.Tensor)
        with zipfile.ZipFile(part) as archive:
            (data,) = [name for name in archive.namelist() if name.endswith("data.pkl")]
            calls = {
                argument
                for code, argument, _ in pickletools.genops(archive.read(data))
                if code.name == "GLOBAL"
            }
        assert calls <= {
            "torch._utils _rebuild_tensor_v2",
            "torch FloatStorage",
            "torch LongStorage",
            "torch DoubleStorage",
            "collections OrderedDict",
        }


def test_a_new_run_sets_the_one_before_aside(folder: Path, gloo_pool: GlooPool) -> None:
    for steps in (1, 2):
        gloo_pool.run(run, str(folder), [f"train.steps={steps}", "train.eval_batches=1"])
    kept = [json.loads((folder / name / "summary.json").read_text()) for name in ("run.1", "run")]
    assert [summary["step"] for summary in kept] == [1, 2]


def batches_of(folder: str, count: int) -> list[Batch]:
    """On a rank: its first batches."""
    stack = load(Path(folder) / "registry.yaml", [f"folder={folder}/data"])
    loader = stack.loader(dist.get_rank(), dist.get_world_size())
    return [batch for _, batch in zip(range(count), loader, strict=False)]


def test_a_loss_that_diverges_is_reported_with_its_batches(
    folder: Path, gloo_pool: GlooPool
) -> None:
    options = ["train.optimizer.dense=sgd", "train.optimizer.dense_lr=1e30"]
    options += ["train.checkpoint_every=1", "train.log_every=20"]
    for message in gloo_pool.run(run, str(folder), options):
        assert isinstance(message, str)
        assert "training diverged. Lower train.optimizer.tables_lr" in message
        step = int(re.search(r"the loss of step (\d+) is not finite", message)[1])
        assert 1 < step < 10
        assert f"step-{step - 1:08}-rank-*.arrow, step-{step:08}-rank-*.arrow" in message
        whole = folder / f"run/checkpoints/step-{step - 1:08}"
        assert f"The latest checkpoint, {whole}, is of before" in message
    assert max((folder / "run/checkpoints").iterdir()) == whole
    check_whole(whole)
    read = gloo_pool.run(batches_of, str(folder), step)
    for rank, batches in enumerate(read):
        for number in (step - 1, step):
            kept = read_batch(folder / f"run/diverged/step-{number:08}-rank-{rank}.arrow")
            expected = batches[number - 1]
            assert torch.equal(kept.dense, expected.dense)
            assert torch.equal(kept.labels, expected.labels)
            assert kept.features.keys() == expected.features.keys()
            assert torch.equal(kept.features.values(), expected.features.values())
            assert torch.equal(kept.features.lengths(), expected.features.lengths())


def test_a_loss_of_numbers_too_large_names_their_column(folder: Path, gloo_pool: GlooPool) -> None:
    """Neither the model, which makes it of weights as they begin, nor a rate is to blame."""
    for file in (folder / "data").rglob("*.parquet"):
        table = pq.read_table(file)
        name = json.loads(table.schema.metadata[b"recd_schema"])["dense"][0]
        place = table.schema.get_field_index(name)
        large = pc.multiply(table[name], pa.scalar(1e36, pa.float32()))
        pq.write_table(table.set_column(place, table.schema.field(place), large), file)
    for message in gloo_pool.run(run, str(folder), ["train.optimizer.dense=sgd"]):
        assert isinstance(message, str), message
        assert re.search(rf"is not finite: {name!r} holds up to \d.*e\+36 in the batches", message)
        assert "`scale: log` in the schema, or leave it out by dataset.without" in message


def test_weights_that_are_not_finite_are_not_saved(folder: Path, gloo_pool: GlooPool) -> None:
    options = ["train.optimizer.dense=sgd", "train.optimizer.dense_lr=1e38"]
    options += ["train.optimizer.dense_options={weight_decay: 1e6}", "train.checkpoint_every=1"]
    for message in gloo_pool.run(run, str(folder), options):
        assert isinstance(message, str)
        assert "after step 1 weights are not finite: net." in message
        assert "training diverged" in message
        assert "There is no checkpoint before it" in message
    assert not (folder / "run/checkpoints").exists()
    messages = gloo_pool.run(saved_with_one_number_wrong, str(folder))
    assert [message.rpartition(": ")[2] for message in messages] == [
        "net.bags.embedding_bags.t_user_region.weight"
    ] * 2


def saved_with_one_number_wrong(folder: str) -> str:
    """On a rank: what saving says where one row of one table, on one rank, is infinite."""
    stack = load(Path(folder) / "registry.yaml", [f"folder={folder}/data"])
    job = assemble(stack, torch.device("cpu"))
    table = job.model.state_dict()["net.bags.embedding_bags.t_user_region.weight"]
    for shard in table.local_shards():
        shard.tensor[3, 1] = torch.inf
    try:
        Checkpoints(Path(folder) / "none", keep=1, registry={}).save(job, 1, {})
    except NotFiniteError as error:
        return str(error)
    return ""

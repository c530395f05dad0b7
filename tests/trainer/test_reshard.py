"""Two gloo ranks train, one, three or four go on from what `recd reshard` wrote of it."""

from __future__ import annotations

import errno
import json
import os
import shlex
import shutil
from collections.abc import Mapping
from contextlib import AbstractContextManager
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from jobs import REGISTRY, metrics
from torch import Tensor
from torch.distributed._shard.sharded_tensor import ShardedTensor
from typer.testing import CliRunner

from recd_plugins.cli.main import app
from recd_plugins.errors import DataError, RecdError, RegistryError
from recd_plugins.notices import NoticeWarning
from recd_plugins.planning.planner_bases import Tiered
from recd_plugins.registry.source import Source, overrides_between
from recd_plugins.stack import load
from recd_plugins.storage.lock_file import LockFile, LockHeld
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.testing.parity import Bounds, assert_alike
from recd_plugins.testing.rounding import plain_of
from recd_plugins.trainer.assemble import assemble
from recd_plugins.trainer.checkpoints.checkpoint import Checkpoints
from recd_plugins.trainer.checkpoints.files import checkpoint_of, read_rank, write_json
from recd_plugins.trainer.checkpoints.other_ranks import (
    for_ranks,
    resumed_position,
    shared_streams,
)
from recd_plugins.trainer.checkpoints.reshard import reshard
from recd_plugins.trainer.checkpoints.storage import JsonReader

SHORT = ["train.eval_every=0", "train.checkpoint_every=0", "train.log_every=1"]
STREAMS = [*SHORT, "reader.streams=4"]
LOSS = 1e-6
"""What a loss may differ by where ranks divide the samples otherwise, a mean that is below 1: by
some 2**-24 of its sum, and by what Adam, in the two steps that are compared, makes of gradients
that are noise. It moves weights which the loss hardly depends on."""


def run(folder: str, name: str, overrides: list[str], resume: bool = False) -> Any:
    """On a rank: train; the summary, or the message of a user's error."""
    from recd_plugins.trainer.run import train

    settings = [f"folder={folder}/data", f"train.run={folder}/{name}", *overrides]
    try:
        stack = load(Path(folder) / "registry.yaml", settings)
        return train(stack, torch.device("cpu"), resume=resume)
    except RecdError as error:
        return f"{type(error).__name__}: {error}"


@pytest.fixture(scope="module")
def folder(gloo_pool: GlooPool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the runs `two`, of 3 steps, and `whole`, of 5 in fixed streams, 3 of them in `part`."""
    folder = tmp_path_factory.mktemp("reshard")
    (folder / "registry.yaml").write_text(REGISTRY)
    for name, options in (
        ("two", [*SHORT, "train.steps=3"]),
        ("whole", [*STREAMS, "train.steps=5"]),
        ("part", [*STREAMS, "train.steps=3"]),
    ):
        gloo_pool.run(run, str(folder), name, options)
    return folder


@pytest.mark.parametrize("ranks", [1, 4])
def test_what_was_trained_is_the_same_on_other_ranks(
    folder: Path, gloo_pool: GlooPool, ranks: int
) -> None:
    name = f"on-{ranks}"
    written = reshard(folder / "two", folder / name, ranks)
    assert (written.step, written.ranks_before, written.ranks) == (3, 2, ranks)
    assert (written.exact, written.begins_epoch) == (False, 1)
    # A finished run is evaluated again as it is loaded.
    options = [*SHORT, "train.steps=3"]
    (after, *_) = gloo_pool.run(run, str(folder), name, options, True, world_size=ranks)
    before = json.loads((folder / "two/summary.json").read_text())
    assert after["test"] == pytest.approx(before["test"], abs=LOSS)
    options = [*SHORT, "train.steps=5"]
    (on, *_) = gloo_pool.run(run, str(folder), name, options, True, world_size=ranks)
    assert (on["step"], on["world_size"]) == (5, ranks)
    last = folder / name / f"checkpoints/step-00000005/rank-{ranks - 1}.json"
    position = json.loads(last.read_text())["loader"]
    assert (position["epoch"], position["batches"]) == (1, 2)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_other_ranks_again_begin_the_same_epoch(folder: Path) -> None:
    """However often a checkpoint is written for others, before any of them trains."""
    runs = [folder / "two", *(folder / f"again-{number}" for number in range(3))]
    before = stored(runs[0])
    for source, target, ranks in zip(runs, runs[1:], (1, 4, 2), strict=False):
        assert reshard(source, target, ranks).begins_epoch == 1
        for name, tensor in stored(target).items():
            assert torch.equal(tensor, before[name]), name
    (last,) = (runs[-1] / "checkpoints").iterdir()
    for rank in range(2):
        assert read_rank(last, rank)["loader"] == {"begins_epoch": 1}


TIERS = [
    "plugins=[recd_dlrm, recd_flexshard, recd_scars]",
    "sharding={use: flexshard, goal: memory_neutral, profile_batches: 1}",
    "topology={ranks_per_node: 1, inter_node_gbps: 0.01}",
]
CACHE = [
    *TIERS[::2],
    "sharding={use: torchrec, search: greedy}",
    "cache={use: scars, size: hit_rate, hit_rate: 0.5, hot_batches: false, profile_batches: 1}",
]


def loaded(folder: str, name: str, overrides: list[str]) -> tuple[dict[str, Tensor], int]:
    """On a rank: weights and optimizer states of a run's checkpoint, in full, and how many rows
    have replicas."""
    stack = load(Path(folder) / "registry.yaml", [f"folder={folder}/data", *SHORT, *overrides])
    job = assemble(stack, torch.device("cpu"))
    registry = stack.registry.source.values
    checkpoints = Checkpoints(Path(folder) / name / "checkpoints", keep=1, registry=registry)
    latest = checkpoints.latest()
    assert latest is not None
    checkpoints.load(job, latest)
    held = dict(job.model.state_dict())
    for parameter, states in job.optimizer.state_dict()["state"].items():
        held |= {f"{parameter}/{key}": value for key, value in states.items()}
    planner = stack.planner()
    plan = planner.tier_plan if isinstance(planner, Tiered) else None
    tables = [] if plan is None else plan.tables.values()
    return whole(held), sum(len(table.replicated) + len(table.per_node) for table in tables)


def whole(held: dict[str, Tensor | ShardedTensor]) -> dict[str, Tensor]:
    """Of what ranks hold of tensors by the row, be it nothing, the tensors."""
    parts = {
        name: {s.metadata.shard_offsets[0]: s.tensor for s in value.local_shards()}
        if isinstance(value, ShardedTensor)
        else {0: value}
        for name, value in held.items()
    }
    everyones: list[dict[str, dict[int, Tensor]]] = [{}] * dist.get_world_size()
    dist.all_gather_object(everyones, parts)
    names = sorted({name for one in everyones for name in one})
    rows = {
        name: {k: v for one in everyones for k, v in one.get(name, {}).items()} for name in names
    }
    return {
        name: torch.cat([part for _, part in sorted(of.items())])
        if len(of) > 1
        else of.popitem()[1]
        for name, of in rows.items()
    }


def stored(run: Path) -> dict[str, Tensor]:
    """The same weights and states, as they lie in the files of a run's latest checkpoint."""
    reader = JsonReader(checkpoint_of(run))
    tensors: dict[str, Any] = {
        name: torch.empty(kept.size, dtype=kept.properties.dtype)
        for name, kept in reader.read_metadata().state_dict_metadata.items()
    }
    dcp.load(tensors, storage_reader=reader, no_dist=True)
    return {name.partition(".")[2]: tensor for name, tensor in tensors.items()}


ON = [*SHORT, "train.steps=5", "train.eval_batches=1"]
"""Two more steps, whose weights are compared, and no losses of tests."""


def plain_on(folder: str, name: str) -> tuple[Mapping[str, Tensor], Bounds]:
    """On a rank: what two more steps of copies of a plain run come to, and its bounds."""
    numbers = count()

    def train(rounding: AbstractContextManager[object]) -> dict[str, Tensor]:
        copy = f"{name}-{next(numbers)}"
        if dist.get_rank() == 0:
            shutil.copytree(Path(folder) / name, Path(folder) / copy)
        dist.barrier()
        with rounding:
            run(folder, copy, ON, resume=True)
        return stored(Path(folder) / copy)

    return plain_of(train)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_tiers_are_saved_for_other_ranks_and_other_plans(folder: Path, gloo_pool: GlooPool) -> None:
    gloo_pool.run(
        run, str(folder), "tiers", [*SHORT, *TIERS, "train.steps=3", "train.eval_batches=1"]
    )
    saved, hot = gloo_pool.run(loaded, str(folder), "tiers", TIERS)[0]
    assert hot > 0
    assert any("/" in name for name in saved)
    for name, ranks, way in (
        ("tiers-1", 1, []),
        ("tiers-3", 3, TIERS),
        ("cache-3", 3, CACHE),
        ("plain-3", 3, []),
    ):
        reshard(folder / "tiers", folder / name, ranks)
        found, hot = gloo_pool.run(loaded, str(folder), name, way, world_size=ranks)[0]
        assert (hot > 0) == bool(way)
        assert found.keys() == saved.keys()
        for key, tensor in found.items():
            torch.testing.assert_close(tensor, saved[key], atol=0, rtol=0)
    plain, bounds = gloo_pool.run(plain_on, str(folder), "plain-3", world_size=3)[0]
    for name, way in (("tiers-3", TIERS), ("cache-3", CACHE)):
        gloo_pool.run(run, str(folder), name, [*ON, *way], True, world_size=3)
        assert_alike(stored(folder / name), plain, bounds)
    assert any(not torch.equal(tensor, saved[key]) for key, tensor in plain.items())


def plain_begun(folder: str, begins: list[str]) -> tuple[Mapping[str, Tensor], Bounds]:
    """On a rank: what runs that begin from another come to, and their bounds."""
    numbers = count()

    def train(rounding: AbstractContextManager[object]) -> dict[str, Tensor]:
        name = f"begun-{next(numbers)}"
        with rounding:
            run(folder, name, begins)
        return stored(Path(folder) / name)

    return plain_of(train)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_runs_with_replicas_begin_from_one_without(folder: Path, gloo_pool: GlooPool) -> None:
    begins = [*SHORT, "train.steps=2", "train.eval_batches=1"]
    begins += [f"train.begin_from={folder / 'two'}", "dataset.seed=7"]
    plain, bounds = gloo_pool.run(plain_begun, str(folder), begins)[0]
    for name, way in (("tiers-begun", TIERS), ("cache-begun", CACHE)):
        gloo_pool.run(run, str(folder), name, [*begins, *way])
        tables = json.loads((folder / name / "plan.json").read_text())["tiers"]["tables"]
        assert sum(table["replicated"]["rows"] for table in tables.values())
        assert_alike(stored(folder / name), plain, bounds)
    before = stored(folder / "two")
    assert any(not torch.equal(tensor, before[key]) for key, tensor in plain.items())


@pytest.mark.parametrize(("ranks", "batch_size"), [(1, 64), (4, 16)])
def test_fixed_streams_go_on_with_the_same_batches(
    folder: Path, gloo_pool: GlooPool, ranks: int, batch_size: int
) -> None:
    name = f"streams-{ranks}"
    assert reshard(folder / "part", folder / name, ranks, batch_size).exact
    options = [*STREAMS, "train.steps=5", f"train.batch_size={batch_size}"]
    gloo_pool.run(run, str(folder), name, options, True, world_size=ranks)
    expected = [line for line in metrics(folder, "whole") if line["step"] > 3]
    found = metrics(folder, name)
    assert [(one["kind"], one["step"]) for one in found] == [
        (one["kind"], one["step"]) for one in expected
    ]
    for mine, theirs in zip(found, expected, strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], abs=LOSS)


def test_a_line_of_metrics_weighs_steps_alike_on_whatever_ranks(
    folder: Path, gloo_pool: GlooPool
) -> None:
    options = [*STREAMS, "train.steps=5", "train.log_every=5"]
    options += ["train.checkpoint_every=2", "train.keep_checkpoints=3"]
    gloo_pool.run(run, str(folder), "line-0", options)
    found = []
    for before, ranks, step in (("line-0", 1, 2), ("line-1", 2, 4)):
        name = f"line-{ranks}"
        checkpoint = folder / before / f"checkpoints/step-{step:08}"
        reshard(checkpoint, folder / name, ranks, 64 // ranks)
        here = [*options, f"train.batch_size={64 // ranks}"]
        gloo_pool.run(run, str(folder), name, here, True, world_size=ranks)
        found += [one for one in metrics(folder, name) if one["kind"] == "train"]
    (expected,) = (one for one in metrics(folder, "line-0") if one["kind"] == "train")
    assert [one["step"] for one in found] == [5, 5]
    for line in found:
        assert line["loss"] == pytest.approx(expected["loss"], abs=LOSS)
        assert line["ne"] == pytest.approx(expected["ne"], abs=1e-5)


def test_as_many_ranks_go_on_where_they_were_without_streams_too(folder: Path) -> None:
    checkpoint = checkpoint_of(folder / "two")
    found = for_ranks(checkpoint, 2)
    assert (found.exact, found.begins_epoch) == (True, None)
    for rank in range(2):
        state = json.loads((checkpoint / f"rank-{rank}.json").read_text())
        assert found.rank(rank)["loader"] == state["loader"]
        assert state["loader"]["batches"] == 3
    assert not for_ranks(checkpoint, 2, 16).exact


def test_ranks_that_cannot_share_the_streams_have_others(folder: Path, gloo_pool: GlooPool) -> None:
    command = ["reshard", str(folder / "part"), str(folder / "three"), "--ranks", "3"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert "goes on with the start of epoch 1, in 3 streams; what an epoch had left" in done.stdout
    assert done.stdout.endswith("train.batch_size=32 reader.streams=3\n")
    options = [*SHORT, "reader.streams=3", "train.steps=5"]
    (on, *_) = gloo_pool.run(run, str(folder), "three", options, True, world_size=3)
    assert (on["step"], on["world_size"]) == (5, 3), on


def test_streams_of_which_a_rank_takes_no_even_batch_are_others(
    folder: Path, gloo_pool: GlooPool
) -> None:
    """Of six streams one rank has all, and 32 samples are no multiple of six."""
    options = [*SHORT, "reader.streams=6", "train.steps=3"]
    gloo_pool.run(run, str(folder), "six", [*options, "train.batch_size=33"])
    written = reshard(folder / "six", folder / "six-1", 1, 32)
    assert written.streams == 4
    options = [*SHORT, "reader.streams=4", "train.steps=5", "train.batch_size=32"]
    (on,) = gloo_pool.run(run, str(folder), "six-1", options, True, world_size=1)
    assert on["step"] == 5, on


@pytest.mark.parametrize(
    ("reader", "ranks", "batch_size", "streams"),
    [
        ({"streams": 6}, 2, 33, 6),
        ({"streams": 6}, 1, 32, 4),
        ({"streams": 4}, 3, 32, 3),
        ({"streams": 8}, 2, 2, 4),
        ({"streams": 12, "workers": 2}, 2, 6, 12),
        ({"streams": 12, "workers": 2}, 2, 4, 8),
        ({"use": "service", "streams": 12, "workers": 2}, 2, 6, 12),
        ({}, 3, 32, None),
    ],
)
def test_ranks_share_streams_and_batches_evenly(
    reader: dict[str, Any], ranks: int, batch_size: int, streams: int | None
) -> None:
    assert shared_streams({"reader": reader}, ranks, batch_size) == streams


def test_a_run_goes_on_with_the_ids_and_tables_that_it_began_with(
    folder: Path, tmp_path: Path, gloo_pool: GlooPool
) -> None:
    """On other ranks, where the next epoch begins, too: no position of a reader tells tables."""

    def becomes(shift: int) -> None:
        ids = range(200)
        rows = {"id": ids, "becomes": [(one + shift) % 200 for one in ids]}
        pq.write_table(pa.table(rows), tmp_path / "ids.parquet")

    (tmp_path / "registry.yaml").write_text((folder / "registry.yaml").read_text())
    shutil.copytree(folder / "data", tmp_path / "data")
    mapped = [
        *("plugins=[recd_dlrm, recd_dsi]", "train.steps=2", *SHORT),
        f"preprocess=[{{use: map_id, file: {tmp_path}/ids.parquet}}]",
    ]
    becomes(1)
    gloo_pool.run(run, str(tmp_path), "mapped", mapped)
    for name in ("mapped", "moved"):
        if name == "moved":
            assert not reshard(tmp_path / "mapped", tmp_path / name, 1).exact
        ranks = 1 if name == "moved" else 2
        becomes(2)
        (found, *_) = gloo_pool.run(run, str(tmp_path), name, mapped, True, world_size=ranks)
        assert "ids.parquet: is not what it was when the run began (preprocess[0].file)" in found
        becomes(1)
        (found, *_) = gloo_pool.run(
            run, str(tmp_path), name, [*mapped, "train.steps=3"], True, world_size=ranks
        )
        assert found["step"] == 3


def test_stripes_that_some_ranks_could_not_read_are_left_out_by_all(
    folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(folder / "part", tmp_path / "part")
    checkpoint = checkpoint_of(tmp_path / "part")
    for rank, stripes in enumerate([[], [3, 1]]):
        file = checkpoint / f"rank-{rank}.json"
        state = json.loads(file.read_text())
        state["loader"] |= {"left_out": stripes} if stripes else {}
        write_json(file, state)
    found = for_ranks(checkpoint, 4, 16)
    assert found.exact
    assert [found.rank(rank)["loader"]["left_out"] for rank in range(4)] == [[1, 3]] * 4
    for rank in range(2):  # of a period of a log that grows
        file = checkpoint / f"rank-{rank}.json"
        state = json.loads(file.read_text())
        state["loader"] = {"epoch": 0, "batches": 3, "period": "", "within": state["loader"]}
        write_json(file, state)
    found = for_ranks(checkpoint, 4, 16)
    assert found.exact
    assert found.rank(0)["loader"]["within"]["left_out"] == [1, 3]


@pytest.mark.parametrize(
    "there", ["checkpoints/step-00000002", "checkpoints/step-00000009", "metrics.jsonl"]
)
def test_no_checkpoint_is_written_into_a_folder_that_has_a_run(
    folder: Path, tmp_path: Path, there: str
) -> None:
    """It would go on from another run's checkpoint, or with another run's metrics."""
    shutil.copytree(folder / "part", tmp_path / "other")
    shutil.move(tmp_path / "other/checkpoints/step-00000003", tmp_path / "kept")
    for name in ("metrics.jsonl", "summary.json"):
        (tmp_path / "other" / name).unlink()
    (tmp_path / "other" / there).touch()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(
        RegistryError, match=rf"TO: {tmp_path}/other has a run already, since .*{there} is there"
    ):
        reshard(folder / "two", tmp_path / "other", 1)
    assert sorted(tmp_path.rglob("*")) == before


def test_the_command_says_what_goes_on_and_what_cannot(folder: Path, gloo_pool: GlooPool) -> None:
    refused = gloo_pool.run(run, str(folder), "two", SHORT, True, world_size=1)[0]
    assert refused.startswith(RegistryError.__name__)
    assert "or let `recd reshard` write the checkpoint for another number" in refused
    command = ["reshard", str(folder / "two"), str(folder / "one"), "--ranks", "1"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert "step 3, for 1 rank (2 before) of 32 samples" in done.stdout
    assert "goes on with the start of epoch 1" in done.stdout
    assert "recd train --resume --ranks 1" in done.stdout
    again = CliRunner().invoke(app, command)
    assert again.exit_code == 2
    assert f"TO: {folder / 'one'} has a run already" in again.stderr
    with pytest.raises(DataError, match="holds no checkpoint"):
        reshard(folder, folder / "none", 2)


def test_the_command_has_what_the_run_was_started_with(
    folder: Path, gloo_pool: GlooPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Overrides of its command line are in no registry.yaml, and who resumes it knows them not."""
    began = [*SHORT, "model.embedding_dim=16", "pooling={history: {use: sum}}", "train.steps=9"]
    gloo_pool.run(run, str(folder), "with-overrides", [*began, "train.checkpoint_every=8"])
    target, given = tmp_path / "a run", folder / "registry.yaml"
    for step, steps in ((9, 30), (8, 9)):  # one that is at its end goes on as registry.yaml says
        name = f"with-overrides/checkpoints/step-{step:08}"
        source = ["reshard", str(folder / name), str(target / str(step)), "--ranks", "1"]
        done = CliRunner().invoke(app, [*source, "--registry", str(given)])
        assert done.exit_code == 0, done.output
        command = shlex.split(done.stdout.splitlines()[-1])
        assert command[:7] == [
            *["recd", "train", "--resume", "--ranks", "1", "--registry"],
            str(given),
        ]
        made = load(given, command[7:]).registry.source.values
        before = json.loads((folder / name / "job.json").read_text())["registry"]
        assert made.pop("train") == {
            **before.pop("train"),
            "ranks": 2,
            "run": str(target / str(step)),
            "steps": steps,
        }
        assert made == before
    monkeypatch.chdir(tmp_path)
    with pytest.warns(NoticeWarning, match="no registry.yaml is here.*--registry FILE"):
        done = CliRunner().invoke(app, [*source[:2], str(target / "none"), "--ranks", "1"])
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize(
    ("before", "after", "overrides"),
    [
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}}, ["a.c=3"]),
        ({"a": {"b": {"d": 1}}}, {"a": {"b": {"d": 1, "e": "7"}}}, ["a.b.e='7'"]),
        ({"a": {"b": 1}}, {"a": {"b": None, "c": None}}, ["a.b=null", "a.c=null"]),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": 1}}, ["a={b: 1}"]),
        ({"a": {"use": "x", "b": 1}}, {"a": {"use": "y", "b": 1}}, ["a={use: y, b: 1}"]),
        ({"a": "x"}, {"a": {"use": "y"}, "l": [1, 2]}, ["a={use: y}", "l=[1, 2]"]),
        ({"a": {}}, {"a": {"x.y": 1, "b": [True]}}, ["a={x.y: 1, b: [true]}"]),
        ({"a": 1, "b": 1}, {"a": 1}, ["b=null"]),
        ({}, {"a": "one\ntwo " + "long " * 50}, None),
    ],
)
def test_overrides_between_registries(
    before: dict[str, Any], after: dict[str, Any], overrides: list[str] | None
) -> None:
    found = overrides_between(before, after)
    assert overrides is None or found == overrides
    made = Source.read(before, found).values
    assert {key: value for key, value in made.items() if value is not None} == after


def test_it_writes_where_train_would(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(target: Path) -> str:
        before = sorted(tmp_path.rglob("*"))
        command = ["reshard", str(folder / "two"), str(target), "--ranks", "1"]
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 2
        assert sorted(tmp_path.rglob("*")) == before
        return done.stderr

    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("")
    found = refused(tmp_path / "thesis")
    assert f"TO: {tmp_path / 'thesis'} is not a run's folder: it holds chapter.tex." in found
    (tmp_path / "other" / "checkpoints" / "step-00000003").mkdir(parents=True)
    found = refused(tmp_path / "other" / "checkpoints" / "x")
    assert f"lies in {tmp_path / 'other' / 'checkpoints'}, where another run has its" in found
    monkeypatch.chdir(tmp_path / "thesis")
    assert "TO: . is the folder in which this command runs" in refused(Path())
    monkeypatch.setattr(LockFile, "take", mock.Mock(side_effect=LockHeld("process 1")))
    (tmp_path / ".busy.lock").touch()
    assert "busy is being trained in by process 1" in refused(tmp_path / "busy")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("job.json", "[]"),
        ("job.json", "{}"),
        ("job.json", '{"step": 3, "world_size": "2", "registry": {}}'),
        ("job.json", '{"step": 3, "world_size": 2, "registry": []}'),
        ("rank-0.json", "[]"),
        ("rank-0.json", "{}"),
        ("digest.json", "[" * 100_000),
        ("metadata.json", None),
        ("__0_0.distcp", None),
    ],
)
def test_a_damaged_checkpoint_is_not_written_anew(
    folder: Path, tmp_path: Path, name: str, text: str | None
) -> None:
    shutil.copytree(folder / "two", tmp_path / "two")
    file = tmp_path / "two/checkpoints/step-00000003" / name
    file.unlink() if text is None else file.write_text(text)
    with pytest.raises(DataError, match="The checkpoint is damaged: none is there before it"):
        reshard(tmp_path / "two", tmp_path / "one", 1)
    assert not (tmp_path / "one").exists()


def test_what_the_disk_has_no_room_for_is_removed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "the file that was read")

    monkeypatch.setattr(shutil, "copyfile", full)
    command = ["reshard", str(folder / "two"), str(tmp_path / "one"), "--ranks", "1"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 2, done.output
    assert f"{tmp_path}/one/checkpoints/step-00000003: No space left on device" in done.output
    assert list((tmp_path / "one/checkpoints").iterdir()) == []


@pytest.mark.parametrize(
    ("read", "yielded", "begins"), [(0, 0, 2), (4, 0, 3), (0, 1, 3), (4, 1, 3)]
)
def test_a_window_that_is_under_way_belongs_to_its_epoch(
    tmp_path: Path, read: int, yielded: int, begins: int
) -> None:
    """Hot batches keep the reader's state at the start of a window, which may be that of the
    epoch."""
    loader = {"epoch": 2, "batches": read, "torchdata": None}
    position = {"loader": loader, "batches": yielded, "window": {"batches": 8}}
    write_json(tmp_path / "rank-0.json", {"loader": position})
    write_json(tmp_path / "job.json", {"step": 1, "world_size": 2, "registry": {}})
    assert for_ranks(tmp_path, 3).begins_epoch == begins


def test_a_position_within_a_stage_is_at_the_epoch_too() -> None:
    fresh = {"window": {"epoch": 0, "batches": 0, "torchdata": None}, "index": 0}
    assert resumed_position(fresh, {"begins_epoch": 3})["window"]["epoch"] == 3
    assert resumed_position(fresh, {"begins_epoch": None}) == fresh
    assert resumed_position({}, fresh) == fresh

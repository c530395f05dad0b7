"""Two gloo ranks train, one or four go on from what `recd reshard` wrote of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from jobs import REGISTRY, metrics
from typer.testing import CliRunner

from recd_plugins.cli.main import app
from recd_plugins.errors import DataError, RecdError, RegistryError
from recd_plugins.stack import load
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.trainer.reshard import reshard, resumed_position

SHORT = ["train.eval_every=0", "train.checkpoint_every=0", "train.log_every=1"]
STREAMS = [*SHORT, "reader.streams=4"]
TOLERANCE = 1e-6
"""Sums over ranks add floats in another order."""


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
    assert after["test"] == pytest.approx(before["test"], abs=TOLERANCE)
    options = [*SHORT, "train.steps=5"]
    (on, *_) = gloo_pool.run(run, str(folder), name, options, True, world_size=ranks)
    assert (on["step"], on["world_size"]) == (5, ranks)
    last = folder / name / f"checkpoints/step-00000005/rank-{ranks - 1}.json"
    position = json.loads(last.read_text())["loader"]
    assert (position["epoch"], position["batches"]) == (1, 2)


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
        assert mine["loss"] == pytest.approx(theirs["loss"], abs=TOLERANCE)


def test_the_command_says_what_goes_on_and_what_cannot(folder: Path, gloo_pool: GlooPool) -> None:
    refused = gloo_pool.run(run, str(folder), "two", SHORT, True, world_size=1)[0]
    assert refused.startswith(RegistryError.__name__)
    assert "or let `recd reshard` write it for another number" in refused
    command = ["reshard", str(folder / "two"), str(folder / "one"), "--ranks", "1"]
    said = CliRunner().invoke(app, command)
    assert said.exit_code == 0, said.output
    assert "step 3, for 1 ranks (2 before) of 32 samples" in said.stdout
    assert "goes on with the start of epoch 1" in said.stdout
    assert "recd train --resume --ranks 1" in said.stdout
    assert CliRunner().invoke(app, command).exit_code == 2  # it is there already
    with pytest.raises(DataError, match="holds no checkpoint"):
        reshard(folder, folder / "none", 2)


def test_a_position_within_a_stage_is_at_the_epoch_too() -> None:
    fresh = {"window": {"epoch": 0, "batches": 0, "torchdata": None}, "index": 0}
    assert resumed_position(fresh, {"begins_epoch": 3})["window"]["epoch"] == 3
    assert resumed_position(fresh, {"begins_epoch": None}) == fresh
    assert resumed_position({}, fresh) == fresh

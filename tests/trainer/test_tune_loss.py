"""Ladder: value tests of the time to a loss, then `recd tune loss` as a user starts it."""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path

import pytest
from forked import Done, run_module
from probe_plugin import probe_registry

from recd_plugins.cli.tune_loss import _found, _other_windows, _show
from recd_plugins.trainer.tuning.learning import Learning, loss_of_all

pytestmark = pytest.mark.slow


def learning(losses: list[float], samples_per_step: int = 10, warm_up: int = 0) -> Learning:
    return Learning(
        batch_size=samples_per_step,
        samples_per_step=samples_per_step,
        memory_mib=1.0,
        seconds=[100.0] * warm_up + [2.0] * (len(losses) - warm_up),
        losses=losses,
        warm_up=warm_up,
    )


def test_the_loss_is_that_of_a_window_of_samples() -> None:
    one = learning([0.9, 0.7, 0.5, 0.3])
    assert one.running(10) == [0.9, 0.7, 0.5, 0.3]
    assert one.running(20) == pytest.approx([0.8, 0.6, 0.4])
    assert one.running(5) == one.running(10)  # no window is smaller than a step
    assert (one.steps_to(0.6, 10), one.steps_to(0.61, 20), one.steps_to(0.1, 10)) == (3, 3, None)
    assert (one.seconds_to(0.6, 10), one.seconds_to(0.1, 10)) == (6.0, None)


def test_windows_that_are_no_whole_steps_are_told_as_they_are() -> None:
    assert _other_windows([8, 64], 1, 64, 512) is None
    said = _other_windows([8, 16, 64], 2, 100, 512)
    assert said is not None
    for what in ("is 100 samples, but", "96 samples at 8, 96 samples at 16, 128 samples at 64"):
        assert what in said
    assert said.endswith("pass --window 128, or a multiple of it.")
    assert _other_windows([8, 16, 64], 2, 128, 512) is None
    said = _other_windows([7, 11, 13], 1, 100, 512)
    assert said is not None
    assert said.endswith("at all sizes name batch sizes each of which divides the next.")


def test_warm_up_counts_as_other_steps_do() -> None:
    one = learning([0.9, 0.7, 0.5, 0.3], warm_up=2)
    assert one.seconds_to(0.7, 10) == 4.0
    assert one.seconds_to(0.3, 10) == 8.0


def test_all_reach_the_worst_of_their_least_losses() -> None:
    small, large = learning([0.9, 0.5, 0.4]), learning([0.9, 0.7, 0.8], 20)
    assert loss_of_all([small, large], 20) == pytest.approx(0.7)
    assert large.steps_to(loss_of_all([small, large], 20), 20) == 2
    assert small.steps_to(loss_of_all([small, large], 20), 20) == 2


def test_sizes_that_diverge_are_none_that_all_reach() -> None:
    """Whenever they do: a loss that is no number is neither less nor more than another."""
    good, late = learning([0.9, 0.5, 0.4]), learning([0.9, 0.6, math.nan])
    never = learning([math.nan, math.inf, math.nan])
    assert loss_of_all([never, good, late], 10) == 0.6
    assert (never.least(10), late.steps_to(0.6, 10), never.steps_to(0.6, 10)) == (None, 2, None)
    assert loss_of_all([never], 10) is None
    found = _found({"without cache": {10: never, 20: good}}, None, 10, 1, 1_000)
    json.dumps(found, allow_nan=False)
    assert [row["steps"] for row in found["sides"]["without cache"]] == [None, 3]
    assert _found({"without cache": {10: never}}, None, 10, 1, 1_000)["loss"] is None


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        ({10: None}, "no batch size fits"),
        ({10: learning([math.nan])}, "no batch size learns: every loss is infinite, or no number."),
        ({10: learning([math.nan]), 20: learning([0.5])}, "diverges"),
    ],
)
def test_what_does_not_learn_is_named(
    sizes: dict[int, Learning | None], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _show(_found({"without cache": sizes}, None, 10, 1, 1_000))
    assert says in capsys.readouterr().out


def test_a_loss_that_is_not_reached_is_told_with_the_least_that_was(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _show(_found({"without cache": {10: learning([0.9, 0.5, 0.7])}}, 0.4, 10, 1, 1_000))
    assert "not reached, only 0.50000" in capsys.readouterr().out


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tune_loss")
    file = folder / "registry.yaml"
    file.write_text(json.dumps(probe_registry(folder, rows=512, ranks=1)))  # JSON is YAML
    return file


def tune(registry: Path, *arguments: str) -> Done:
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    command = ("tune", "loss", "--registry", str(registry), *arguments)
    environment = {"PYTHONPATH": path}
    return run_module("recd_plugins", *command, folder=registry.parent, environment=environment)


def test_batch_sizes_are_trained_to_one_loss(registry: Path) -> None:
    result = tune(registry, "--batch-size=8", "--batch-size=64", "--json")
    assert result.code == 0, result.err
    found = json.loads(result.out)
    assert (found["window"], found["ranks"]) == (64, 1)
    assert list(found["sides"]) == ["without cache"]  # the registry chooses none
    small, large = found["sides"]["without cache"]
    assert (small["batch_size"], large["batch_size"]) == (8, 64)
    assert found["loss"] == max(small["least_loss"], large["least_loss"])
    assert 8 <= small["steps"] <= 64
    assert 1 <= large["steps"] <= 8
    assert small["seconds"] > 0
    assert found["epochs"] == 1
    tuned = tune(registry, "--batch-size=64", "--samples=256", "--loss=5")
    assert tuned.code == 0, tuned.err
    assert "note" not in tuned.err
    assert "to a loss of 5.00000, the mean of 64 samples, on 1 rank" in tuned.out
    assert " best " in tuned.out
    tuned = tune(registry, "--batch-size=64", "--samples=256", "--loss=5", "--window=100")
    assert (tuned.code, "by batch size it is of 64 samples at 64, and" in tuned.err) == (0, True)
    # Reached at once, so no step more than the pipeline needs.
    assert [row.split("│")[4].strip() for row in tuned.out.splitlines() if " best " in row] == ["1"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            ["--batch-size=8", "--batch-size=256"],
            "--batch-size: 3 steps, the fewest of a trial, of 256 samples on 1 rank take 768, but "
            "there are 512. Name 170 at most, or give the train split more rows.",
        ),
        (
            ["--batch-size=64", "--samples=100"],
            "but there are 100. Name 33 at most, or raise --samples.",
        ),
        (
            ["--samples=100", "--window=128"],
            "--window: so many samples are 128, but 100 are trained, so that no loss would be of "
            "as many. Lower it, or raise --samples.",
        ),
    ],
)
def test_what_cannot_be_tried_is_refused(registry: Path, options: list[str], says: str) -> None:
    tuned = tune(registry, *options)
    assert (tuned.code, says in tuned.err) == (2, True), tuned.err


def test_sizes_around_the_registrys_are_those_that_the_samples_suffice_for(registry: Path) -> None:
    """Of larger ones a window would be of more samples than the smaller ones train."""
    tuned = tune(registry, "--samples=100", "--json")
    assert tuned.code == 0, tuned.err
    found = json.loads(tuned.out)
    assert [one["batch_size"] for one in found["sides"]["without cache"]] == [2, 8, 32]
    assert found["window"] == 32


def test_losses_of_rows_that_were_learnt_from_are_told(registry: Path) -> None:
    tuned = tune(registry, "--batch-size=64", "--samples=1280", "--json")
    assert tuned.code == 0, tuned.err
    assert json.loads(tuned.out)["epochs"] == 2.5
    assert "went 2.5 times through the 512 rows of the train split" in tuned.err
    assert "pass --samples 512 or fewer" in tuned.err

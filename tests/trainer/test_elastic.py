"""One to four gloo ranks, restarted as torchrun does: on others each time, with no option."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from jobs import REGISTRY, metrics
from torch.distributed import HashStore

from recd_plugins.errors import RecdError
from recd_plugins.launch.environment import ELASTIC
from recd_plugins.stack import load
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.trainer import elastic
from recd_plugins.trainer.run import train

LOSS = 1e-6
"""What a loss may differ by where ranks divide the samples otherwise, as in test_reshard."""

SETTINGS = [
    "train.eval_every=0",
    "train.eval_batches=1",
    "train.log_every=1",
    "train.checkpoint_every=3",
    "reader.streams=12",
    "train.batch_size=24",
]


def test_ranks_meet_those_of_their_own_attempt_alone() -> None:
    store = HashStore()
    for word in ("here/0", "here/1", "here/2", "proposed", "begins"):  # of ranks that are gone
        store.set(word, '["x", "y", "z"]')
    names = []
    for world_size in (3, 2, 3):
        with ThreadPoolExecutor(world_size) as pool:
            ranks = reversed(range(world_size))
            met = list(
                pool.map(lambda rank, n=world_size: elastic.attempt_name(store, rank, n), ranks)
            )
        assert len(set(met)) == 1
        names.append(met[0])
    assert len(set(names)) == 3


@pytest.mark.slow
def test_a_rank_that_does_not_come_is_named() -> None:
    store = HashStore()
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(elastic.attempt_name, store, 1, 3, 1.0)
        store.wait(["here/1"])
        with pytest.raises(RecdError, match=r"waited 1 s .* 3 ranks .*; rank 2 did not come"):
            elastic.attempt_name(store, 0, 3, 1.0)
        assert isinstance(other.exception(), RecdError)
    for word in ("here/0", "here/1", "here/2"):  # of ranks that are gone
        store.set(word, "x")
    with pytest.raises(RecdError, match="ranks 1, 2 did not come"):
        elastic.attempt_name(store, 0, 3, 0.2)


def attempt(
    folder: str, name: str, overrides: Sequence[str], parent: str | None = "an agent"
) -> Any:
    """On a rank that `parent` started, which torchrun is if it is one: train; the summary."""
    settings = [f"folder={folder}/data", f"train.run={folder}/{name}", *SETTINGS, *overrides]
    named = elastic._parent
    if parent is not None:
        os.environ[ELASTIC] = "a-job"
        elastic._parent = lambda: parent  # the pool has one parent for all of its life
    try:
        return train(load(Path(folder) / "registry.yaml", settings), torch.device("cpu"))
    except RecdError as error:
        return f"{type(error).__name__}: {error}"
    finally:
        os.environ.pop(ELASTIC, None)
        elastic._parent = named


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("elastic")
    (folder / "registry.yaml").write_text(REGISTRY)
    return folder


def batch_size(folder: Path, name: str, step: int) -> tuple[int, int]:
    """Ranks and samples of each that a checkpoint was made with."""
    job = json.loads((folder / name / f"checkpoints/step-{step:08}/job.json").read_text())
    return job["world_size"], job["registry"]["train"]["batch_size"]


def test_four_three_and_four_ranks_train_as_four_do(folder: Path, gloo_pool: GlooPool) -> None:
    gloo_pool.run(attempt, str(folder), "whole", ["train.steps=9"], world_size=4)
    # Lost after step 3; lost and back at once after step 5; one more after step 6.
    for ranks, steps in ((4, 3), (3, 5), (3, 6), (4, 9)):
        (summary, *_) = gloo_pool.run(
            attempt, str(folder), "parts", [f"train.steps={steps}"], world_size=ranks
        )
        assert (summary["step"], summary["world_size"]) == (steps, ranks), summary
    assert batch_size(folder, "parts", 6) == (3, 32)
    assert batch_size(folder, "parts", 9) == (4, 24)
    expected = {one["step"]: one for one in metrics(folder, "whole") if one["kind"] == "train"}
    found = [one for one in metrics(folder, "parts") if one["kind"] == "train"]
    assert [one["step"] for one in found] == list(range(1, 10))
    for one in found:
        assert one["loss"] == pytest.approx(expected[one["step"]]["loss"], abs=LOSS)
        assert one["samples"] == 96
    assert not (folder / "parts.1").exists()


@pytest.mark.parametrize("kind", ["plain", "scars"])
def test_one_rank_goes_on_where_two_were(kind: str, folder: Path, gloo_pool: GlooPool) -> None:
    """`--nnodes 1:2`: alone a rank exchanges nothing, and replicas are worth nothing to it."""
    tiers = TIERS.get(kind, [])
    gloo_pool.run(replicas, str(folder), f"{kind}-two", tiers, 5, world_size=2)
    for ranks, steps in ((2, 2), (1, 4), (2, 5)):
        options = [*tiers, "train.checkpoint_every=2"]
        (summary, *_) = gloo_pool.run(
            replicas, str(folder), f"{kind}-one", options, steps, world_size=ranks
        )
        assert (summary["step"], summary["world_size"]) == (steps, ranks), summary
    assert batch_size(folder, f"{kind}-one", 4) == (1, 48)
    found = losses(folder, f"{kind}-one")
    assert len(found) == 5
    assert found == pytest.approx(losses(folder, f"{kind}-two"), abs=LOSS)


def test_samples_that_ranks_cannot_share_come_back_with_them(
    folder: Path, gloo_pool: GlooPool
) -> None:
    # 100 a step, of which three ranks have no even share; and no streams that ranks could share.
    odd = ["train.batch_size=25", "reader.streams=null"]
    for ranks, steps in ((4, 3), (3, 6), (4, 9)):
        options = [*odd, f"train.steps={steps}"]
        (summary, *_) = gloo_pool.run(attempt, str(folder), "odd", options, world_size=ranks)
        assert summary["step"] == steps, summary
    found = [batch_size(folder, "odd", step) for step in (6, 9)]
    assert found == [(3, 25), (4, 25)]
    position = json.loads((folder / "odd/checkpoints/step-00000006/rank-0.json").read_text())
    assert (position["loader"]["epoch"], position["loader"]["batches"]) == (1, 3)


def test_streams_that_ranks_cannot_share_come_back_with_them(
    folder: Path, gloo_pool: GlooPool
) -> None:
    """Four streams: three ranks have three, from the next epoch on."""
    for ranks, steps in ((4, 3), (3, 5), (3, 6), (4, 9)):
        options = ["reader.streams=4", f"train.steps={steps}"]
        (summary, *_) = gloo_pool.run(attempt, str(folder), "streams", options, world_size=ranks)
        assert (summary["step"], summary["world_size"]) == (steps, ranks), summary
    job = json.loads((folder / "streams/checkpoints/step-00000006/job.json").read_text())
    assert job["registry"]["reader"]["streams"] == 3
    (place,) = {
        (position["loader"]["epoch"], position["loader"]["batches"])
        for rank in range(3)
        for position in [
            json.loads((folder / f"streams/checkpoints/step-00000006/rank-{rank}.json").read_text())
        ]
    }
    assert place == (1, 3)
    last = json.loads((folder / "streams/checkpoints/step-00000009/rank-0.json").read_text())
    assert (last["loader"]["epoch"], last["loader"]["batches"]) == (2, 3)


SLOW_LINKS = "topology={ranks_per_node: 1, inter_node_gbps: 0.01}"
"""Links on which replicas are worth their operations."""
OPTIMIZER = ["train.optimizer.tables=sgd", "train.optimizer.dense=sgd"]
TIERS = {
    "flexshard": [
        "plugins=[recd_dlrm, recd_flexshard]",
        "sharding={use: flexshard, goal: min_communication, profile_batches: 1, "
        "others: {search: greedy}}",
        "train.retier_every=2",
    ],
    "scars": [
        "plugins=[recd_dlrm, recd_scars]",
        "cache={use: scars, size: hit_rate, hit_rate: 0.5, hot_batches: false}",
    ],
}


def replicas(folder: str, name: str, tiers: Sequence[str], steps: int) -> Any:
    """On a rank: train with replicas, or plainly; the summary."""
    options = [SLOW_LINKS, *OPTIMIZER, *tiers, f"train.steps={steps}"]
    return attempt(folder, name, options)


def losses(folder: Path, name: str) -> list[float]:
    return [one["loss"] for one in metrics(folder, name) if one["kind"] == "train"]


@pytest.fixture(scope="module")
def plain(folder: Path, gloo_pool: GlooPool) -> list[float]:
    """The losses of a run without replicas."""
    gloo_pool.run(replicas, str(folder), "plain", [], 6, world_size=4)
    return losses(folder, "plain")


@pytest.mark.parametrize("kind", TIERS)
def test_replicas_outlive_another_number_of_ranks(
    kind: str, folder: Path, plain: list[float], gloo_pool: GlooPool
) -> None:
    name = f"{kind}-parts"
    for ranks, steps in ((4, 3), (3, 6)):
        (summary, *_) = gloo_pool.run(
            replicas, str(folder), name, TIERS[kind], steps, world_size=ranks
        )
        assert (summary["step"], summary["world_size"]) == (steps, ranks)
    assert len(plain) == 6
    assert losses(folder, name) == pytest.approx(plain, abs=LOSS)


def test_another_job_begins_anew(folder: Path, gloo_pool: GlooPool) -> None:
    steps = ["train.steps=1"]
    for parent in ("one", "two", None):
        (summary, *_) = gloo_pool.run(attempt, str(folder), "other", steps, parent)
        assert summary["step"] == 1
    assert (folder / "other.2").exists()
    # Without torchrun nothing is restarted, and nobody is noted.
    assert not (folder / "other/launchers.json").exists()

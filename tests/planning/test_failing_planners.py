"""Ladder, two ranks: a stranger's planner that fails in a trainer of one's own is named, on one
rank or on both; and what fails in the trainer's own code is the trainer's."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor

import recd_plugins as rp
from recd_plugins.testing.gloo import GlooPool

PLUGIN = """
from dataclasses import dataclass

from torchrec.distributed.types import ShardingPlan

from recd_plugins.api import Config, ShardingRecord, hookimpl
from recd_plugins.api.planning import from_rank_0


@dataclass(frozen=True, kw_only=True)
class FailingConfig(Config):
    '''It fails.'''
    how: str
    '''How.'''


class Failing:
    def __init__(self, config, context):
        self.how, self.context = config.how, context
        if self.how == "when built":
            raise KeyError("history")

    def plan(self, model, topology, group):
        if self.how in ("everywhere", f"on rank {group.rank()}"):
            raise KeyError("history")
        if self.how.startswith("on rank"):
            return ShardingPlan(plan={})
        if self.how == "for all":
            return from_rank_0(group, self.fail)
        for batch in self.context.batches():
            self.context.features(batch)

    def fail(self):
        raise KeyError("history")

    def sharders(self):
        return [type(one) for one in self.context.sharders()]

    def explain(self):
        return ""


@hookimpl
def recd_sharding():
    one = {"summary": "It fails.", "config": FailingConfig, "build": Failing}
    return [ShardingRecord(name="failing", **one)]
"""


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    file: Path = tmp_path_factory.mktemp("plugins") / "failing_planner.py"
    file.write_text(PLUGIN)
    yield str(file)
    if str(file.parent) in sys.path:
        sys.path.remove(str(file.parent))


class Batches:
    """A trainer's own, the second of which cannot be read."""

    def __init__(self, fails: bool) -> None:
        self.fails = fails

    def __iter__(self) -> Iterator[dict[str, Any]]:
        lengths = torch.ones(4, dtype=torch.int32)
        ids = torch.zeros(4, dtype=torch.int64)
        yield {"kjt": KeyedJaggedTensor(["a"], ids, lengths=lengths), "place": 1}
        if self.fails:
            raise OverflowError("of the trainer's")
        yield {"kjt": None, "place": 2}


def features(batch: dict[str, Any]) -> KeyedJaggedTensor:
    if batch["kjt"] is None:
        raise LookupError("of the trainer's")
    kjt: KeyedJaggedTensor = batch["kjt"]
    return kjt


def model() -> nn.Module:
    table = EmbeddingBagConfig(name="t", embedding_dim=4, num_embeddings=9, feature_names=["a"])
    return nn.Sequential(EmbeddingBagCollection([table], device=torch.device("meta")))


def fails(plugin: str, how: str, loader_fails: bool) -> list[str]:
    """On a rank: the type and the message of the error of a plan, and of what it came from."""
    stack = rp.load({"plugins": [plugin], "sharding": {"use": "failing", "how": how}})
    with pytest.raises(Exception) as caught:  # whatever it raises
        stack.plan(model(), batches=Batches(loader_fails), features=features)
    dist.barrier()  # no rank is left behind in the group
    causes: list[str] = []
    error: BaseException | None = caught.value
    while error is not None:
        causes.append(f"{type(error).__name__}: {error}")
        error = error.__cause__
    return causes


def named(plugin: str, place: str) -> str:
    return (
        f"PluginError: sharding: sharding 'failing' of {plugin}, when it planned: plugin "
        f"{plugin!r} raised KeyError in Failing.{place} (failing_planner.py:"
    )


def test_a_planner_that_fails_is_named_with_a_trainers_batches(
    plugin: str, gloo_pool: GlooPool
) -> None:
    for first, *causes in gloo_pool.run(fails, plugin, "everywhere", True):
        assert first.startswith(named(plugin, "plan"))
        assert causes == ["KeyError: 'history'"]
    for first, *_ in gloo_pool.run(fails, plugin, "when built", True):
        assert f"'failing' of {plugin} raised KeyError in " in first
        assert ") when built: 'history'." in first


@pytest.mark.parametrize("rank", [0, 1])
def test_no_rank_waits_for_one_whose_planner_fails(
    plugin: str, gloo_pool: GlooPool, rank: int
) -> None:
    found = gloo_pool.run(fails, plugin, f"on rank {rank}", True)
    assert found[rank][0].startswith(named(plugin, "plan"))
    assert found[1 - rank] == [
        f"DataError: rank {rank} could not plan by `sharding: failing`, and prints why; no rank "
        "trains without a plan."
    ]


def test_all_ranks_know_whose_planner_failed_for_them(plugin: str, gloo_pool: GlooPool) -> None:
    (first, *_), (other, *_) = gloo_pool.run(fails, plugin, "for all", True)
    assert first.startswith(named(plugin, "fail"))
    assert other.startswith(
        f"FailedOnRank0: sharding: sharding 'failing' of {plugin}, when it planned: rank 0 ended "
        "with KeyError: 'history' That rank prints its traceback;"
    )


def test_what_the_trainer_brought_is_not_the_planners(plugin: str, gloo_pool: GlooPool) -> None:
    for error in gloo_pool.run(fails, plugin, "", True):
        assert error == ["OverflowError: of the trainer's"]
    for error in gloo_pool.run(fails, plugin, "", False):
        assert error == ["LookupError: of the trainer's"]


def brings_classes(plugin: str) -> str:
    """On a rank: the error of sharders that are none."""
    stack = rp.load({"plugins": [plugin], "sharding": {"use": "failing", "how": ""}})
    with pytest.raises(Exception) as caught:  # whatever it raises
        stack.sharders()
    return f"{type(caught.value).__name__}: {caught.value}"


def test_classes_are_no_sharders(plugin: str, gloo_pool: GlooPool) -> None:
    (said,) = gloo_pool.run(brings_classes, plugin, world_size=1)
    assert said.startswith(f"PluginError: sharding: sharding 'failing' of {plugin}: its `sharders`")
    assert (
        "among others the class EmbeddingBagCollectionSharder itself, which is no sharder." in said
    )
    assert said.endswith("Make one of it: `EmbeddingBagCollectionSharder(...)`.")

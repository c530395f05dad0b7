"""Rung 3 (ranks): some of three gloo ranks, without the job's first, take what the first of them
makes, and plan, adapt, order and watch batches among themselves."""

from __future__ import annotations

import warnings
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import ProcessGroup
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection

import recd_plugins as rp
from recd_plugins.api.training import WatchedBatches
from recd_plugins.compat.pytorch import own_store
from recd_plugins.errors import CapabilityError
from recd_plugins.notices import NoticeWarning
from recd_plugins.planning import together as together_module
from recd_plugins.planning.together import from_rank_0, together
from recd_plugins.sparse.keyed import mark_of
from recd_plugins.testing.batches import from_lists
from recd_plugins.testing.gloo import GlooPool

HOT: dict[str, Any] = {
    "plugins": ["recd_scars"],
    "cache": {"use": "scars", "size": "hit_rate", "hit_rate": 1.0, "window": 2},
    "sharding": {"search": "greedy"},
    "topology": {"ranks_per_node": 1, "inter_node_gbps": 0.01},
}
UNIQUE: dict[str, Any] = {
    "plugins": ["recd_dedup"],
    "dedup": {"use": "exact", "groups": "auto", "weigh": "bytes"},
}


def taken() -> str:
    """On a rank: who has made what it is given."""
    group = dist.new_group([1, 2])
    found = ""
    if dist.get_rank() > 0:
        assert isinstance(group, ProcessGroup)
        found = from_rank_0(group, lambda: f"made by rank {dist.get_rank()}")
    dist.barrier()
    return found


def test_a_group_has_a_first_rank_of_its_own(gloo_pool: GlooPool) -> None:
    assert gloo_pool.run(taken, world_size=3) == ["", "made by rank 1", "made by rank 1"]


def pages() -> nn.Module:
    table = EmbeddingBagConfig(
        name="pages", embedding_dim=16, num_embeddings=500, feature_names=["pages"]
    )
    return nn.ModuleDict({"bags": EmbeddingBagCollection([table], device=torch.device("meta"))})


def batches_of_some() -> list[Any]:
    """On a rank: what is deduplicated, which batches are hot, how many notices say that there is no
    such table, and whether it has the forecasts, where rank 0 calls nothing of ours."""
    group = dist.new_group([1, 2])
    found: list[Any] = []
    if dist.get_rank() > 0:
        assert isinstance(group, ProcessGroup)
        batches = [from_lists({"pages": [[row // 16] * 20 for row in range(64)]})] * 4
        unique = rp.load(UNIQUE)
        unique.adapt(pages(), batches=batches, process_group=group)
        found.append(unique.convert(batches[0]).dedup.groups)
        stack = rp.load(HOT)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            of_none = {"none": ParameterConstraints()}
            stack.plan(pages(), process_group=group, batches=batches, constraints=of_none)
        found.append([mark_of(batch) is not None for batch in stack.order(batches)])
        said = [str(one.message) for one in told if one.category is NoticeWarning]
        found.append(sum("there is no such table" in one for one in said))
        watched = WatchedBatches(stack, batches)
        for _ in range(8):  # some of them are looked at
            list(watched)
        found.append(any("lookups that replicated serves" in line for line in watched.lines()))
    dist.barrier()
    return found


def hot_in_unlike_numbers_of_groups() -> list[bool]:
    """On a rank: which batches are hot where two ranks of three train, one of which is in a group
    more than the other."""
    group = dist.new_group([1, 2])
    dist.new_group([0, 1])
    found = []
    if dist.get_rank() > 0:
        assert isinstance(group, ProcessGroup)
        batches = [from_lists({"pages": [[row // 16] * 20 for row in range(64)]})] * 4
        stack = rp.load(HOT)
        stack.plan(pages(), process_group=group, batches=batches)
        found = [mark_of(batch) is not None for batch in stack.order(batches)]
    dist.barrier()
    return found


def test_ranks_in_unlike_numbers_of_groups_agree_on_hot_batches(gloo_pool: GlooPool) -> None:
    found = gloo_pool.run(hot_in_unlike_numbers_of_groups, world_size=3)
    assert found == [[], [True] * 4, [True] * 4]


def test_ranks_of_a_group_wait_for_no_others(gloo_pool: GlooPool) -> None:
    first, *others = gloo_pool.run(batches_of_some, world_size=3)
    assert not first
    assert others == [[(("pages",),), [True] * 4, told, told == 1] for told in (1, 0)]


def waited() -> str:
    """On a rank: what it hears, in a group whose ranks wait a second for each other, where rank 1
    has hung up."""
    group = dist.new_group(timeout=timedelta(seconds=1))
    assert together(group, lambda: 7) == 7
    store = own_store()
    if group.rank() == 1:
        store.wait(["heard"])
        return ""
    with pytest.raises(RuntimeError, match=r"[Tt]imed out") as heard:
        together(group, lambda: 7)
    store.set("heard", "")
    return str(heard.value)


def test_ranks_wait_for_one_that_hangs_as_long_as_in_the_groups_own_collectives(
    gloo_pool: GlooPool,
) -> None:
    assert gloo_pool.run(waited, world_size=2)[0]


def planned_alone() -> tuple[list[str], str]:
    """On the first of two ranks, which alone asks for a plan: its notices, and the error."""
    group = dist.new_group([0, 1], timeout=timedelta(seconds=1))
    notices, failure = [], ""
    if dist.get_rank() == 0:
        assert isinstance(group, ProcessGroup)
        with (
            warnings.catch_warnings(record=True) as given,
            patch.object(together_module, "PATIENCE", timedelta(seconds=0.2)),
        ):
            warnings.simplefilter("always")
            try:
                rp.load({}).plan(pages(), process_group=group)
            except CapabilityError as error:
                failure = str(error)
        notices = [str(one.message) for one in given if one.category is NoticeWarning]
    dist.barrier()
    return notices, failure


def test_a_rank_that_plans_alone_says_so_and_what_to_do(gloo_pool: GlooPool) -> None:
    (first, *more), failure = gloo_pool.run(planned_alone)[0]
    begins, cure = "stack.plan: ", "call it on every rank, outside of `if rank == 0:`."
    assert first.startswith(f"{begins}for 0.2 s rank 0 has waited in it")
    assert first.endswith(cure)
    assert not more
    assert failure.startswith(f"{begins}rank 0 waited in it for the other ranks")
    assert failure.endswith(cure)

"""Rung 3 (ranks): trainers drawn from seeds train, by registries drawn with them, what they train
plainly on the same batches: with replicas of some rows, of all or of none, coalesced or not, on
unique samples, in hot batches.

`DRAWN=1000:1400 pytest tests/foreign_trainers/test_drawn_trainers.py` draws others.
"""

from __future__ import annotations

import os
import warnings
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from drawn_trainer import DrawnBatch, DrawnTrainer, Job, Samples, assembled, train
from torch import Tensor

from recd_plugins.notices import NoticeWarning
from recd_plugins.sparse.features import SparseFeatures
from recd_plugins.sparse.keyed import mark_of
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.testing.parity import assert_alike
from recd_plugins.testing.rounding import plain_of

FIRST, LAST = map(int, os.environ.get("DRAWN", "0:24").split(":"))


def holds(seed: int) -> set[str]:
    """On a rank: it trains as plainly; what of ours it had."""
    trainer = DrawnTrainer.of(seed)
    samples = Samples(trainer)
    *batches, held_out = samples.of_rank(dist.get_rank())
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", NoticeWarning)
        ours = assembled(trainer, "ours", batches)
    ordered = list(ours.loader)
    used = had(ours, ordered)
    if dist.get_rank() == 0:
        check_told(trainer, used, [str(one.message) for one in told])
    which = [batch.samples.tolist() for batch in ordered]
    assert numbers_of(ordered) == numbers_of(batches)
    found = train(trainer, ours, ordered, ours.convert(held_out))

    def plain(rounding: AbstractContextManager[Any]) -> dict[str, Tensor]:
        same = [samples.batch(one) for one in which]
        own = assembled(trainer, "plain", same)
        with rounding:
            return train(trainer, own, same, held_out)

    assert_alike(found, *plain_of(plain))
    return used


def check_told(trainer: DrawnTrainer, used: set[str], told: list[str]) -> None:
    """What is switched on and does nothing is named."""
    if not used & {"replicas", "replicas of nodes", "coalesced by rank", "coalesced by node"}:
        slots = ("sharding: ", "cache: ")
        assert any(one.startswith(slots) for one in told), told
    if "cache" in trainer.registry and "replicas" not in used:
        assert any(one.startswith("cache: ") for one in told), told


def numbers_of(batches: list[DrawnBatch]) -> list[int]:
    return torch.cat([batch.samples for batch in batches]).sort().values.tolist()


def had(ours: Job, ordered: list[DrawnBatch]) -> set[str]:
    plan = getattr(ours.stack.planner(), "tier_plan", None)
    tables = plan.tables.values() if plan is not None else ()
    found = {f"coalesced by {one.coalesce}" for one in tables}
    found |= {"replicas" for one in tables if len(one.replicated)}
    found |= {"replicas of nodes" for one in tables if len(one.per_node)}
    for batch in ordered:
        for one in batch.kjts:
            unique = isinstance(one, SparseFeatures)
            found |= {"unique samples"} if unique else set()
            hot = mark_of(one.plain if unique else one) is not None
            found |= {"hot batches"} if hot else set()
    return found


HAD: dict[int, set[str]] = {}
"""What each trainer had of ours, on any rank."""
EVERYTHING = {
    *("replicas", "replicas of nodes", "unique samples", "hot batches"),
    *(f"coalesced by {level}" for level in ("none", "rank", "node")),
}


@pytest.mark.parametrize("seed", range(FIRST, LAST))
@pytest.mark.filterwarnings("ignore::recd_plugins.notices.NoticeWarning")
def test_a_drawn_trainer_trains_as_plainly(gloo_pool: GlooPool, seed: int) -> None:
    world_size = DrawnTrainer.of(seed).world_size
    HAD[seed] = set.union(*gloo_pool.run(holds, seed, world_size=world_size))


def test_all_that_there_is_was_drawn() -> None:
    if len(HAD) < LAST - FIRST:
        pytest.skip("not all of them ran here")
    assert set.union(*HAD.values()) >= EVERYTHING

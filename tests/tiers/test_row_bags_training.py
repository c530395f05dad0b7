"""Row bags in TorchRec's hands: two and four gloo ranks, beside the collection they stand for.

Names, checkpoints, the pipeline, plans that change.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial

import pytest
import torch
import torch.distributed as dist
from tiered import (
    Bags,
    ByTiers,
    SomeRows,
    own_batch,
    sharded,
    tables,
    tier_plan,
    train_step,
    trained,
)
from torch import Tensor
from torchrec.distributed import DistributedModelParallel, TrainPipelineSparseDist

from recd_plugins.data.batch import Batch
from recd_plugins.testing.arrange import Arrangement, BySharding
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.testing.parity import Bounds, assert_alike
from recd_plugins.testing.rounding import plain_of
from recd_plugins.testing.trained import gather_table
from recd_plugins.tiers.collections.row_bags import TierRowBagCollection

ROW_BAGS = ByTiers(ranks_per_node=2, seed=3, coalesce="rank")
SOME_ROWS = SomeRows("artists", sums="row_wise")
PLAIN = BySharding("row_wise")
SUMS = 1e-6
"""What bags before any training may differ by. Weights are below 1/4 and a bag has 4 ids at most:
three additions on each side round by 2**-25 at most. What divides a mean is off by 1e-6 of it, and
a mean is below 1/4 too."""

Model = DistributedModelParallel


def build(arrange: Arrangement) -> Model:
    return sharded(arrange, Bags)


@cache
def plain(world_size: int) -> tuple[Mapping[str, Tensor], Bounds]:
    """On a rank: what eight steps of TorchRec come to, and what others may be off by."""

    def train(rounding: AbstractContextManager[object]) -> dict[str, Tensor]:
        model = build(PLAIN)
        with rounding:
            for number in range(8):
                train_step(model, number)
        return trained(model)

    return plain_of(train)


def move_between(there: Arrangement, back: Arrangement) -> None:
    """On a rank: four steps, move everything to the other arrangement, four more."""
    first, second = build(there), build(back)
    for number in range(4):
        train_step(first, number)
        train_step(second, number + 20)  # elsewhere
    loaded = second.load_state_dict(first.state_dict())
    assert not loaded.missing_keys
    assert not loaded.unexpected_keys
    second.fused_optimizer.load_state_dict(first.fused_optimizer.state_dict())
    for number in range(4, 8):
        train_step(first, number)
        train_step(second, number)
    for model in (first, second):
        assert_alike(trained(model), *plain(dist.get_world_size()))


@pytest.mark.parametrize(
    ("there", "back"),
    [(ROW_BAGS, PLAIN), (PLAIN, ROW_BAGS), (SOME_ROWS, ROW_BAGS)],
    ids=["to TorchRec", "from TorchRec", "from rows and sums"],
)
def test_checkpoints_move(gloo_pool: GlooPool, there: Arrangement, back: Arrangement) -> None:
    gloo_pool.run(move_between, there, back, world_size=4)


def names(arrange: Arrangement = ROW_BAGS) -> None:
    """On a rank: what TorchRec's module calls things, and how it lays them out."""
    ours, theirs = build(arrange), build(PLAIN)
    assert isinstance(ours.module.bags, TierRowBagCollection)
    assert [name for name, _ in ours.named_parameters()] == [
        name for name, _ in theirs.named_parameters()
    ]
    left, right = ours.state_dict(), theirs.state_dict()
    assert list(left) == list(right)
    for name in left:
        if "embedding" in name:
            assert left[name].metadata() == right[name].metadata()
    assert set(ours.fused_optimizer.params) == set(theirs.fused_optimizer.params)
    mine, whole = (model.module.bags(own_batch(0).features).wait() for model in (ours, theirs))
    widths = [dict(zip(each.keys(), each.length_per_key(), strict=True)) for each in (mine, whole)]
    assert widths[0] == widths[1]
    for key in mine.keys():  # noqa: SIM118
        torch.testing.assert_close(mine[key], whole[key], atol=SUMS, rtol=0)


def test_names_are_those_of_torchrec(gloo_pool: GlooPool) -> None:
    gloo_pool.run(names)
    gloo_pool.run(names, SOME_ROWS)


def load_some() -> None:
    """On a rank: the songs of another model, and nothing of the artists."""
    source, into = build(PLAIN), build(ROW_BAGS)
    for number in range(3):
        train_step(source, number)
        train_step(into, number + 20)  # elsewhere
    before, given = tables(into), source.state_dict()
    some = {name: value for name, value in given.items() if "artists" not in name}
    loaded = into.load_state_dict(some, strict=False)
    assert loaded.missing_keys == ["embedding_bags.artists.weight"]
    assert not loaded.unexpected_keys
    after, songs = tables(into), "embedding_bags.songs.weight"
    for name, now in after.items():
        then = gather_table(given[name]) if name.endswith(songs) else before[name]
        torch.testing.assert_close(now, then, atol=0, rtol=0)


def test_some_tables_may_be_loaded_alone(gloo_pool: GlooPool) -> None:
    gloo_pool.run(load_some)


def retier_under_way() -> None:
    """On a rank: three plans in one run of TorchRec's pipeline, which has batches in flight."""

    def batches() -> Iterator[Batch]:
        return iter([own_batch(number) for number in range(9)])

    def train(arrange: Arrangement, rounding: AbstractContextManager[object]) -> dict[str, Tensor]:
        model = build(arrange)
        optimizer = torch.optim.SGD(model.module.over.parameters(), lr=0.1)
        pipeline = TrainPipelineSparseDist(model, optimizer, torch.device("cpu"))
        stream = batches()
        with rounding:
            for number in range(9):
                if arrange is ROW_BAGS and number in (4, 6):
                    drawn = dataclasses.replace(ROW_BAGS, seed=number)
                    model.sharders[0]._sharded.retier(tier_plan(drawn, n_nodes=2))
                pipeline.progress(stream)
        assert pipeline._pipelined_modules == [model.module.bags]
        return trained(model)

    ours = train(ROW_BAGS, nullcontext())
    assert_alike(ours, *plain_of(partial(train, PLAIN)))


def test_rows_move_between_tiers_in_the_pipeline(gloo_pool: GlooPool) -> None:
    gloo_pool.run(retier_under_way, world_size=4)

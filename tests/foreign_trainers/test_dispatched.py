"""Rung 3: loaders by which one rank reads for all, as Accelerate's `dispatch_batches` and
`split_batches` have it: each batch is broadcast while the trainer asks for it."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterable, Iterator
from datetime import timedelta
from operator import attrgetter
from typing import Any

import pytest
import torch
import torch.distributed as dist
from foreign import CPU, FEATURES, REGISTRY, ROWS, Clicks, Net, job
from torch import Tensor
from torchrec.distributed.train_pipeline import TrainPipelineSparseDist
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

import recd_plugins as rp
from recd_plugins.notices import NoticeWarning
from recd_plugins.planning import together
from recd_plugins.sparse.keyed import mark_of
from recd_plugins.testing.gloo import GlooPool, RanksFailed
from recd_plugins.testing.parity import assert_alike
from recd_plugins.testing.rounding import plain_of

SIZE, STEPS = 6, 12
HOT: dict[str, Any] = {
    "plugins": ["recd_scars"],
    "cache": {"use": "scars", "size": "hit_rate", "hit_rate": 0.95, "window": 4, "force": True},
    "topology": {"ranks_per_node": 1, "inter_node_gbps": 0.02},
}


def tensors(seed: int, size: int) -> dict[str, Tensor]:
    """A batch of tensors alone, two ids of each feature in a sample."""
    draw = torch.Generator().manual_seed(seed)
    tables = {**FEATURES, "shops": "shops"}
    ids = {
        name: torch.randint(0, ROWS[table], (size, 2), generator=draw)
        for name, table in tables.items()
    }
    clicked = torch.randint(0, 2, (size,), generator=draw).float()
    return {"dense": torch.randn(size, 2, generator=draw), "clicked": clicked, **ids}


def clicks_of(batch: dict[str, Tensor]) -> Clicks:
    def kjt(names: Iterable[str], weighted: bool = False) -> KeyedJaggedTensor:
        values = torch.cat([batch[name].flatten() for name in names])
        lengths = torch.full((len(values) // 2,), 2, dtype=torch.int32)
        weights = torch.ones(len(values)) if weighted else None
        return KeyedJaggedTensor(list(names), values, weights=weights, lengths=lengths)

    return Clicks(batch["dense"], kjt(FEATURES), kjt(["shops"], True), batch["clicked"])


class Dispatched:
    """The batches that rank 0 reads, dispatched as Accelerate's DataLoaderDispatcher does: it reads
    one for each rank, or one that it splits, and broadcasts first what it is made of, then that."""

    def __init__(self, batches: list[dict[str, Any]], *, split: bool) -> None:
        self._batches, self._split = batches, split
        self.threads: set[str] = set()
        """Those in which collectives were made."""

    def __len__(self) -> int:
        return len(self._batches) // (1 if self._split else dist.get_world_size())

    def __iter__(self) -> Iterator[Clicks]:
        rank, world_size = dist.get_rank(), dist.get_world_size()
        batches = iter(self._batches)
        for _ in range(len(self)):
            self.threads.add(threading.current_thread().name)
            whole: dict[str, Tensor] = {}
            if rank == 0:
                some = [next(batches) for _ in range(1 if self._split else world_size)]
                whole = {name: torch.cat([one[name] for one in some]) for name in some[0]}
            made_of: list[Any] = [{k: (one.shape, one.dtype) for k, one in whole.items()}]
            dist.broadcast_object_list(made_of)
            for name, (shape, dtype) in made_of[0].items():
                whole.setdefault(name, torch.empty(shape, dtype=dtype))
                dist.broadcast(whole[name], 0)
            yield clicks_of({k: one.chunk(world_size)[rank] for k, one in whole.items()})


def dispatched(split: bool) -> Dispatched:
    many, size = (STEPS, 2 * SIZE) if split else (2 * STEPS, SIZE)
    return Dispatched([tensors(number, size) for number in range(many)], split=split)


def trains(split: bool, hot: bool) -> set[bool]:
    """On a rank: what is planned, ordered and trained by such a loader is what plain TorchRec makes
    of the same batches; which of them are hot."""
    loader, trained = dispatched(split), list[Clicks]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoticeWarning)  # so few rows are not worth a cache
        registry = HOT if hot else {**REGISTRY, "dedup": None}
        own = job("registry", make_loader=lambda _: loader, registry=registry)
        assert own.stack is not None
        batches: Any = own.stack.order(loader, features=attrgetter("sparse", "scored"))
        pipeline = TrainPipelineSparseDist(own.model, own.optimizer, CPU)
        kept = (trained.append(batch) or batch for batch in batches)
        for _ in range(STEPS):
            pipeline.progress(kept)

    def plain(rounding: Any) -> dict[str, Tensor]:
        other = job("plain")
        with rounding:
            for batch in trained:
                other.optimizer.zero_grad()
                other.model(batch)[0].backward()
                other.optimizer.step()
        return other.trained()

    assert_alike(own.trained(), *plain_of(plain))
    assert loader.threads == {threading.current_thread().name}
    return {mark_of(batch.sparse) is not None for batch in trained}


@pytest.mark.parametrize("hot", [False, True], ids=["", "hot batches"])
@pytest.mark.parametrize("split", [False, True], ids=["dispatched", "split"])
def test_a_loader_by_which_one_rank_reads_for_all(
    gloo_pool: GlooPool, split: bool, hot: bool
) -> None:
    first, second = gloo_pool.run(trains, split, hot)
    assert first == second
    assert True in first or not hot


def adapts() -> tuple[Any, int]:
    """On a rank: the groups that are chosen by batches of such a loader."""
    loader = dispatched(True)
    stack = rp.load({**REGISTRY, "dedup": {"use": "exact", "groups": "auto"}})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoticeWarning)  # nothing repeats
        stack.adapt(Net(), batches=loader, features=attrgetter("sparse"))
    return stack.groups, sum(1 for _ in loader)


def test_dedup_looks_at_batches_that_one_rank_reads_for_all(gloo_pool: GlooPool) -> None:
    first, second = gloo_pool.run(adapts)
    assert first == second
    assert first[1] == STEPS


def fails() -> None:
    """On a rank: rank 0 cannot dispatch, as Accelerate cannot what is no tensor, and the other
    waits in its broadcast."""
    together.PATIENCE = timedelta(seconds=1)
    batches: list[dict[str, Any]] = [{"sparse": None} for _ in range(4)]
    job("registry", make_loader=lambda _: Dispatched(batches, split=False))


def test_what_cannot_be_dispatched_is_told_and_nobody_waits_for_ever(gloo_pool: GlooPool) -> None:
    with pytest.raises(RanksFailed) as caught:
        gloo_pool.run(fails)
    told = " ".join(str(caught.value).split())
    assert "rank 0 could not count its batches (TypeError: " in told
    assert "DataLoaderConfiguration(dispatch_batches=False)" in told


def agrees_in_unlike_numbers_of_groups(some: bool) -> int:
    """On a rank: what two ranks agree on, of which one has made a group for itself."""
    if dist.get_rank() > 1:
        return -1
    group = dist.group.WORLD
    if some:
        group = dist.new_group([0, 1], use_local_synchronization=True)
    assert group is not None
    if dist.get_rank() == 0:
        dist.new_group([0], use_local_synchronization=True)
    return together.together(group, dist.get_rank)


@pytest.mark.parametrize("more", [0, 1])
def test_ranks_agree_that_are_in_unlike_numbers_of_groups(more: int, gloo_pool: GlooPool) -> None:
    found = gloo_pool.run(agrees_in_unlike_numbers_of_groups, bool(more), world_size=2 + more)
    assert found == [1, 1, -1][: 2 + more]

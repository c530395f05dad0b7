"""Exchanges both ways at once hand over what torch's own do, to the bit."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup
from torchrec.distributed import comm_ops, dist_data

from recd_plugins.compat import both_ways
from recd_plugins.compat.both_ways import (
    all_to_all_both_ways,
    can_exchange_both_ways,
    exchange_both_ways,
    show_messages,
)
from recd_plugins.planning.cluster.exchanges import exchange_as_measured
from recd_plugins.planning.cluster.topology import Topology
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.trainer.measure.traffic import TrafficCounter

CASES = 40


def world() -> ProcessGroup:
    found = dist.group.WORLD
    assert found is not None
    return found


def drawn(case: int) -> tuple[Tensor, list[int], list[int]]:
    """This rank's parts, the rows that it sends to each rank and those that it receives: uneven,
    some of none, some ranks with nothing at all."""
    size, rank = dist.get_world_size(), dist.get_rank()
    draw = torch.Generator().manual_seed(case)
    splits = torch.randint(0, (1, 4, 3000)[case % 3], (size, size), generator=draw)
    if case % 4 == 0:
        splits[case % size] = 0
    width = (1, 3)[case % 2]
    dtype = (torch.float32, torch.int64, torch.int32, torch.bfloat16, torch.bool)[case % 5]
    mine = torch.randn(int(splits[rank].sum()), width, generator=draw) * 100 + rank
    return mine.to(dtype), splits[rank].tolist(), splits[:, rank].tolist()


def exchanged(call: Any, case: int, **options: Any) -> tuple[Tensor, Any]:
    mine, sends, receives = drawn(case)
    received = torch.empty(sum(receives), mine.shape[1], dtype=mine.dtype)
    return received, call(received, mine, receives, sends, **options)


def one_after_the_other() -> None:
    for case in range(CASES):
        expected, _ = exchanged(dist.all_to_all_single, case)
        found, work = exchanged(all_to_all_both_ways, case)
        assert work is None
        assert torch.equal(found, expected), case


def test_what_is_exchanged_is_torch_s(gloo_pool: GlooPool) -> None:
    for ranks in (2, 3):
        gloo_pool.run(one_after_the_other, world_size=ranks)


def all_at_once() -> None:
    """More than may be under way, in one order on all ranks, waited for in another."""
    expected = [exchanged(dist.all_to_all_single, case)[0] for case in range(CASES)]
    begun = [
        exchanged(all_to_all_both_ways, case % CASES, async_op=True) for case in range(2 * CASES)
    ]
    assert len(both_ways._UNDER_WAY[world()]) == both_ways.MOST_UNDER_WAY
    for number in reversed(range(2 * CASES)):
        found, work = begun[number]
        assert work.wait()
        assert work.wait()  # as TorchRec may, twice
        assert work.is_completed()
        assert torch.equal(found, expected[number % CASES])
    assert not both_ways._UNDER_WAY[world()]


def test_many_are_under_way_at_once(gloo_pool: GlooPool) -> None:
    gloo_pool.run(all_at_once, world_size=2)


def forgotten() -> None:
    """Of an exchange that nobody waits for nothing comes in the place of the next."""
    exchanged(all_to_all_both_ways, 7, async_op=True)
    expected, _ = exchanged(dist.all_to_all_single, 11)
    found, _ = exchanged(all_to_all_both_ways, 11)
    assert torch.equal(found, expected)
    for left in list(both_ways._UNDER_WAY[world()]):
        left.wait()


def test_an_exchange_that_nobody_waits_for_spoils_none(gloo_pool: GlooPool) -> None:
    gloo_pool.run(forgotten, world_size=2)


@contextmanager
def switched_on() -> Iterator[None]:
    exchange_both_ways(world())
    try:
        yield
    finally:
        exchange_both_ways(world(), on=False)


def of_torchrec() -> None:
    """TorchRec's files ask; another group, and torch's own function, are as they were."""
    assert can_exchange_both_ways(world())
    size = world().size()
    other = dist.new_group(list(range(size)))
    assert other is not None
    asked: Any = dist_data
    equal = torch.arange(size * 2.0) + 100 * dist.get_rank()
    expected = torch.empty(size * 2)
    dist.all_to_all_single(expected, equal)
    with switched_on():
        assert asked.dist is comm_ops.dist  # type: ignore[attr-defined]
        for group, operator in ((None, "recd_plugins"), (other, "c10d")):
            found = torch.empty(size * 2)
            with torch.profiler.profile() as profiler:
                work = asked.dist.all_to_all_single(found, equal, group=group, async_op=True)
                assert isinstance(work, dist.Work)
                work.wait()
            assert torch.equal(found, expected)
            assert any(event.name.startswith(f"{operator}::all") for event in profiler.events())
        assert asked.dist.get_world_size() == size
    with torch.profiler.profile() as profiler:
        asked.dist.all_to_all_single(torch.empty(size * 2), equal)
    assert not any(event.name.startswith("recd_plugins::") for event in profiler.events())


def test_torchrec_asks_how_a_group_exchanges(gloo_pool: GlooPool) -> None:
    gloo_pool.run(of_torchrec, world_size=2)


def messages_in(profiler: Any) -> list[str]:
    return [one.name for one in profiler.events() if one.name in ("gloo:recv", "gloo:send")]


def profiled() -> None:
    """Whoever waits for a message past the profile that has it writes into freed memory."""
    for _ in range(20):
        with torch.profiler.profile() as profiler:
            begun = [exchanged(all_to_all_both_ways, case, async_op=True) for case in range(8)]
        assert not messages_in(profiler)
        del profiler
        others = [torch.full((size,), 7) for size in range(1, 300)]
        for _, work in begun:
            work.wait()
        assert all(bool((one == 7).all()) for one in others)
    with torch.profiler.profile() as profiler:
        with show_messages():
            for case in range(8):
                exchanged(all_to_all_both_ways, case, async_op=True)
        assert not both_ways._UNDER_WAY[world()]
        exchanged(all_to_all_both_ways, 1)
    other = 1 - dist.get_rank()
    each = [drawn(case) for case in range(8)]
    sends = sum(1 for _, sent, _ in each if sent[other])
    receives = sum(1 for _, _, received in each if received[other])
    shown = messages_in(profiler)
    assert (shown.count("gloo:send"), shown.count("gloo:recv")) == (sends, receives)


def test_a_profile_has_messages_only_where_they_end_before_it(gloo_pool: GlooPool) -> None:
    gloo_pool.run(profiled, world_size=2)


def agreed(asked_by: int) -> str:
    """What becomes of it where the topologies of so many ranks ask for it."""
    topology = Topology(both_ways=True if dist.get_rank() < asked_by else None)
    try:
        return exchange_as_measured(topology, world())
    finally:
        assert (world() in both_ways._ON) == (asked_by == dist.get_world_size())
        exchange_both_ways(world(), on=False)


def test_ranks_agree_or_exchange_as_they_did(gloo_pool: GlooPool) -> None:
    for asked_by, said in ((0, ""), (1, "not all ranks' topologies"), (2, "both ways at once")):
        for found in gloo_pool.run(agreed, asked_by, world_size=2):
            assert said in found
            assert bool(said) == bool(found)


def counted() -> None:
    counts = []
    for call in (dist.all_to_all_single, all_to_all_both_ways):
        with TrafficCounter() as counter:
            exchanged(call, 5)
            call(torch.empty(4), torch.empty(4))
        counts.append((copy.deepcopy(counter.traffic), counter.sent))
    assert counts[0] == counts[1]
    assert counts[0][0]["all_to_all"]


def test_its_bytes_are_counted_as_torch_s(gloo_pool: GlooPool) -> None:
    gloo_pool.run(counted, world_size=2)


def wrong_sizes() -> None:
    with pytest.raises(RuntimeError, match="split"):
        all_to_all_both_ways(torch.empty(3), torch.empty(4), [1, 1], [2, 2])
    found, _ = exchanged(all_to_all_both_ways, 11)  # nothing was sent, and the next is right
    expected, _ = exchanged(dist.all_to_all_single, 11)
    assert torch.equal(found, expected)


def test_sizes_that_do_not_add_up_are_refused(gloo_pool: GlooPool) -> None:
    gloo_pool.run(wrong_sizes, world_size=2)

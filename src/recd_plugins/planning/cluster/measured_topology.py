"""The topology of a running process group: bandwidth and latency of its collectives, measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from recd_plugins.compat.both_ways import all_to_all_both_ways, can_exchange_both_ways
from recd_plugins.compat.pytorch import (
    all_gather_single,
    own_group,
    reduce_scatter_single,
)
from recd_plugins.errors import CapabilityError, RecdError
from recd_plugins.planning.cluster.measured_disk import mapped_row_ns
from recd_plugins.planning.cluster.measured_work import crowded, float32_zeros, gathering, own_work
from recd_plugins.planning.cluster.timer import IN_A_ROW, Timer, middle
from recd_plugins.planning.cluster.topology import GB, Link, Topology, ranks_per_node

__all__ = ["ROUNDS", "fit_link", "least_device_memory", "measure_topology"]

Exchange = Callable[..., Any]
"""torch.distributed's `all_to_all_single`, or one like it."""

SMALL = 1 << 12
"""Bytes of a payload that is all latency."""
LONG_ENOUGH = 0.1
"""Seconds of a call after which payloads grow no further."""
GROWTH = 4
"""How many times as large each payload is as the one before."""
ROUNDS = 12
"""Runs, of which the middle half counts."""
OF_A_STEP = 2
"""Calls of a run with a larger payload, as a step has: rows one way, and their gradients. Ranks
leave the first call at different times, and so they come to the second."""
MUCH_FASTER = 1.1
"""By how much the rates of a link must differ, that it is no noise."""
MOSTLY_BYTES = 16
"""A call measures bandwidth if it takes more than so many latencies."""
BETWEEN = 1 << 14
"""Rows that a rank looks up before each call that is measured. A call of ranks that come from
work of their own waits for the slowest: by itself it would be two or three times as fast."""
BESIDE_ROUNDS = 4
"""Times the rounds in which work beside an exchange is timed: it is a difference of times that are
alike, and by 12 rounds alone came out anywhere from 0 to 1."""
AT_LENGTH = 16
"""How often `BETWEEN` rows are looked up beside an exchange that takes as long: work of the length
that a step has at a time. Where ranks share processors, more of longer work gets done beside an
exchange, and none of shorter work."""


def measure_topology(
    group: ProcessGroup,
    device: torch.device,
    *,
    topology: Topology | None = None,
    largest: int = 1 << 28,
    rounds: int = ROUNDS,
    met: Callable[[str, Link], None] | None = None,
    mapped_folder: Path | None = None,
) -> Topology:
    """Measure a group's collectives across and inside nodes, and a rank's memory, all at once.

    Every rank must call it, and gets the same answer: the slowest rank's. Nodes are those of
    `topology`, by default the launcher's; what it says beside is kept where nothing is measured.
    Payloads grow up to `largest` bytes, or until a call takes long enough; each call is timed
    `rounds` times, and the middle half counts. `met` hears of each link as it is measured. The disk
    is measured where each rank has a `mapped_folder` for mapped files.
    """
    world, timer = group.size(), Timer(group, device, rounds)
    known = topology or Topology()
    w = ranks_per_node(known, world)
    ranks = torch.tensor(dist.get_process_group_ranks(group), device="cpu").view(-1, w)
    node, across = (
        group if each.shape == (1, world) and world > 1 else own_group(each, group)
        for each in (ranks, ranks.T)
    )
    found: dict[str, Any] = {}
    if mapped_folder is not None:
        found["mapped_ns"] = _disk(timer, mapped_folder)
    work = gathering(group, device, BETWEEN)
    exchange: Exchange = dist.all_to_all_single
    if world > w and device.type == "cpu" and can_exchange_both_ways(group):
        exchange, link = _faster_exchange(group, timer, largest, work)
        found |= {"both_ways": exchange is all_to_all_both_ways, "a2a_global": link}
    over, across_by = partial(_all_to_all, exchange), partial(_all_to_all_across, exchange, w)
    collectives: Mapping[str, tuple[ProcessGroup | None, Callable[..., None]]] = {
        "a2a_global": (group, over),
        "a2a_intra": (
            node if world > w > 1 else None,
            partial(_all_to_all, dist.all_to_all_single),
        ),
        "a2a_cross": (group if world > w > 1 else None, across_by),
        "ar_global": (group, _all_reduce),
        "ar_cross": (across if world > w else None, _all_reduce),
    }
    for name, (peers, call) in collectives.items():
        if peers is not None and world > 1:
            if name not in found:
                found[name] = _measured(peers, timer, call, largest, work)
            if met is not None:
                met(name, found[name])
    if "a2a_global" in found and world == w:
        found["a2a_intra"] = found["a2a_global"]
    if "a2a_global" in found:
        found["beside"] = _beside(timer, exchange, found["a2a_global"], largest, work)
    if "a2a_cross" in found:
        found["link_shared"] = _link_shared(timer, exchange, found["a2a_cross"], w, largest)
    if "ar_global" in found:
        found["scattered"] = _scattered(timer, found["ar_global"], largest)
    found |= own_work(timer, work)
    if device.type == "cuda":
        found["device_memory_gb"] = least_device_memory(timer)
    if world > 1:
        found["crowded"] = crowded(timer)
    found |= _links(found, world, w)
    stated = {name: value for name, value in vars(known).items() if value is not None}
    return Topology(**{**stated, **found, "device": device.type, "ranks_per_node": w})


def _faster_exchange(
    group: ProcessGroup, timer: Timer, largest: int, work: Callable[[], object]
) -> tuple[Exchange, Link]:
    """The faster way to exchange across nodes, in turns or both ways at once, and its link."""
    ways: tuple[Exchange, Exchange] = (dist.all_to_all_single, all_to_all_both_ways)
    in_turns, at_once = (
        _measured(group, timer, partial(_all_to_all, way), largest, work) for way in ways
    )
    both_ways = at_once.gbps > MUCH_FASTER * in_turns.gbps
    return ways[both_ways], at_once if both_ways else in_turns


def least_device_memory(timer: Timer) -> float:
    """GB of an accelerator's memory, in tenths: of the rank that has the least."""
    has = torch.cuda.get_device_properties(timer.device).total_memory / GB
    return math.floor(-10 * timer.slowest(-has)) / 10


def fit_link(seconds: Mapping[int, float]) -> Link:
    """A link from seconds by payload: the latency is the smallest's, the bandwidth that of what all
    others add.

    The bandwidth is that of the least squares of relative errors: links have no one rate, for
    buffers speed small payloads up and crowding slows large ones down. Payloads of less than
    `MOSTLY_BYTES` latencies do not count, but for the largest. At least half of a payload's time
    counts as its bytes', so that noise yields no endless bandwidth.
    """
    small, large = min(seconds), max(seconds)
    latency = seconds[small]
    above = product = 0.0
    for payload, took in seconds.items():
        if payload == large or took > MOSTLY_BYTES * latency:
            rate, more = (payload - small) / took, max(took - latency, took / 2) / took
            above, product = above + rate**2, product + rate * more
    return Link(gbps=above / product / GB, latency_ms=latency * 1000)


def _measured(
    peers: ProcessGroup,
    timer: Timer,
    call: Callable[..., None],
    largest: int,
    work: Callable[[], object],
) -> Link:
    """The link by calls that ranks come to from `work` of their own."""
    seconds, payload = {}, SMALL
    while True:
        buffer = float32_zeros(payload // 4 // peers.size() * peers.size(), timer.device)
        exchange = partial(call, buffer, torch.empty_like(buffer), peers)
        took = timer.after(work, exchange, IN_A_ROW if payload == SMALL else OF_A_STEP)
        seconds[buffer.nbytes] = took
        if payload >= largest or (payload > SMALL and took > LONG_ENOUGH):
            return fit_link(seconds)
        payload *= GROWTH


def _disk(timer: Timer, folder: Path) -> float:
    """Nanoseconds of a row in a mapped file, as the slowest of all ranks finds them together; where
    one finds none, all end."""
    failure = None
    dist.barrier(timer.group)
    try:
        took = mapped_row_ns(folder)
    except RecdError as error:
        failure, took = error, math.inf
    slowest = timer.slowest(took)
    if failure is not None:
        raise failure
    if math.isinf(slowest):
        raise CapabilityError(
            f"{folder}: another rank cannot measure the disk there, and prints why. Name a folder "
            "that is on a disk on every machine."
        )
    return slowest


def _beside(
    timer: Timer, exchange: Exchange, link: Link, largest: int, work: Callable[[], object]
) -> float:
    """Time work and an exchange of like length one after the other, then begun together: the share
    that is saved of what could be. Less than all of it, for exchanges take processors. In both
    ranks come to the exchange at different times, so that it takes as long."""

    def often() -> None:
        for _ in range(AT_LENGTH):
            work()

    world, working = timer.group, AT_LENGTH * timer.seconds(work, IN_A_ROW)
    size = min(int(working * link.gbps * GB), largest) // 4 // world.size() * world.size()
    buffer = float32_zeros(max(size, world.size()), timer.device)
    other = torch.empty_like(buffer)

    def both() -> None:
        under_way = exchange(other, buffer, group=world, async_op=True)
        often()
        under_way.wait()

    def one_by_one() -> None:
        often()
        call()

    call = partial(_all_to_all, exchange, buffer, other, world)
    longer = replace(timer, rounds=BESIDE_ROUNDS * timer.rounds)
    works, calls, apart, together = longer.in_turns([often, call, one_by_one, both])
    saved = middle([one - other for one, other in zip(apart, together, strict=True)])
    return min(max(saved / min(middle(works), middle(calls)), 0.0), 1.0)


def _link_shared(timer: Timer, exchange: Exchange, link: Link, w: int, largest: int) -> float:
    """Time an exchange between nodes of all ranks in turns with that of the first ones of each
    node, for which the others wait; of their bytes alone. It takes all w of a node w times as long
    as one where they share its link, and as long where they share nothing."""
    world, size = timer.group, min(int(link.gbps * GB * LONG_ENOUGH), largest)
    buffer = float32_zeros(max(size // 4, 1) // world.size() * world.size(), timer.device)
    other = torch.empty_like(buffer)
    mine = buffer if world.rank() % w == 0 else buffer[:0]

    def of_first() -> None:
        _all_to_all_across(exchange, w, mine, other, world)

    of_all = partial(_all_to_all_across, exchange, w, buffer, other, world)
    every, one = map(middle, timer.in_turns([of_all, of_first], OF_A_STEP))
    latency = link.latency_ms / 1000
    return min(max((every - latency) / max(one - latency, every / w), 1.0), float(w))


def _scattered(timer: Timer, link: Link, largest: int) -> float:
    """Time a reduce-scatter and an all-gather of a payload in turns with an all-reduce of it. They
    take no more than a whole one and the half that gathers: what is above is noise."""
    world, size = timer.group, min(int(link.gbps * GB * LONG_ENOUGH / 2), largest)
    buffer = float32_zeros(max(size // 4 // world.size(), 1) * world.size(), timer.device)
    part = float32_zeros(len(buffer) // world.size(), timer.device)

    def halves() -> None:
        reduce_scatter_single(part, buffer, group=world)
        all_gather_single(buffer, part, group=world)

    whole, both = map(middle, timer.in_turns([partial(_all_reduce, buffer, part, world), halves]))
    return min(max(both / whole, 1.0), 1.5)


def _all_to_all(exchange: Exchange, buffer: Tensor, other: Tensor, group: ProcessGroup) -> None:
    exchange(other, buffer, group=group)


def _all_to_all_across(
    exchange: Exchange, w: int, buffer: Tensor, other: Tensor, world: ProcessGroup
) -> None:
    """An all-to-all between ranks of one place, in a group of all."""
    size, rank = world.size(), world.rank()
    each = len(buffer) * w // size
    splits = [each if peer % w == rank % w else 0 for peer in range(size)]
    part = sum(splits)
    exchange(other[:part], buffer[:part], splits, splits, group=world)


def _all_reduce(buffer: Tensor, other: Tensor, group: ProcessGroup) -> None:
    dist.all_reduce(buffer, group=group)


def _links(found: Mapping[str, Any], world: int, w: int) -> dict[str, float]:
    """The two bandwidths that TorchRec's planner asks for, of what the all-to-alls moved."""
    links = {}
    if "a2a_intra" in found and w > 1:
        links["intra_node_gbps"] = found["a2a_intra"].gbps * (w - 1) / w
    if world > w:
        links["inter_node_gbps"] = found["a2a_global"].gbps * (world - w) / world
    return links

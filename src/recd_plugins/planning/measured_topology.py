"""The topology of a running process group: bandwidth and latency of its collectives, measured."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
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
from recd_plugins.compat.rows_kernel import rows_kernel
from recd_plugins.errors import CapabilityError, RecdError
from recd_plugins.planning.measured_disk import mapped_row_ns
from recd_plugins.planning.topology import GB, Link, Topology, ranks_per_node

__all__ = ["ROUNDS", "Timer", "fit_link", "least_device_memory", "measure_topology"]

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
IN_A_ROW = 16
"""Calls of a run with the smallest payload, or of a rank's own work: ranks leave a barrier one
after the other, which would count as time of a single call."""
OF_A_STEP = 2
"""Calls of a run with a larger payload, as a step has: rows one way, and their gradients. Of the
first call ranks leave at different times, and to the second they come so."""
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
that a step has at a time. Of longer work more gets done beside an exchange, of shorter none, where
ranks share processors."""


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
    ranks = torch.tensor(dist.get_process_group_ranks(group)).view(-1, w)
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
        found["crowded"] = _crowded(timer)
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
        buffer = _zeros(payload // 4 // peers.size() * peers.size(), timer.device)
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
    buffer = _zeros(max(size, world.size()), timer.device)
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
    buffer = _zeros(max(size // 4, 1) // world.size() * world.size(), timer.device)
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
    buffer = _zeros(max(size // 4 // world.size(), 1) * world.size(), timer.device)
    part = _zeros(len(buffer) // world.size(), timer.device)

    def halves() -> None:
        reduce_scatter_single(part, buffer, group=world)
        all_gather_single(buffer, part, group=world)

    whole, both = map(middle, timer.in_turns([partial(_all_reduce, buffer, part, world), halves]))
    return min(max(both / whole, 1.0), 1.5)


def _crowded(timer: Timer) -> float:
    """Time lookups that all ranks make together in turns with those of the first rank, for which
    the others wait. Ranks that share nothing differ by noise."""
    lookups = gathering(timer.group, timer.device, LOOKUPS)

    def alone() -> None:
        if timer.group.rank() == 0:
            lookups()

    every, one = map(middle, timer.in_turns([lookups, alone], IN_A_ROW))
    return min(max(every / one, 1.0), float(timer.group.size()))


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


ROW_BYTES, TABLE_ROWS, LOOKUPS = 256, 1 << 18, 1 << 16
"""A table of 64 MB, which no processor's cache holds."""
UPDATED = 1 << 13
"""Rows whose gradients are applied: of fewer each takes less, for a cache holds what it takes."""
CHUNK_PASSES = 12
"""How often `_stepping` reads or writes its chunk."""
MARKED = 1 << 20
"""Rows that have marks: those of a large tier, for a step takes next to nothing for fewer."""
OPERATIONS, OPERANDS = 40, 1 << 12
"""Operations in a row, and the ids that each is of."""


def gathering(world: ProcessGroup, device: torch.device, lookups: int) -> Callable[[], object]:
    """A call that reads and writes so many rows at random places.

    It writes into memory that is there: new memory's first use would take several times as
    long, or not, as the allocator pleases."""
    table = _zeros((TABLE_ROWS, ROW_BYTES // 4), device)
    rows = _draw(world, lookups).to(device)
    out = _zeros((lookups, ROW_BYTES // 4), device)
    return lambda: torch.index_select(table, 0, rows, out=out)


def own_work(timer: Timer, before: Callable[[], object]) -> dict[str, float]:
    """Rows gathered; a chunk of rows summed and stepped; ids made unique, each there four times;
    gradients of distinct rows applied, as the kernel for the CPU does it whose rows are bags of
    one; small operations, to which a rank comes from the work `before` them, as it does in a step:
    over and over, with all that they need at hand, they would take a tenth of the time.

    Marks of rows are made, packed, unpacked for each exchange, counted up and searched.

    Often enough in a row that all ranks are at it together."""
    ids = _draw(timer.group, LOOKUPS, LOOKUPS // 4).to(timer.device)
    few = ids[:OPERANDS]
    gathered, unique = (
        timer.seconds(work, IN_A_ROW)
        for work in (
            gathering(timer.group, timer.device, LOOKUPS),
            lambda: torch.unique(ids, return_inverse=True),
        )
    )
    stepped = timer.seconds(_stepping(timer.device), IN_A_ROW)
    small = timer.after(before, lambda: _small_operations(few), IN_A_ROW)
    found = {
        "gather_gbps": 2 * LOOKUPS * ROW_BYTES / gathered / GB,
        "chunk_gbps": CHUNK_PASSES * UPDATED * ROW_BYTES / stepped / GB,
        "unique_ns": unique / LOOKUPS * 1e9,
        "op_us": small / OPERATIONS * 1e6,
    }
    if timer.device.type == "cpu":
        found["update_ns"] = timer.seconds(_updating(timer.device)) / UPDATED * 1e9
        found["marks_ns"] = timer.seconds(_marking(), IN_A_ROW) / MARKED * 1e9
    return found


def _updating(device: torch.device) -> Callable[[], object]:
    """Rows looked up and stepped, each once. What the lookup takes of it is a tenth."""
    kernel = rows_kernel(TABLE_ROWS, ROW_BYTES // 4, device)
    rows = torch.randperm(TABLE_ROWS, generator=torch.Generator().manual_seed(0))[:UPDATED]
    offsets, gradients = torch.arange(UPDATED + 1), _zeros((UPDATED, ROW_BYTES // 4), device) + 1
    return lambda: kernel(indices=rows, offsets=offsets).backward(gradients)


def _stepping(device: torch.device) -> Callable[[], object]:
    """A chunk of gradients added to zeros [4 passes], of which row-wise Adagrad steps rows [8]. Its
    memory is new in each run, as in a step."""
    gradients = _zeros((UPDATED, ROW_BYTES // 4), device) + 1
    rows, state = torch.zeros_like(gradients), _zeros((UPDATED, 1), device)
    places = torch.arange(UPDATED, device=device)

    def step() -> None:
        sums = torch.zeros_like(gradients).index_add_(0, places, gradients)
        state.add_(sums.square().mean(dim=1, keepdim=True))
        rows.sub_(sums * (0.01 / (state.sqrt() + 1e-8)))

    return step


def _marking() -> Callable[[], object]:
    """The marks of rows that have replicas, of which a step touches every hundredth: those of this
    rank, which are packed for the ranks of its node; theirs, those of nodes and those of all, which
    it unpacks; the touched ones of these, and the place of each among its own."""
    touched = torch.arange(0, MARKED, 100)

    def mark() -> None:
        mine = torch.zeros(MARKED, dtype=torch.bool)
        mine[touched] = True
        packed = np.packbits(mine.numpy(), bitorder="little")
        for _ in range(3):
            found = np.unpackbits(packed, bitorder="little")
        torch.from_numpy(found).nonzero()
        mine.cumsum(0, dtype=torch.int32)

    return mark


def _zeros(shape: int | tuple[int, ...], device: torch.device) -> Tensor:
    """Of 4 bytes each, whatever a process has by default."""
    return torch.zeros(shape, dtype=torch.float32, device=device)


def _draw(world: ProcessGroup, lookups: int, num_rows: int = TABLE_ROWS) -> Tensor:
    draw = torch.Generator().manual_seed(world.rank())
    return torch.randint(0, num_rows, (lookups,), generator=draw)


def _small_operations(ids: Tensor) -> None:
    """`OPERATIONS`, of the kinds that tiers consist of."""
    for _ in range(OPERATIONS // 4):
        kept = ids[ids >= 0]
        torch.cat([kept, ids]).cumsum(0)


@dataclass(frozen=True)
class Timer:
    """Times calls that all ranks of a group make together."""

    group: ProcessGroup
    device: torch.device
    rounds: int

    def seconds(self, call: Callable[[], object], again: int = 1) -> float:
        """Seconds of a call."""
        (taken,) = self.in_turns([call], again)
        return middle(taken)

    def after(self, work: Callable[[], object], call: Callable[[], object], again: int) -> float:
        """Seconds that a call takes when each rank comes to it from work of its own.

        They are what the call adds to the work, which is timed in turns with both, for a machine's
        pace changes; but no fewer than the call takes by itself. On a busy machine what is added
        may be less than the noise of the work."""

        def both() -> None:
            work()
            call()

        working, alone, together = self.in_turns([work, call, both], again)
        added = [both - work for both, work in zip(together, working, strict=True)]
        return max(middle(added), middle(alone))

    def in_turns(
        self, calls: Sequence[Callable[[], object]], again: int = 1
    ) -> list[tuple[float, ...]]:
        """Seconds of each call in each round; a round before them warms up."""
        rounds = [[self._once(call, again) for call in calls] for _ in range(self.rounds + 1)]
        return list(zip(*rounds[1:], strict=True))

    def _once(self, call: Callable[[], object], again: int) -> float:
        """Seconds of a call in one run: its slowest rank's."""
        dist.barrier(self.group)
        begun = time.perf_counter()
        for _ in range(again):
            call()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return self.slowest((time.perf_counter() - begun) / again)

    def slowest(self, took: float) -> float:
        """What it took the rank that it took the longest."""
        found = torch.tensor(took, device=self.device)
        dist.all_reduce(found, dist.ReduceOp.MAX, group=self.group)
        return float(found)


def middle(taken: Sequence[float]) -> float:
    """The mean of the middle half. Exchanges take one time or another, as peers send at once or
    in turns, and a step has several: its time is of their mean."""
    quarter = len(taken) // 4
    return statistics.fmean(sorted(taken)[quarter : len(taken) - quarter])

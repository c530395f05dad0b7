"""The kernel of each table in host memory, and how many of its rows the device caches.

This is a knapsack problem: the device has room for some bytes, and every way to serve a table takes
some of them and saves some of the bytes that a step would fetch from the host.

    fused_uvm            0                        0
    fused_uvm_caching    index + slots * slot     hits(slots) * r
    fused                all rows and states      rows * r * (1 + CACHE_TAKES)

For each table, only the points on the upper hull are used. The steps from point to point of all
tables are taken in the order of what they save per byte. As hit curves bend down, no other use of
the memory saves more, apart from the saving of the one step that did not fit as a whole.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np

from recd_scars.uvm.hits import HitCurve
from recd_scars.uvm.kernel_bytes import SLOTS_PER_SET, KernelBytes

__all__ = ["HostTable", "Kernel", "KernelChoice", "beats_chance", "choose"]

Kernel = Literal["fused", "fused_uvm_caching", "fused_uvm"]

CACHE_TAKES = 1 / 30
"""The time of a lookup in a cache, as a share of the fetch from the host that it saves. It follows
from the bandwidths that TorchRec's planner has for these kernels on an A100: (10/897 - 1/897) /
(10/32 - 10/897)."""
SKEW = 0.05
"""Misses must be fewer by this share than if all rows were equally hot: 1 - hits <= (1 - SKEW)
(1 - f). Nobody has measured where a cache begins to pay."""


@dataclass(frozen=True, kw_only=True, eq=False)
class HostTable:
    """A table, and what decides its kernel."""

    name: str
    bytes: KernelBytes
    curve: HitCurve
    rows: float
    """Different rows in a step, over all ranks, that replicas do not answer."""
    accessed: float
    """Rows of a rank that are ever looked up like this."""

    @property
    def most_slots(self) -> int:
        """The most slots that are of use and leave TorchRec a load factor below 1; 0 if a cache is
        not possible."""
        sets = -(-self.accessed // SLOTS_PER_SET)
        return int(min(sets, (self.bytes.num_rows - 1) // SLOTS_PER_SET)) * SLOTS_PER_SET


@dataclass(frozen=True, kw_only=True)
class KernelChoice:
    """The kernel that serves a table."""

    kernel: Kernel
    slots: int
    """Slots of each rank's cache."""
    load_factor: float | None
    """Slots divided by the rows of a rank, as in TorchRec; None without a cache."""
    hit_rate: float
    """The share of a step's rows that need no fetch, among those that replicas do not answer."""
    device_bytes: int
    host_bytes: int


class _Point(NamedTuple):
    """A way to serve a table."""

    cost: float
    """Bytes on the device, beyond what is there anyway."""
    saves: float
    """Bytes that a step need not fetch."""
    kernel: Kernel
    slots: int = 0


NOTHING = _Point(0.0, 0.0, "fused_uvm")


def choose(tables: Sequence[HostTable], capacity: float) -> dict[str, KernelChoice]:
    """A kernel for each table, if the device has `capacity` bytes beyond what is resident.

    Tables whose cache would not pay lose it, the one with the least gain first; its memory is then
    distributed anew among the others.
    """
    cached = {table.name for table in tables if table.most_slots}
    while True:
        at = _knapsack(tables, capacity, cached)
        chosen = {table.name: _choice(table, at[table.name]) for table in tables}
        idle = [name for name, choice in chosen.items() if not beats_chance(choice)]
        if not idle:
            return chosen
        cached.remove(min(idle, key=lambda name: _lift(chosen[name])))


def beats_chance(choice: KernelChoice) -> bool:
    """Whether a cache has more hits than the same number of rows chosen at random would have."""
    return choice.kernel != "fused_uvm_caching" or _lift(choice) >= SKEW


def _lift(choice: KernelChoice) -> float:
    """1 - (1 - hits) / (1 - f)."""
    assert choice.load_factor is not None  # a cache has one
    return 1 - (1 - choice.hit_rate) / (1 - choice.load_factor)


def _knapsack(
    tables: Sequence[HostTable], capacity: float, cached: Collection[str]
) -> Mapping[str, _Point]:
    """The way to serve each table within the capacity; only those in `cached` may have a cache."""
    filling = _Filling(tables, capacity)
    stopped = filling.climb(cached)
    filling.enlarge_caches([name for name in stopped if name in cached])
    filling.take_whole_tables()
    return filling.at


class _Filling:
    """A device's memory as it is given to tables: where each table is by now, and what is left."""

    def __init__(self, tables: Sequence[HostTable], capacity: float) -> None:
        self._tables = {table.name: table for table in tables}
        self._left = max(capacity, 0.0)
        self.at = dict.fromkeys(self._tables, NOTHING)

    def climb(self, cached: Collection[str]) -> list[str]:
        """Take the steps of all hulls in the order of what they save per byte. A table stops at the
        first step that does not fit as a whole; those that stopped."""
        hulls = {
            name: _hull(_points(table, cached=name in cached))
            for name, table in self._tables.items()
        }
        steps = [(name, of, to) for name, hull in hulls.items() for of, to in pairwise(hull)]
        stopped: list[str] = []
        for name, of, to in sorted(steps, key=lambda step: -_slope(step[1], step[2])):
            if name in stopped:
                continue
            if self._fits(name, to):
                self._move(name, to)
                continue
            stopped.append(name)
            if of.kernel == to.kernel:
                # Part of a step from one cache to a larger one saves as much per byte as all of it.
                self.enlarge_caches([name])
        return stopped

    def enlarge_caches(self, names: Sequence[str]) -> None:
        """Give these tables caches as large as what is left allows, where that saves more."""
        for name in names:
            larger = _within(self._tables[name], self.at[name].cost + self._left)
            if larger is not None and larger.saves > self.at[name].saves:
                self._move(name, larger)

    def take_whole_tables(self) -> None:
        """Take the tables onto the device that fit there as a whole, the smallest first."""
        for table in sorted(self._tables.values(), key=lambda table: table.bytes.whole):
            if self._fits(table.name, _whole(table)):
                self._move(table.name, _whole(table))

    def _fits(self, name: str, point: _Point) -> bool:
        return point.cost - self.at[name].cost <= self._left

    def _move(self, name: str, point: _Point) -> None:
        self._left -= point.cost - self.at[name].cost
        self.at[name] = point


def _points(table: HostTable, *, cached: bool) -> list[_Point]:
    points = [NOTHING, _whole(table)]
    if cached:
        sets = np.unique(np.ceil(table.curve.slots / SLOTS_PER_SET)).astype(np.int64)
        sizes = np.clip(sets * SLOTS_PER_SET, SLOTS_PER_SET, table.most_slots)
        points += [_cache(table, slots) for slots in np.unique(sizes).tolist()]
    return points


def _whole(table: HostTable) -> _Point:
    own = table.bytes
    return _Point(own.whole - own.resident, table.rows * own.row * (1 + CACHE_TAKES), "fused")


def _cache(table: HostTable, slots: int) -> _Point:
    saves = table.curve.at(slots) * table.bytes.row
    return _Point(table.bytes.cache(slots), saves, "fused_uvm_caching", slots)


def _within(table: HostTable, capacity: float) -> _Point | None:
    """The largest cache in `capacity` bytes; None if there is none."""
    own = table.bytes
    sets = (capacity - own.cache(0)) // (own.slot * SLOTS_PER_SET)
    slots = int(min(sets * SLOTS_PER_SET, table.most_slots))
    return _cache(table, slots) if slots > 0 else None


def _hull(points: Sequence[_Point]) -> list[_Point]:
    """The points on the upper hull, by cost: each saves more than the previous one, but less per
    additional byte."""
    hull: list[_Point] = []
    for point in sorted(points, key=lambda point: (point.cost, -point.saves)):
        if hull and point.saves <= hull[-1].saves:
            continue
        while len(hull) > 1 and _slope(hull[-1], point) >= _slope(hull[-2], hull[-1]):
            hull.pop()
        hull.append(point)
    return hull


def _slope(of: _Point, to: _Point) -> float:
    return (to.saves - of.saves) / (to.cost - of.cost)


def _choice(table: HostTable, point: _Point) -> KernelChoice:
    own, kernel = table.bytes, point.kernel
    hits = table.rows if kernel == "fused" else table.curve.at(point.slots)
    return KernelChoice(
        kernel=kernel,
        slots=point.slots,
        load_factor=point.slots / own.num_rows if point.slots else None,
        hit_rate=hits / table.rows if table.rows else float(kernel == "fused"),
        device_bytes=int(own.resident + point.cost),
        host_bytes=0 if kernel == "fused" else own.host,
    )

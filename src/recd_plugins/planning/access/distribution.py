"""The access distribution of a table: how often its rows are looked up."""

from __future__ import annotations

from dataclasses import InitVar, dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recd_plugins.errors import CapabilityError, DataError
from recd_plugins.launch.machine_memory import machine_memory

__all__ = [
    "Drift",
    "Floats",
    "Integers",
    "RowDistribution",
    "appears",
    "drift",
    "falling",
    "named_twice",
]

Integers = NDArray[np.int64]
"""An array of int64."""
Floats = NDArray[np.float64]
"""An array of float64."""

NAMED = 25
"""The most bytes that a row takes while rows that were never counted are named for a plan and the
plan is checked."""
MARKED = 64
"""The most marks per named row, when duplicates are found with a mark for each possible row."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RowDistribution:
    """The rows of a table, hottest first, as R bands of rows that are accessed equally often.

    A table of 10^9 rows has about 10^4 bands: counted rows have few distinct counts, and rows of a
    formula differ little from their neighbours.
    """

    counts: Integers
    """[R] rows in each band."""
    p: Floats
    """[R] expected lookups per sample of each row in the band, falling from band to band; L = sum
    counts * p. Deduplicated features count the lookups of their unique samples, spread over all
    samples."""
    presence: Floats
    """[R] the chance that one sample looks the row up at all, if samples were independent. It is
    below p if the row's lookups cluster, within a sample or in samples of a batch."""
    ids: Integers | None = None
    """Row ids in this order, of all rows or of the hottest; None if a formula made the bands."""
    error: float = 0.0
    """The most by which any p of a sketch may be too low."""
    uncertainty: Floats | None = None
    """[R] how far off `coverage` may be at the end of each band, if p is a forecast: in nine of ten
    cases the share that is served should be within this."""
    whole_bags: Floats | None = None
    """[R + 1] the share of bags whose rows are all before band r; the first is the share of empty
    bags. None if bags were not counted: then rows are treated as if drawn one by one."""
    _by_rank: dict[int, Floats] = field(default_factory=dict, init=False, repr=False)
    """The numbers of rows that `by_rank` found, by number of ranks."""
    _appear: dict[float, Floats] = field(default_factory=dict, init=False, repr=False)
    """The chances that `appear` found, by number of samples."""

    checked: InitVar[bool] = False
    """Whether these are bands of a distribution that was already checked."""

    def __post_init__(self, checked: bool) -> None:
        if checked:
            return
        shapes = {self.counts.shape, self.p.shape, self.presence.shape}
        if len(shapes) != 1 or self.counts.ndim != 1:
            raise DataError(f"rows: counts, p and presence must be [R] alike, but are {shapes}.")
        if np.any(self.counts < 1) or not np.all(np.isfinite(self.p)) or np.any(self.p < 0):
            raise DataError("rows: each band needs a row or more, and p >= 0.")
        if self.counts.sum(dtype=np.float64) >= np.iinfo(np.int64).max:
            raise DataError("rows: bands have more rows together than int64 counts.")
        if np.any(np.diff(self.p) > 0):
            raise DataError("rows: p must fall from band to band: put the hottest rows first.")
        if not np.all((self.presence >= 0) & (self.presence <= 1)):
            raise DataError("rows: presence is a chance, from 0 to 1.")
        if self.ids is not None and len(self.ids) > self.num_rows:
            raise DataError(f"rows: {len(self.ids)} ids are named of {self.num_rows} rows.")
        if self.uncertainty is not None and self.uncertainty.shape != self.counts.shape:
            raise DataError("rows: uncertainty must be [R], as counts are.")
        if self.whole_bags is not None:
            whole = self.whole_bags
            if whole.shape != (len(self.counts) + 1,) or not np.all((whole >= 0) & (whole <= 1)):
                raise DataError("rows: whole_bags must be [R + 1] shares.")
            if np.any(np.diff(whole) < 0):
                raise DataError("rows: whole_bags must rise from band to band.")

    @classmethod
    def of(
        cls,
        counts: ArrayLike,
        p: ArrayLike,
        presence: ArrayLike | None = None,
        ids: Integers | None = None,
        error: float = 0.0,
        uncertainty: Floats | None = None,
    ) -> RowDistribution:
        """Bands in any order; rows without a presence of their own are drawn independently."""
        rows, each = np.asarray(counts, np.int64), np.asarray(p, np.float64)
        chance = np.minimum(each, 1.0) if presence is None else np.asarray(presence, np.float64)
        if np.any(np.diff(each) > 0):
            order = np.argsort(-each, kind="stable")
            rows, each, chance = rows[order], each[order], chance[order]
            uncertainty = None  # it belongs to the bands in their previous order
        return cls(
            counts=rows, p=each, presence=chance, ids=ids, error=error, uncertainty=uncertainty
        )

    def read_only(self) -> RowDistribution:
        """The same distribution for code of others, to which its arrays refuse to be written."""
        found = replace(self, checked=True)
        for one in fields(found):
            if isinstance(array := getattr(found, one.name), np.ndarray):
                seen = array.view()
                seen.flags.writeable = False
                object.__setattr__(found, one.name, seen)
        return found

    @cached_property
    def num_rows(self) -> int:
        """E."""
        return int(self.counts.sum())

    @cached_property
    def lookups(self) -> float:
        """L: expected lookups per sample, sum of p."""
        return float(self.counts @ self.p)

    def coverage(self, rows: ArrayLike) -> Any:
        """The share of lookups that the `rows` hottest rows take; `rows` is a number or an array,
        and so is the result."""
        ends = np.concatenate([[0], np.cumsum(self.counts)])
        taken = np.concatenate([[0.0], np.cumsum(self.counts * self.p)])
        share = np.interp(np.asarray(rows, float), ends, taken) / max(
            taken[-1], np.finfo(float).tiny
        )
        return share if np.ndim(rows) else float(share)

    def interval(self, rows: ArrayLike) -> tuple[Any, Any]:
        """The interval in which `coverage` will be in nine of ten cases. It has no width if p is
        not a forecast (but from a formula or a sketch)."""
        share, wide = self.coverage(rows), 0.0
        if self.uncertainty is not None:
            ends = np.concatenate([[0], np.cumsum(self.counts)])
            off = np.interp(np.asarray(rows, float), ends, np.append(0.0, self.uncertainty))
            wide = off if np.ndim(rows) else float(off)
        low, high = np.maximum(share - wide, 0.0), np.minimum(share + wide, 1.0)
        return (low, high) if np.ndim(rows) else (float(low), float(high))

    def bags_within(self, rows: int) -> float | None:
        """The share of bags whose rows are all among the `rows` hottest; None if bags were not
        counted."""
        if self.whole_bags is None:
            return None
        ends = np.concatenate([[0], np.cumsum(self.counts)])
        return float(np.interp(rows, ends, self.whole_bags))

    def part(self, first: int, last: int) -> RowDistribution:
        """The rows after the `first` hottest ones, up to the `last` hottest."""
        if not first and last >= self.num_rows and self.whole_bags is None:
            return self
        kept = self.within(first, last)
        some = kept > 0
        return RowDistribution(
            counts=kept[some],
            p=self.p[some],
            presence=self.presence[some],
            ids=None if self.ids is None or last > len(self.ids) else self.ids[first:last],
            error=self.error,
            checked=True,
        )

    def within(self, first: int, last: int) -> Integers:
        """[R] how many rows of each band are after the `first` hottest, to the `last` hottest."""
        starts, ends = self._starts_and_ends
        kept: Integers = np.minimum(ends, last) - np.maximum(starts, first)
        return np.maximum(kept, 0)

    @cached_property
    def _starts_and_ends(self) -> tuple[Integers, Integers]:
        """[R] how many rows are hotter than those of each band, and so many with the band's own."""
        ends = np.cumsum(self.counts)
        return ends - self.counts, ends

    def by_rank(self, ranks: int) -> Floats:
        """[R, U] how many rows of each band each of the `ranks` ranks of a row-wise table has, in
        blocks of ids as TorchRec cuts them. Rows without a known id are spread over the rest of the
        blocks.
        """
        if ranks not in self._by_rank:
            ids = np.empty(0, np.int64) if self.ids is None else self.ids
            block = -(-self.num_rows // ranks)
            known = self.within(0, len(ids))
            bands = np.repeat(np.arange(len(known)), known)
            found = np.bincount(bands * ranks + ids // block, minlength=len(known) * ranks)
            found = found.reshape(len(known), ranks).astype(np.float64)
            starts = np.minimum(np.arange(ranks) * block, self.num_rows)
            left = np.diff(starts, append=self.num_rows) - found.sum(axis=0)
            unknown = (self.counts - known)[:, None]
            self._by_rank[ranks] = found + unknown * left / max(left.sum(), 1.0)
        return self._by_rank[ranks]

    def at(self, runs: NDArray[np.bool_]) -> RowDistribution:
        """The bands that `runs` [R] names; ids are not kept."""
        return RowDistribution(
            counts=self.counts[runs], p=self.p[runs], presence=self.presence[runs], checked=True
        )

    def appearing(self, samples: float) -> float:
        """Expected distinct rows in `samples` samples: the sum of 1 - (1 - presence)^samples."""
        return float(self.counts @ self.appear(samples))

    def appear(self, samples: float) -> Floats:
        """[R] 1 - (1 - presence)^samples. The array must not be changed: it is kept for all ways to
        place the rows."""
        if samples not in self._appear:
            self._appear[samples] = appears(self.presence, samples)
        return self._appear[samples]

    def coalesced(self, batch_size: int) -> RowDistribution:
        """The distribution of coalesced ids, once per batch: p = (1 - (1 - presence)^B) / B."""
        once = appears(self.presence, batch_size) / batch_size
        return RowDistribution.of(self.counts, once, self.presence, self.ids, self.error)

    def deduplicated(self, factor: float) -> RowDistribution:
        """The distribution after session dedup, with one DedupeFactor >= 1 for all rows."""
        if factor < 1:
            raise DataError(f"rows: a DedupeFactor is 1 or more, but is {factor}.")
        found = RowDistribution.of(
            self.counts,
            self.p / factor,
            self.presence / factor,
            self.ids,
            self.error / factor,
            self.uncertainty,
        )
        return replace(found, whole_bags=self.whole_bags)

    def hottest(self, rows: int) -> Integers:
        """The ids of the `rows` hottest rows. Raises `DataError` if they are not known.

        Rows that were never counted are all equal, and come last, by their id. Raises
        `CapabilityError` if these are so many that their ids do not fit into the machine's memory.
        """
        if rows == 0:
            return np.zeros(0, np.int64)
        if self.ids is not None and rows <= len(self.ids):
            return self.ids[:rows]
        if self.ids is None or len(self.ids) < self.num_rows - self.counts[-1]:
            known = 0 if self.ids is None else len(self.ids)
            raise DataError(
                f"rows: {rows:,} hottest rows are asked for, but the ids of only {known:,} are "
                "known. Count a table or a trace: formulas have no ids."
            )
        room = machine_memory()
        if room is not None and rows * NAMED > room:
            raise CapabilityError(
                f"rows: {rows:,} rows are to have replicas, but {rows - len(self.ids):,} of them "
                f"were never looked up. To list them takes {rows * NAMED / 2**30:,.3g} GB, and "
                f"this machine has {room / 2**30:,.3g}. Plan for fewer by a smaller budget, or on "
                "a machine with more memory."
            )
        # The first `rows` ids contain enough others, so few rows of a huge table stay cheap.
        others = np.ones(rows, np.bool_)
        others[self.ids[self.ids < rows]] = False
        return np.concatenate([self.ids, np.flatnonzero(others)[: rows - len(self.ids)]])


def falling(p: Floats, counts: Integers) -> Floats:
    """[R] p, where bands that rise above those before them get the mean with these."""
    if not np.any(np.diff(p) > 0):
        return p
    pools: list[tuple[float, float, int]] = []  # the lookups, the rows and the bands of each
    for value, rows in zip(p.tolist(), counts.tolist(), strict=True):
        lookups, size, bands = value * rows, float(rows), 1
        while pools and pools[-1][0] * size <= lookups * pools[-1][1]:
            more, others, some = pools.pop()
            lookups, size, bands = lookups + more, size + others, bands + some
        pools.append((lookups, size, bands))
    means = [lookups / size for lookups, size, _ in pools]
    pooled: Floats = np.minimum.accumulate(np.repeat(means, [bands for *_, bands in pools]))
    return pooled


def appears(presence: Floats, samples: float) -> Floats:
    """1 - (1 - presence)^samples: the chance that a row is in any of `samples` samples."""
    with np.errstate(divide="ignore", invalid="ignore"):
        chance: Floats = -np.expm1(samples * np.log1p(-presence))
    return chance if samples else np.zeros_like(presence)


@dataclass(frozen=True, kw_only=True)
class Drift:
    """What yesterday's `rows` hottest rows are worth today."""

    rows: int
    then: float
    """The share of yesterday's lookups that they took."""
    now: float
    """The share of today's lookups that they take."""
    best: float
    """The share that today's own hottest rows take: what re-tiering would give."""
    stayed: float
    """The share of these rows that are among today's hottest."""


def drift(before: RowDistribution, after: RowDistribution, rows: int) -> Drift:
    """What the `rows` hottest rows of one table are worth a day later. Both distributions need the
    ids of that many rows."""
    if before.num_rows != after.num_rows:
        raise DataError(
            f"had {before.num_rows:,} rows before and has {after.num_rows:,} now: these are not "
            "the same. Take profiles of one table."
        )
    old = before.hottest(rows)
    return Drift(
        rows=rows,
        then=before.coverage(rows),
        now=_share(after, old),
        best=after.coverage(rows),
        stayed=float(np.isin(old, after.hottest(rows)).mean()) if rows else 1.0,
    )


def _share(distribution: RowDistribution, ids: Integers) -> float:
    """The share of lookups that these rows take; those without a known id come last."""
    known = np.empty(0, np.int64) if distribution.ids is None else distribution.ids
    rank = np.full(max(int(ids.max(initial=0)), int(known.max(initial=0))) + 1, -1, np.int64)
    rank[known] = np.arange(len(known))
    band = np.searchsorted(np.cumsum(distribution.counts), rank[ids], side="right")
    p = np.where(rank[ids] < 0, distribution.p[-1], distribution.p[band])
    return float(p.sum()) / max(distribution.lookups, np.finfo(float).tiny)


def named_twice(rows: Integers) -> bool:
    """Whether any row appears twice; none of them is negative."""
    if not rows.size:
        return False
    if (highest := int(rows.max())) < MARKED * rows.size:
        marks = np.zeros(highest + 1, np.bool_)
        marks[rows] = True
        return int(np.count_nonzero(marks)) < rows.size
    ordered = np.sort(rows)  # np.unique hashes, which takes ten times as long
    return bool((ordered[1:] == ordered[:-1]).any())

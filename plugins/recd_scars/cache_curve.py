"""The curve of a cache: communication against its size and the batch's, and hits by its portion."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from recd_plugins.api import RegistryError
from recd_plugins.api.data import whole_file
from recd_plugins.api.planning import Floats, Integers, RowDistribution
from recd_scars.theory import CacheSize, Memory, cost, epoch, optimal_cache

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["CacheCurve", "Point", "rows_of_all"]

BYTES = 4
"""A number is a float32, and so is one of the paper's indices."""
POINTS = 80
DPI = 150
PLAIN, COALESCED, CACHED = "#7d7d7d", "#9db8d9", "#d9622b"


class Point(NamedTuple):
    """A cache, the batch that it leaves room for, and what crosses the link for a sample."""

    cached: int
    batch_size: float
    bytes_per_sample: float
    hits: float
    """The share of lookups that the cache takes."""
    interval: tuple[float, float]
    """The interval in which it will lie."""


@dataclass(frozen=True, kw_only=True)
class CacheCurve:
    """The savings of a cache of one table, or of several with rows of one width, on one device."""

    rows: RowDistribution
    memory: Memory

    @classmethod
    def of(
        cls,
        rows: RowDistribution,
        *,
        width: int,
        batch_size: int,
        least_batch: int = 1,
        memory_bytes: float | None = None,
        sample_bytes: float | None = None,
    ) -> CacheCurve:
        """The curve for a device with room for `batch_size` samples and a tenth of the rows, by
        default.

        A sample takes `sample_bytes`, by default those of the rows that it looks up and of their
        gradients, the least that there can be.
        """
        if not rows.lookups:
            raise RegistryError(
                "no row is looked up, so there is nothing to cache. Name tables in which samples "
                "look up rows, or with a law give more than 0 --lookups."
            )
        each = 2 * rows.lookups * width if sample_bytes is None else sample_bytes / BYTES
        room = batch_size * each + 0.1 * rows.num_rows * width
        if memory_bytes is not None:
            room = memory_bytes / BYTES
        if not math.isfinite(max(room, BYTES * rows.lookups * width)):
            raise RegistryError(
                "lookups, numbers in a row and memory are too large together to be counted. Lower "
                "--lookups, --width, --memory or --per-sample."
            )
        memory = Memory(capacity=room, per_sample=each, width=width, least=least_batch)
        return cls(rows=rows, memory=memory)

    @cached_property
    def optimum(self) -> CacheSize:
        return optimal_cache(self.rows, self.memory)

    @property
    def plain(self) -> float:
        """Bytes for a sample of which every lookup's row travels."""
        return BYTES * self.rows.lookups * self.memory.width

    def at(self, cached: int) -> Point:
        return Point(
            cached,
            self.memory.batch_size(cached),
            BYTES * cost(self.rows, self.memory, cached),
            self.rows.coverage(cached),
            self.rows.interval(cached),
        )

    def by_cache(self, points: int = POINTS) -> list[Point]:
        """Points from no cache to the largest that leaves room for a batch; the optimum is among
        them."""
        most = min(self.rows.num_rows, self.memory.most_cached)
        between = np.geomspace(1, max(most, 1), max(points - 2, 1)).astype(int)
        sizes = {0, self.optimum.cached, most, *between.tolist()}
        return [self.at(cached) for cached in sorted(sizes) if cached <= most]

    def by_batch(self) -> list[tuple[float, float, float]]:
        """(b, bytes for a sample without a cache, and with one of all that the batch leaves)."""
        most = self.memory.capacity / self.memory.per_sample
        sizes = {*np.geomspace(self.memory.least, most, POINTS).tolist()}
        sizes |= {point.batch_size for point in self.by_cache(POINTS)}
        return [(size, self._with(0, size), self._with(None, size)) for size in sorted(sizes)]

    def values(self) -> Mapping[str, Any]:
        """All numbers, for machines."""
        return {
            "rows": self.rows.num_rows,
            "lookups": self.rows.lookups,
            "width": self.memory.width,
            "memory_mib": self.memory.capacity * BYTES / 2**20,
            "bytes_of_a_sample": self.memory.per_sample * BYTES,
            "least_batch": self.memory.least,
            "plain": self.plain,
            "optimum": self.at(self.optimum.cached)._asdict(),
            "by_cache": [point._asdict() for point in self.by_cache()],
            "by_batch": [
                dict(zip(("batch_size", "no_cache", "cached"), each, strict=True))
                for each in self.by_batch()
            ],
        }

    def draw(self, figure: Figure) -> None:
        """Bytes against cache and against batch, the optimum marked; then hits by portion."""
        cache, batch, hits = figure.subplots(1, 3)
        self._draw_cache(cache)
        self._draw_batch(batch)
        _draw_hits(hits, {"": self.rows})
        portion = self.optimum.cached / self.rows.num_rows
        hits.plot(100 * portion, 100 * self.rows.coverage(self.optimum.cached), "o", color=CACHED)
        for axes in (cache, batch, hits):
            axes.grid(alpha=0.25)
            axes.spines[["top", "right"]].set_visible(False)

    def save(self, path: Path, title: str = "") -> None:
        """Draw into a picture."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(12, 3.8), layout="constrained")
        self.draw(figure)
        figure.suptitle(title)
        with whole_file(path) as part:
            figure.savefig(part, dpi=DPI)

    def _draw_cache(self, axes: Axes) -> None:
        points = [point for point in self.by_cache() if point.cached]
        none, best = self.at(0), self.at(self.optimum.cached)
        sizes = [point.cached for point in points]
        axes.plot(sizes, [point.bytes_per_sample for point in points], color=CACHED)
        axes.axhline(none.bytes_per_sample, color=COALESCED, linestyle="--", label="no cache")
        axes.plot(
            best.cached, best.bytes_per_sample, "o", color=CACHED, label=f"{best.cached:,} rows"
        )
        axes.set_xscale("log")
        axes.set_ylim(bottom=0, top=1.4 * none.bytes_per_sample)
        axes.set(xlabel="rows cached", ylabel="bytes a sample", title="at the batch that is left")
        axes.legend(frameon=False)

    def _draw_batch(self, axes: Axes) -> None:
        sizes, none, cached = zip(*self.by_batch(), strict=True)
        axes.axhline(self.plain, color=PLAIN, linestyle=":", label="plain")
        axes.plot(sizes, none, color=COALESCED, linestyle="--", label="coalesced")
        axes.plot(sizes, cached, color=CACHED, label="and cached beside it")
        best = self.at(self.optimum.cached)
        axes.plot(best.batch_size, best.bytes_per_sample, "o", color=CACHED)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.set_ylim(bottom=0)
        axes.set(xlabel="batch size", ylabel="bytes a sample", title="at the cache that is left")
        axes.legend(frameon=False)

    def _with(self, cached: int | None, batch_size: float) -> float:
        """Bytes for a sample; None caches all that the batch leaves room for."""
        if cached is None:
            left = self.memory.capacity - batch_size * self.memory.per_sample
            cached = min(self.rows.num_rows, int(max(left, 0) // self.memory.width))
        width = self.memory.width
        numbers = epoch(self.rows, samples=1, batch_size=batch_size, width=width, cached=cached)
        return BYTES * numbers


def _draw_hits(axes: Axes, rows: Mapping[str, RowDistribution]) -> None:
    """The share of lookups that the hottest rows take, by their share of the rows (figure 4)."""
    for name, one in rows.items():
        sizes: ArrayLike = np.unique(np.geomspace(1, one.num_rows, POINTS).astype(int))
        portion = 100 * np.asarray(sizes) / one.num_rows
        axes.plot(
            portion, 100 * one.coverage(sizes), color=CACHED if not name else None, label=name
        )
    axes.set_xscale("log")
    axes.set_ylim(0, 102)
    axes.set(xlabel="rows cached, %", ylabel="lookups that hit, %", title="hits by cache portion")


def rows_of_all(tables: Sequence[RowDistribution]) -> RowDistribution:
    """The rows of all tables as if they were one table's, hottest first; ids are not kept."""
    if len(tables) == 1:
        return tables[0]
    counts, p, presence = (
        np.concatenate([getattr(one, part) for one in tables])
        for part in ("counts", "p", "presence")
    )
    order = np.argsort(-p, kind="stable")
    return RowDistribution.of(
        counts[order], p[order], presence[order], uncertainty=_together(tables, order)
    )


def _together(tables: Sequence[RowDistribution], order: Integers) -> Floats | None:
    """[R] the uncertainty of all, as if those of the tables were independent: each is taken at the
    rows that are as hot, by its lookups."""
    if all(one.uncertainty is None for one in tables):
        return None
    lookups = sum(one.lookups for one in tables)
    of = np.repeat(np.arange(len(tables)), [len(one.counts) for one in tables])[order]
    whole = np.zeros(len(order))
    for number, one in enumerate(tables):
        if one.uncertainty is not None and lookups:
            at = np.append(0.0, one.uncertainty)[np.cumsum(of == number)]
            whole += (at * one.lookups / lookups) ** 2
    return np.sqrt(whole)

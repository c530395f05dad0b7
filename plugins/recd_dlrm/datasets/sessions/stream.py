"""Sessions that start, emit samples and end: the rows of a table in the order of time.

Sessions start at an even rate of samples. Each emits its n samples over its own duration D: sample
k at start + D (k + u_k) / n, u_k uniform. Time is cut into slices. Only a few numbers per open
session are carried from one slice to the next, so memory is bounded by `concurrent_sessions` and
not by the table. Every draw is keyed by session and step, so slices of any width yield the same
rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from recd_dlrm.datasets.draws import salt, streams, uniforms
from recd_dlrm.datasets.flat_columns import F64, I64, U64, band_starts, ranges
from recd_dlrm.datasets.sessions.laws import CountLaw

__all__ = ["SessionStream", "Slice"]

ARRIVALS = 4096
"""The number of sessions that are admitted at once."""


class Slice(NamedTuple):
    """The N samples of a stretch of time, sorted by session and step."""

    sessions: U64
    """[N] the running number of the session."""
    steps: I64
    """[N] the number of the sample in its session."""
    timestamps: I64
    """[N] in ms."""
    versions: Mapping[str, I64]
    """[N] for each group, a number that grows by one with each change in the session."""


@dataclass(kw_only=True)
class _Open:
    """The open sessions [C] and the progress of each."""

    sessions: U64
    sizes: I64
    starts: I64
    durations: F64
    steps: I64
    """The next step."""
    versions: I64
    """[C, n_groups] at the previous step."""

    def select(self, which: I64) -> _Open:
        return _Open(**{name: array[which] for name, array in vars(self).items()})

    def join(self, other: _Open) -> _Open:
        pairs = zip(vars(self).items(), vars(other).values(), strict=True)
        return _Open(**{name: np.concatenate((ours, theirs)) for (name, ours), theirs in pairs})


@dataclass(frozen=True, kw_only=True)
class SessionStream:
    """The stream of sessions that start and end, for one seed."""

    seed: int
    sizes: CountLaw
    """Samples per session."""
    concurrent_sessions: int
    """The mean number of open sessions, once the first ones begin to end."""
    duration_ms: float
    """The mean duration of a session; each lasts between 0.5 and 1.5 times as long."""
    change_rates: Mapping[str, float]
    """The probability of each group to change between adjacent samples."""

    @property
    def samples_per_ms(self) -> float:
        return self.concurrent_sessions * self.sizes.mean / self.duration_ms

    def slices(self, *, first: int, samples: int, start_ms: int, rows: int) -> Iterator[Slice]:
        """`samples` samples of the sessions first, first + 1, ..., about `rows` at a time.

        The last session is cut short, so that the number of samples is exact.
        """
        if not samples:
            return
        arrivals = self._arrivals(first, samples, start_ms)
        waiting = next(arrivals, None)
        active = self._none()
        density = min(self.samples_per_ms, samples / self.duration_ms)
        width = max(1, int(rows / density))
        for until in count(start_ms + width, width):
            while waiting is not None and waiting.starts[0] < until:
                active = active.join(waiting)
                waiting = next(arrivals, None)
            part = self._advance(active, until)
            active = active.select(np.flatnonzero(active.steps < active.sizes))
            if part.steps.size:
                yield part
            if waiting is None and not active.sizes.size:
                return

    def _none(self) -> _Open:
        return self._admit(np.empty(0, np.uint64), np.empty(0, np.int64), np.empty(0, np.int64))

    def _admit(self, sessions: U64, sizes: I64, starts: I64) -> _Open:
        even = uniforms(streams(salt(self.seed, "duration"), sessions), np.zeros_like(sizes))
        return _Open(
            sessions=sessions,
            sizes=sizes,
            starts=starts,
            durations=self.duration_ms * (0.5 + even),
            steps=np.zeros_like(sizes),
            versions=np.zeros((sizes.size, len(self.change_rates)), np.int64),
        )

    def _arrivals(self, first: int, samples: int, start_ms: int) -> Iterator[_Open]:
        """Sessions in the order of their starts, until they have `samples` samples."""
        size_salt = salt(self.seed, "size")
        done = 0
        for begin in count(first, ARRIVALS):
            sessions = np.arange(begin, begin + ARRIVALS, dtype=np.uint64)
            zeros = np.zeros(ARRIVALS, np.int64)
            sizes = self.sizes.sample(uniforms(streams(size_salt, sessions), zeros))
            before = done + sizes.cumsum() - sizes
            wanted = np.flatnonzero(before < samples)
            sizes = np.minimum(sizes, samples - before)[wanted]
            starts = start_ms + (before[wanted] / self.samples_per_ms).astype(np.int64)
            yield self._admit(sessions[wanted], sizes, starts)
            done += int(sizes.sum())
            if done >= samples:
                return

    def _advance(self, active: _Open, until: int) -> Slice:
        """The samples before the time `until`; moves the open sessions on to that time."""
        # Step k is in [k, k + 1) D / n after the start: at most one candidate too many.
        reach = np.floor((until - active.starts) * (active.sizes / active.durations)) + 1
        ends = np.clip(reach.astype(np.int64), active.steps, active.sizes)
        lengths = ends - active.steps
        rows = np.repeat(np.arange(lengths.size), lengths)
        steps = ranges(active.steps, lengths)
        even = uniforms(streams(salt(self.seed, "time"), active.sessions)[rows], steps)
        pace = active.durations / active.sizes
        timestamps = active.starts[rows] + (pace[rows] * (steps + even)).astype(np.int64)
        due = np.flatnonzero(timestamps < until)
        rows, steps, timestamps = rows[due], steps[due], timestamps[due]
        sessions = active.sessions[rows]
        versions = {}
        for column, (group, rate) in enumerate(self.change_rates.items()):
            draws = uniforms(streams(salt(self.seed, f"change/{group}"), sessions), steps)
            carried = active.versions[:, column]
            versions[group] = carried[rows] + _running_sums(draws < rate, rows)
            carried[rows] = versions[group]  # the last sample of a session is written last
        active.steps[rows] = steps + 1
        return Slice(sessions, steps, timestamps, versions)


def _running_sums(flags: NDArray[np.bool_], rows: I64) -> I64:
    """The number of flags so far within each band of equal `rows`, including the present one."""
    sums: I64 = flags.cumsum()
    starts = band_starts(rows)
    return sums - sums[starts] + flags[starts]

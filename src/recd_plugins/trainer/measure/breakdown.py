"""Breaks a profile down into the parts of a step, and says which part each moment belongs to.

A moment belongs to the innermost range or operator that has a part. A backward node belongs to the
part of the forward operator that made it: both have the same sequence number.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

__all__ = [
    "PARTS",
    "STEP",
    "Span",
    "breakdown",
    "collectives_of",
    "device_breakdown",
    "explain_breakdown",
    "lane",
]

STEP = "## step ##"
"""The range around a whole step."""

PARTS = {
    "data": "reading the next batch and copying it to the device",
    "exchange": "preparing, packing and ordering what collectives move",
    "exposed": "waiting for collectives that nothing hides",
    "lookup": "embedding lookups; backward, with the fused update",
    "pooling": "pooling modules, forward and backward",
    "dense": "the rest of the model",
    "optimizer": "the dense optimizer",
    "other": "all else: Python around the pipeline; on CUDA, the device idle",
}
"""The parts of a step, and what each includes."""

_RULES = [
    (re.compile(pattern, re.IGNORECASE), part)
    for pattern, part in (
        (r"^fbgemm::(split|dense)_embedding|lookupfunction", "lookup"),
        (r"^## pooling ", "pooling"),
        (r"^## (next_batch|load_batch|(inplace_)?copy_batch|wait_for_batch)", "data"),
        (
            r"all2all|alltoall|reduce_?scatter|all_?gather|all_?reduce|^c10d::|wait\(\) ##"
            r"|sparse_data_dist|assemble_kjt|construct_jagged|dist_init",
            "exchange",
        ),
        (r"^## (zero_grad|optimizer)|^optimizer\.", "optimizer"),
        (r"^## (forward|backward)", "dense"),
    )
]
"""The names that TorchRec, fbgemm and torch use, and the part of each; the first match counts."""

_WAITS = re.compile(r"wait\(\) ##$|^## (backward|wait_sparse_data_dist)|^\w+Backward$")
_COLLECTIVE = re.compile(r"^(gloo|nccl)")
_NODE = "autograd::engine::evaluate_function: "


class Span(NamedTuple):
    """A range, operator or kernel that a profiler recorded, in seconds of the profiler's clock."""

    name: str
    start: float
    end: float
    thread: int = 0
    in_flight: bool = False
    """Whether it runs beside its thread, like gloo's collectives."""
    sequence: int = -1
    """The autograd sequence number of an operator and of the node that it made."""
    forward_thread: int = 0
    """The thread of the operator that made a backward node."""
    kernels: float = 0.0
    """Seconds of the device kernels that it launched itself, without those of collectives."""


class _Piece(NamedTuple):
    """A time in which a span was the innermost of its thread."""

    span: Span
    part: str
    start: float
    end: float

    @property
    def waits(self) -> bool:
        """Whether it waits for a collective; the wait is exposed while one is in flight."""
        return self.part in ("exchange", "dense") and bool(_WAITS.search(self.span.name))


def breakdown(spans: Iterable[Span]) -> dict[str, float]:
    """The seconds of each part within `STEP`, on the thread of the step; they add up to its time.

    Waiting is `exposed` while a collective is in flight.
    """
    spans = list(spans)
    (main,) = {span.thread for span in spans if span.name == STEP}
    steps = [(span.start, span.end) for span in spans if span.name == STEP]
    flights = _flights(spans)
    found = dict.fromkeys(PARTS, 0.0)
    for piece in _pieces(spans):
        if piece.span.thread != main or not any(a <= piece.start < b for a, b in steps):
            continue  # for example an evaluation
        exposed = 0.0
        if piece.waits:
            exposed = _overlap((piece.start, piece.end), flights)
        found["exposed"] += exposed
        found[piece.part] += piece.end - piece.start - exposed
    return found


def lane(spans: Iterable[Span], step: Span) -> Iterator[tuple[str, float, float]]:
    """The work of the step's thread within the step, as `breakdown` adds it up: part, start and
    end."""
    spans = list(spans)
    flights = _flights(spans)
    for piece in sorted(_pieces(spans), key=lambda one: one.start):
        start, end = max(piece.start, step.start), min(piece.end, step.end)
        if piece.span.thread != step.thread or start >= end:
            continue
        for first, last in flights if piece.waits else ():
            first, last = max(first, start), min(last, end)
            if first < last:
                if start < first:
                    yield piece.part, start, first
                yield "exposed", first, last
                start = last
        if start < end:
            yield piece.part, start, end


def collectives_of(spans: Iterable[Span], step: Span) -> list[tuple[str, float, float]]:
    """Each collective in flight within the step: its name, and its start and end, both cut to the
    step."""
    return sorted(
        (
            (span.name.partition(":")[2] or span.name, max(span.start, step.start), end)
            for span in spans
            if span.in_flight
            and _COLLECTIVE.match(span.name)
            and (end := min(span.end, step.end)) > max(span.start, step.start)
        ),
        key=lambda one: one[1:],
    )


def device_breakdown(spans: Iterable[Span], device: Iterable[Span]) -> dict[str, float]:
    """The seconds of each part on a CUDA device, whose kernels are `device`.

    A part gets the time of the kernels that it launched, `exposed` the time of collectives' kernels
    while no other kernel runs, and `other` the time without a kernel. If kernels overlap, the sum
    exceeds the time of the steps.
    """
    spans, device = list(spans), list(device)
    found = dict.fromkeys(PARTS, 0.0)
    parts = {id(piece.span): piece.part for piece in _pieces(spans)}
    for span in spans:
        found[parts.get(id(span)) or "other"] += span.kernels
    moved = _union((one.start, one.end) for one in device if _COLLECTIVE.match(one.name))
    worked = _union((one.start, one.end) for one in device if not _COLLECTIVE.match(one.name))
    busy = _union([*moved, *worked])
    found["exposed"] = _length(busy) - _length(worked)
    steps = _union((span.start, span.end) for span in spans if span.name == STEP)
    found["other"] += sum(end - start - _overlap((start, end), busy) for start, end in steps)
    return found


def explain_breakdown(parts: Mapping[str, float]) -> Iterator[str]:
    """The milliseconds of each part in words, the longest first."""
    whole = sum(parts.values())
    yield f"profile: a step of {whole:,.1f} ms"
    for part, value in sorted(parts.items(), key=lambda one: -one[1]):
        yield f"  {part:<9} {value:>8,.1f} ms {value / whole:>4.0%}  {PARTS[part]}"


def _flights(spans: Iterable[Span]) -> list[tuple[float, float]]:
    """The times in which any collective is in flight."""
    return _union(
        (span.start, span.end) for span in spans if span.in_flight and _COLLECTIVE.match(span.name)
    )


def _pieces(spans: Iterable[Span]) -> Iterator[_Piece]:
    """Each thread's time, cut where the innermost span changes; the part is "" if none fits."""
    threads: dict[int, list[Span]] = defaultdict(list)
    for span in spans:
        if not span.in_flight:
            threads[span.thread].append(span)
    made: dict[tuple[int, int], str] = {}
    # The thread of the forward comes before threads that only run backward nodes.
    for thread in sorted(threads, key=lambda one: min(span.start for span in threads[one])):
        stack: list[tuple[Span, str]] = []
        now = 0.0
        for span in sorted(threads[thread], key=lambda one: (one.start, -one.end)):
            while stack and stack[-1][0].end <= span.start:
                yield _Piece(*stack[-1], now, max(now, stack[-1][0].end))
                now = max(now, stack.pop()[0].end)
            if stack:
                yield _Piece(*stack[-1], now, max(now, span.start))
            now = span.start
            part = _part(span, stack[-1][1] if stack else "", made)
            if span.sequence >= 0 and not span.name.startswith(_NODE):
                made[thread, span.sequence] = part
            stack.append((span, part))
        while stack:
            yield _Piece(*stack[-1], now, max(now, stack[-1][0].end))
            now = max(now, stack.pop()[0].end)


def _part(span: Span, outer: str, made: dict[tuple[int, int], str]) -> str:
    """The part that a span's name fits; for a backward node that of its forward operator; else that
    of the outer span."""
    if fits := _part_of(span.name):
        return fits
    if span.name.startswith(_NODE):
        return made.get((span.forward_thread, span.sequence)) or outer or "dense"
    return outer


@lru_cache(maxsize=1 << 14)
def _part_of(name: str) -> str:
    """The part that a name fits by itself, or ""."""
    if name == STEP:
        return "other"
    return next((part for pattern, part in _RULES if pattern.search(name)), "")


def _union(intervals: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    joined: list[tuple[float, float]] = []
    for start, end in sorted(intervals):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


def _overlap(one: tuple[float, float], others: list[tuple[float, float]]) -> float:
    """The length of `one` that a sorted union covers."""
    return sum(max(0.0, min(one[1], end) - max(one[0], start)) for start, end in others)


def _length(union: list[tuple[float, float]]) -> float:
    return sum(end - start for start, end in union)

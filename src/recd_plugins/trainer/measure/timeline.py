"""The timeline of a profiled step, as a run's folder has it and a report draws it: what each rank's
thread does one after the other, and which collectives are in flight beside it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from recd_plugins.trainer.measure.breakdown import STEP, Span, collectives_of, lane
from recd_plugins.trainer.measure.by_rank import uneven_by_rank

__all__ = ["timeline", "timelines_of_ranks"]

RANKS = 8
"""The largest number of ranks whose steps are kept."""
LEAST = 1e-3
"""A piece that is shorter than this share of the step goes to its neighbour."""


def timeline(spans: Iterable[Span]) -> dict[str, Any]:
    """The median step in `spans`: its length, [part, start, end] of the pieces of its thread, one
    after the other, and [name, start, end] of each collective."""
    spans = list(spans)
    steps = sorted((one for one in spans if one.name == STEP), key=lambda one: one.end - one.start)
    step = steps[(len(steps) - 1) // 2]
    least = LEAST * (step.end - step.start)
    pieces: list[list[Any]] = []
    for part, start, end in lane(spans, step):
        if pieces and (part == pieces[-1][0] or end - start < least):
            pieces[-1][2] = end
        else:
            pieces.append([part, start, end])

    def since(found: Iterable[Sequence[Any]]) -> list[list[Any]]:
        return [
            [name, *(round(1e3 * (at - step.start), 3) for at in times)] for name, *times in found
        ]

    return {
        "ms": 1e3 * (step.end - step.start),
        "thread": since(pieces),
        "collectives": since(collectives_of(spans, step)),
    }


def timelines_of_ranks(mine: dict[str, Any], device: torch.device) -> list[dict[str, Any]]:
    """The timelines of the first `RANKS` ranks; every rank must call it."""
    text = torch.frombuffer(bytearray(json.dumps(mine).encode()), dtype=torch.uint8).to(device)
    return [json.loads(bytes(one.tolist())) for one in uneven_by_rank(text)[:RANKS]]

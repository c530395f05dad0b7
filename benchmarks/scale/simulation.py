"""A discrete simulation of steps: ranks, each with a processor, two links and a loader, and what
waits for what. It checks the closed form of `StepForecast`, whose parts it takes.

A task occupies its resources for some time, once all that it waits for is done and they are free;
of tasks that could begin, the one that waits longest does. A collective is one task of all ranks.
Steps follow each other as TrainPipelineSparseDist has them: the ids of the next batch are sent
while this one is in backward.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from recd_plugins.planning.prices.cost import Cost
from recd_plugins.planning.prices.milliseconds import own_work_ms
from recd_plugins.planning.prices.table_ledger import TierName
from recd_plugins.planning.step.step_forecast import BACKWARD, StepForecast

__all__ = ["Event", "simulate", "simulated_ms"]

STEPS = 8
"""The first ones fill the pipeline."""
MOST_RANKS = 16
"""Ranks are alike, so that as many show what all do."""

Resource = tuple[str, int]
REPLICAS: tuple[TierName, ...] = ("replicated", "per_node")


@dataclass(eq=False)
class Event:
    """Something that takes time, and resources."""

    ms: float
    on: Sequence[Resource] = ()
    after: Sequence[Event] = ()
    ends: float = field(default=0.0, init=False)


def simulate(events: Sequence[Event]) -> float:
    """Milliseconds until all events have ended; each then knows when it did."""
    followers: dict[int, list[Event]] = {}
    waits = {id(event): len(event.after) for event in events}
    for event in events:
        for before in event.after:
            followers.setdefault(id(before), []).append(event)
    numbers = count()
    ready = [(0.0, next(numbers), event) for event in events if not event.after]
    heapq.heapify(ready)
    free: dict[Resource, float] = {}
    while ready:
        since, number, event = heapq.heappop(ready)
        begins = max([since, *(free.get(one, 0.0) for one in event.on)])
        if begins > since and ready and ready[0][0] < begins:
            # Another may begin before: this one keeps its turn among those that wait.
            heapq.heappush(ready, (begins, number, event))
            continue
        event.ends = begins + event.ms
        for one in event.on:
            free[one] = event.ends
        for after in followers.get(id(event), ()):
            waits[id(after)] -= 1
            if not waits[id(after)]:
                latest = max(before.ends for before in after.after)
                heapq.heappush(ready, (latest, next(numbers), after))
    return max(event.ends for event in events)


def simulated_ms(step: StepForecast, *, jitter: float = 0.0, seed: int = 0) -> float:
    """Milliseconds of a step after those that fill the pipeline.

    With a `jitter` each rank computes some share faster or slower in each step, normally
    distributed; then all wait for the slowest, which the closed form does not know.
    """
    ranks = min(step.world_size, MOST_RANKS)
    draw = np.random.default_rng(seed)
    events, ends = [], []
    previous: _Step | None = None
    for _ in range(STEPS):
        pace = np.maximum(draw.normal(1.0, jitter, ranks), 0.1) if jitter else np.ones(ranks)
        made = _Step.of(step, pace.tolist(), previous)
        events += made.events
        ends.append(made.end)
        previous = made
    simulate(events)
    first = STEPS // 2 - 1
    return (ends[-1].ends - ends[first].ends) / (STEPS - 1 - first)


@dataclass
class _Step:
    """The events of one step of all ranks."""

    events: list[Event]
    forward: list[Event]
    """What the ids of the next batch wait for."""
    loaded: list[Event]
    end: Event

    @classmethod
    def of(cls, step: StepForecast, pace: Sequence[float], previous: _Step | None) -> _Step:
        parts, work = step.parts, _Work.of(step)
        ranks = range(len(pace))
        events: list[Event] = []

        def each(ms: float, after: Sequence[Event], *, on: str = "processor") -> list[Event]:
            """On every rank, after what is done there, or by all."""
            made = [
                Event(
                    ms * pace[rank],
                    [(on, rank)],
                    [after[rank]] if len(after) == len(pace) else after,
                )
                for rank in ranks
            ]
            events.extend(made)
            return made

        def together(ms: float, after: Sequence[Event], *, link: str) -> list[Event]:
            if not ms:
                return list(after)
            made = Event(ms, [(link, rank) for rank in ranks], after)
            events.append(made)
            return [made]

        loading = parts["conversion"] + parts["reading"]
        before = [previous.end] if previous else []
        if step.workers:
            loaded = each(loading / step.workers, previous.loaded if previous else [], on="loader")
        else:
            loaded = each(loading, before)
        ids = together(step.ids, [*loaded, *(previous.forward if previous else [])], link="between")
        # Ids travel ahead of the step: it begins when the one before it has ended.
        looked_up = each(work.lookup, [*ids, *before, *([] if step.workers else loaded)])
        rows = together(work.exchange, looked_up, link="between")
        asked = together(work.within, looked_up, link="within")
        forward = each(work.forward, [*rows, *asked])
        half = each(work.backward / 2, forward)
        dense = together(parts["dense_reduce"], half, link="between")
        backward = each(work.backward / 2, half)
        gradients = together(work.exchange, backward, link="between")
        within = together(work.within, backward, link="within")
        accumulated = each(work.replicas / 2, backward)
        reduced = together(work.reduce, [*accumulated, *within], link="between")
        home = each(work.home, [*gradients, *within])
        applied = each(work.replicas / 2, [*reduced, *within])
        end = Event(0.0, (), [*dense, *home, *applied])
        events.append(end)
        return cls(events, forward, loaded, end)


@dataclass(frozen=True)
class _Work:
    """Milliseconds of what a step consists of, on one rank."""

    lookup: float
    forward: float
    backward: float
    home: float
    """To update rows at home."""
    replicas: float
    """To accumulate the gradients of replicas, and to apply them."""
    exchange: float
    """Rows one way, between nodes; without ids."""
    within: float
    reduce: float
    """Gradients of replicas."""

    @classmethod
    def of(cls, step: StepForecast) -> _Work:
        ledger, parts = step.ledger, step.parts
        cluster = ledger.prices.cluster
        copied = sum(
            (one.entries[tier].cost for one in ledger.tables.values() for tier in REPLICAS), Cost()
        )
        replicas = own_work_ms(dataclasses.replace(copied, updated=0.0), cluster)
        rest = parts["lookups"] - replicas
        computed = parts["dense"] + parts["pooling"]
        other = parts["fixed"] + parts["expansion"] + parts["handling"]
        exchanged = parts.get("a2a_global", 0.0) + parts.get("a2a_cross", 0.0) - step.ids
        return cls(
            lookup=(rest + replicas) / 2,
            forward=(1 - BACKWARD) * computed + other / 2,
            backward=BACKWARD * computed + other / 2,
            home=rest / 2,
            replicas=replicas / 2,
            exchange=exchanged / 2,
            within=parts.get("a2a_intra", 0.0) / 2,
            reduce=parts.get("ar_cross", 0.0) + parts.get("ar_global", 0.0),
        )

"""Steps and epochs of 4 ranks, each behind its own slow link, against plain row-wise."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.cluster.network import Network, available
from benchmarks.cluster.ranks import ClusterRanks
from benchmarks.harness import Figure, Limit, spread
from benchmarks.limits import link_seconds
from benchmarks.scars.clicks import Clicks
from benchmarks.scars.steps import ScarsSide, Steps, trained
from benchmarks.scars.tables import UNIFORM
from recd_plugins.trainer.tuning.learning import Learning

__all__ = ["MBIT", "RANKS", "EmulatedLink", "over_the_link"]

RANKS, MBIT = 4, 200
WARM_UP = 3
"""Steps in which pipelines fill and kernels compile."""
HOT_STEPS = 20
"""The least number of hot steps, and of normal steps."""
SHARE = 0.8
"""The share of what there is to learn that has to be learnt."""
PLAIN = ScarsSide(name="plain row-wise")
TABLE_WISE = ScarsSide(name="plain table-wise", kind="table_wise")
COALESCED = ScarsSide(name="coalesced", coalesce="rank")


@dataclass(kw_only=True)
class EmulatedLink:
    """Ranks over a slow network, inside a context manager."""

    ranks: ClusterRanks
    rounds: int
    dim: int = 64

    def coalescing(self, num_rows: int, batch_size: int, *, bags: bool) -> Iterator[Figure]:
        """A step with and without coalescing, for sequences and, with `bags`, for bags too."""
        law = "Zipf 1.05"
        sequences = self._clicks(law, num_rows, tables=1, lookups=20, pooled=False)
        name = f"step with coalescing, {law}"
        plain, ours = self._turns(sequences, (PLAIN, COALESCED), batch_size)
        yield self._faster(f"{name}, sequences", sequences, plain, ours, batch_size, 2.5)
        if not bags:
            return
        pooled = self._clicks(law, num_rows, tables=20, lookups=1, pooled=True)
        sides = (PLAIN, TABLE_WISE, COALESCED)
        plain, whole, ours = self._turns(pooled, sides, batch_size)
        yield self._faster(f"{name}, bags", pooled, plain, ours, batch_size, 2.5)
        yield self._faster(
            f"{name}, bags, against table-wise", pooled, whole, ours, batch_size, None
        )

    def _clicks(
        self, law: str, num_rows: int, *, tables: int, lookups: int, pooled: bool
    ) -> Clicks:
        return Clicks(
            law=law,
            num_rows=num_rows // tables,
            tables=tables,
            lookups=lookups,
            dim=self.dim,
            pooled=pooled,
        )

    def _faster(
        self,
        name: str,
        clicks: Clicks,
        plain: Steps,
        ours: Steps,
        batch_size: int,
        target: float | None,
    ) -> Figure:
        gains = [other / own for own, other in zip(ours.seconds, plain.seconds, strict=True)]
        return Figure(
            name=name,
            value=statistics.median(gains),
            unit="x faster",
            baseline=1.0,
            target=target,
            limit=_of_link(statistics.median(plain.seconds), statistics.mean(ours.sent)),
            spread=spread(gains),
            note=f"{_ms(plain.seconds)} and {_ms(ours.seconds)} ms, {_mb(plain.sent)} and "
            f"{_mb(ours.sent)} MB out of a rank; {clicks.tables} x {clicks.lookups} lookups, B = "
            f"{batch_size}, {clicks.tables} x {clicks.num_rows:,} rows of {self.dim}",
        )

    def hot_steps(self, clicks: Clicks, batch_size: int, share: float) -> Figure:
        """Hot and normal steps of one run."""
        side = ScarsSide(name="SCARS", coalesce="rank", cached=share, hot_batches=True)
        (found,) = self._turns(clicks, (side,), batch_size, max(HOT_STEPS, 4 * self.rounds))
        kinds = {
            kind: [s for s, hot in zip(found.seconds, found.hot, strict=True) if hot == kind]
            for kind in (True, False)
        }
        hot, normal = (statistics.median(kinds[kind]) for kind in (True, False))
        return Figure(
            name="hot step against normal step",
            value=normal / hot,
            unit="x faster",
            baseline=1.0,
            target=3.0,
            limit=_of_link(
                normal,
                statistics.mean(
                    sent for sent, hot in zip(found.sent, found.hot, strict=True) if hot
                ),
            ),
            spread=spread(kinds[True]),
            note=f"{1e3 * hot:,.0f} and {1e3 * normal:,.0f} ms, {len(kinds[True])} hot of "
            f"{len(found.hot)}; {clicks.law}, {share:.1%} of lookups cached, B = {batch_size}",
        )

    def no_skew(self, num_rows: int, batch_size: int) -> Figure:
        """Uniform ids: what coalescing, a cache of 1% and the stage of hot batches cost."""
        clicks = self._clicks(UNIFORM, num_rows, tables=1, lookups=20, pooled=False)
        side = ScarsSide(name="SCARS", coalesce="rank", cached=0.01, hot_batches=True)
        plain, ours = self._turns(clicks, (PLAIN, side), batch_size)
        return self._faster("step with no skew", clicks, plain, ours, batch_size, 0.95)

    def epoch(
        self, clicks: Clicks, sizes: Sequence[int], samples: int, share: float, target: float
    ) -> Figure:
        """The time to a given loss, for each side at the batch size that reaches it soonest."""
        ours = ScarsSide(name="SCARS", coalesce="rank", cached=share, hot_batches=True)
        found = {
            side: {size: self._learned(clicks, side, size, samples) for size in sizes}
            for side in (PLAIN, ours)
        }
        window = 2 * max(sizes) * RANKS
        loss = (1 - SHARE) * clicks.to_learn()
        (their_size, theirs), (size, seconds) = (
            _soonest(found[side], loss, window) for side in (PLAIN, ours)
        )
        every = "; ".join(
            f"{side.name} "
            + ", ".join(f"B {size}: {_time(one, loss, window)}" for size, one in sizes.items())
            for side, sizes in found.items()
        )
        return Figure(
            name=f"time to a loss with cache, coalescing and hot batches, {clicks.law}",
            value=theirs / seconds,
            unit="x faster",
            baseline=1.0,
            target=target,
            note=f"{theirs:.1f} s at B = {their_size}, {seconds:.1f} at B = {size}, until "
            f"{SHARE:.0%} is learned of what there is to learn ({clicks.to_learn():.4f}; mean of "
            f"{window:,} samples); {every}; {share:.2%} of lookups cached",
        )

    def _turns(
        self, clicks: Clicks, sides: Sequence[ScarsSide], batch_size: int, warm: int | None = None
    ) -> list[Steps]:
        """Warm steps of each side."""
        steps = WARM_UP + (warm or self.rounds)
        return [
            _warm(self.ranks.run(trained, clicks, side, batch_size, steps)[0]) for side in sides
        ]

    def _learned(self, clicks: Clicks, side: ScarsSide, batch_size: int, samples: int) -> Learning:
        steps = samples // (batch_size * RANKS)
        found = self.ranks.run(trained, clicks, side, batch_size, steps)[0]
        return Learning(
            batch_size=batch_size,
            samples_per_step=batch_size * RANKS,
            memory_mib=0.0,
            seconds=found.seconds,
            losses=found.losses,
            warm_up=WARM_UP,
        )


def over_the_link(quick: bool) -> list[Figure]:
    """The figures; or none, and why, if no cluster can be emulated."""
    if missing := available():
        print(f"no figures over a slow link: they need {missing}", file=sys.stderr)
        return []
    fetched = Clicks(law="Zipf 1.05", num_rows=200_000, tables=1, lookups=2, dim=128, pooled=False)
    learned = Clicks(
        law="half-normal",
        num_rows=5_000,
        tables=1,
        lookups=20,
        dim=64,
        pooled=False,
        signal=0.5,
    )
    with Network(RANKS, MBIT) as network, ClusterRanks(network, 1) as ranks:
        link = EmulatedLink(ranks=ranks, rounds=3 if quick else 15)
        figures = [
            *link.coalescing(200_000, 1024, bags=not quick),
            link.hot_steps(fetched, 8192, share=0.6),
            link.no_skew(200_000, 1024),
        ]
        if not quick:
            sizes = (32, 64, 256, 1024, 2048, 4096)
            figures.append(link.epoch(learned, sizes, samples=163_840, share=0.9999, target=6.0))
        return figures


def _of_link(seconds: float, sent: float) -> Limit:
    """The limit of a side that sends `sent` bytes, against one that takes `seconds`."""
    least = link_seconds(sent, MBIT)
    return Limit(
        value=seconds / least,
        of=f"the bytes that our side sends, on a link of {MBIT} mbit: {1e3 * least:,.1f} ms; what "
        "ranks compute is left out, and so are latencies",
    )


def _soonest(trainings: Mapping[int, Learning], loss: float, window: int) -> tuple[int, float]:
    times = {size: one.seconds_to(loss, window) for size, one in trainings.items()}
    known = {size: seconds for size, seconds in times.items() if seconds is not None}
    best = min(known, key=known.__getitem__)
    return best, known[best]


def _time(one: Learning, loss: float, window: int) -> str:
    seconds = one.seconds_to(loss, window)
    return "never" if seconds is None else f"{seconds:,.1f} s in {one.steps_to(loss, window)} steps"


def _warm(steps: Steps) -> Steps:
    return Steps(
        seconds=steps.seconds[WARM_UP:],
        sent=steps.sent[WARM_UP:],
        losses=steps.losses[WARM_UP:],
        hot=steps.hot[WARM_UP : len(steps.seconds)],
    )


def _ms(seconds: Sequence[float]) -> str:
    return f"{1e3 * statistics.median(seconds):,.0f}"


def _mb(sent: Sequence[int]) -> str:
    return f"{statistics.mean(sent) / 1e6:,.2f}"

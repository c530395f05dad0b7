"""Draws the repeats that deduplication finds: copies of a batch's samples, dedupe factors, and a
table's duplicates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from recd_plugins.errors import DataError, listed
from recd_plugins.report.drawing import DASH, TIMES, Bar, Figure, Plot, Scale, bars, number, share
from recd_plugins.report.sources import Sources

__all__ = ["figures", "not_drawn"]

SESSIONS = "samples_per_session"
"""The key that only the measure `sessions` has in its findings about a table."""
MOST = 8
"""The largest number of groups with a histogram each, and of features with a bar."""


def figures(sources: Sources) -> Iterator[Figure]:
    for run, ink in sources.inks():
        sampled = [line["groups"] for line in run.lines if line["kind"] == "repeats"]
        if sampled:
            of = f" ({run.name})" if len(sources.runs) > 1 else ""
            yield _factors(sampled, of, ink)
            for group in range(min(len(sampled[0]), MOST)):
                yield _copies([one[group] for one in sampled if len(one) > group], of, ink)
    for printed in sources.of("stats"):
        for name, values in printed.values["stats"].items():
            if SESSIONS not in values:
                continue
            try:
                drawn = list(_of_table(values, f"{printed.name}: {name}"))
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise DataError(
                    f"{printed.name}: what measure {name!r} found has {SESSIONS!r}, as what "
                    "`sessions` of recd_dedup finds, but not what is drawn of that "
                    f"({type(error).__name__}: {error}). Use another name in the measure, or take "
                    "it out of the file."
                ) from error
            yield from drawn


def not_drawn(sources: Sources) -> Iterator[str]:
    """For each file, the measures of tables that are not drawn."""
    for printed in sources.of("stats"):
        names = [name for name, found in printed.values["stats"].items() if SESSIONS not in found]
        if names:
            yield f"{printed.name}: {listed(names, kind='measure')}"


def _factors(sampled: Sequence[Any], of: str, ink: str) -> Figure:
    found: dict[str, list[tuple[float, float]]] = {}
    for groups in sampled:
        for group in groups:
            for feature, factor in group["features"].items():
                ids = group.get("ids", {}).get(feature, 1)  # an older run does not say how many
                found.setdefault(feature, []).append((ids, ids / factor))
    factors = {  # ids over ids kept, of all batches together
        name: sum(ids for ids, _ in every) / (sum(kept for _, kept in every) or 1.0)
        for name, every in found.items()
    }
    every = sorted(factors.items(), key=lambda one: -one[1])
    return Figure(
        title=f"Dedupe factor by feature{of}",
        says="A bar for each deduplicated feature: "
        + ", ".join(f"{name} {number(factor)}" for name, factor in every[:6])
        + ".",
        drawing=bars(
            [
                Bar(name=name, parts=[("", factor, ink)], total=f"{number(factor)}{TIMES}")
                for name, factor in every[:MOST]
            ],
            words="ids of a batch over ids kept",
        ),
        note=f"Mean of {len(sampled)} sampled batches of rank 0."
        + (f" The table has {len(every) - MOST} features more." if len(every) > MOST else ""),
        columns=["feature", "dedupe factor"],
        rows=[[name, number(factor, 4)] for name, factor in every],
    )


def _copies(sampled: Sequence[Mapping[str, Any]], of: str, ink: str) -> Figure:
    """A histogram of how often a unique sample comes in a batch, in shares of the samples."""
    counts: Counter[int] = Counter()
    for one in sampled:
        counts.update({copies: copies * unique for copies, unique in one["copies"]})
    name = ", ".join(sampled[0]["features"])
    kept = sum(one["unique"] for one in sampled) / sum(one["samples"] for one in sampled)
    summary = f"of {number(1 / kept)} samples one is kept"
    return _histogram(
        counts,
        title=f"Copies of a sample in a batch: {name}{of}",
        says=f"Samples of a batch by how many of them are alike; {summary}.",
        x_words="copies in the batch",
        y_words="samples",
        ink=ink,
        note=f"As to {name}, {summary}.",
    )


def _histogram(
    counts: Mapping[int, float], *, title: str, says: str, x_words: str, y_words: str, ink: str,
    note: str,
) -> Figure:  # fmt: skip
    """A histogram whose bins double in width; heights are shares of all."""
    whole = sum(counts.values()) or 1
    bins: list[tuple[str, float]] = []
    low = 1
    while low <= max(counts, default=1):
        high = 2 * low - 1
        inside = sum(count for value, count in counts.items() if low <= value <= high) / whole
        bins.append((f"{low}" if low == high else f"{low}{DASH}{high}", inside))
        low *= 2
    plot = Plot(
        x=Scale(low=0, high=1),
        y=Scale.over([value for _, value in bins], zero=True, unit="%"),
        height=150,
        right=8,
        x_words=x_words,
    )
    for index, (_, value) in enumerate(bins):
        start, end = index / len(bins), (index + 1) / len(bins)
        gap = 0.06 * (end - start)
        plot.column(start + gap, end - gap, value, ink, _percent(value))
    ticks = [((index + 0.5) / len(bins), words) for index, (words, _) in enumerate(bins)]
    return Figure(
        title=title,
        says=says,
        drawing=plot.svg(ticks if len(ticks) <= 6 else ticks[:: -(-len(ticks) // 6)]),
        note=note,
        columns=[x_words, f"{y_words}, share"],
        rows=[[words, share(value)] for words, value in bins],
    )


def _percent(value: float) -> str:
    """A share in so few letters that they fit above a narrow bar; empty for 0."""
    return "" if not value else f"{value:.0%}" if value >= 0.005 else "<1%"


def _of_table(values: Mapping[str, Any], name: str) -> Iterator[Figure]:
    sizes = values["samples_per_session"]["table"]
    yield _histogram(
        {int(size): count for size, count in sizes["histogram"]},
        title=f"Samples of a session ({name})",
        says=f"Sessions by their samples: {number(sizes['mean'])} on average, {sizes['max']:,} at "
        "most.",
        x_words="samples of a session",
        y_words="sessions",
        ink="blue",
        note=f"{number(sizes['mean'])} on average, {sizes['max']:,} at most.",
    )
    features = sorted(values["features"], key=lambda one: -one["exact"])
    yield Figure(
        title=f"Duplicates within a session, by feature ({name})",
        says="A bar for each feature, exact duplicates and what more is partial: "
        + ", ".join(f"{one['name']} {share(one['exact'])}" for one in features[:6])
        + ".",
        drawing=bars(
            [
                Bar(
                    name=one["name"],
                    parts=[
                        ("", one["exact"], "blue"),
                        ("", max(one["partial"] - one["exact"], 0.0), "sky"),
                    ],
                    total=f"{share(one['exact'])} exact, {share(one['partial'])} partial",
                )
                for one in features
            ],
            unit="%",
            most=1.0,
        ),
        legend=[("exact: the same list", "blue"), ("partial: the same ids, beyond", "sky")],
        columns=["feature", "kind", "ids a sample", "exact", "partial", "dedupe factor, clustered"],
        rows=[
            [
                one["name"],
                one["kind"],
                number(one["length"]),
                share(one["exact"]),
                share(one["partial"]),
                number(one["clustered"]["dedupe_factor"]["measured"]),
            ]
            for one in features
        ],
    )

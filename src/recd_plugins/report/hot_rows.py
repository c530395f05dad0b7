"""Draws hot rows: how many lookups they cover, the tiers of tables, the frontier, and a cache's
curves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from recd_plugins.errors import so_many
from recd_plugins.report.drawing import Bar, Figure, Plot, Scale, bars, number, quantity, share
from recd_plugins.report.sources import Sources

__all__ = ["figures"]

MOST = 6
"""The largest number of tables with a coverage curve each, those with the most rows first."""
TIERS = {
    "replicated": ("on every rank", "orange"),
    "per_node": ("once per node", "ochre"),
    "row_wise": ("at home", "slate"),
}
PLANS = {
    "torchrec": "TorchRec's own",
    "row_wise": "row-wise",
    "row_wise_coalesced": "coalesced",
    "plan": "this plan",
}


def figures(sources: Sources) -> Iterator[Figure]:
    for name, plan in sources.plans():
        of = f" ({name})" if len(sources.runs) + len(sources.printed) > 1 else ""
        yield _tiers(plan, of)
        yield from _frontier(plan, of)
        tables = sorted(plan["tables"].items(), key=lambda one: -_rows(one[1]))
        for table, tiers in tables[:MOST]:
            if len(tiers.get("coverage", ())) > 1:
                yield _coverage(table, tiers, of)
    for printed in sources.of("cache curve"):
        yield _bytes_by_cache(printed.values)
        yield _bytes_by_batch(printed.values)


def _rows(table: Mapping[str, Any]) -> int:
    return int(sum(table[tier]["rows"] for tier in TIERS if tier in table))


def _tiers(plan: Mapping[str, Any], of: str) -> Figure:
    """The share of each table's lookups that each tier serves."""
    every = []
    for name, table in plan["tables"].items():
        copied = sum(table[tier]["rows"] for tier in ("replicated", "per_node") if tier in table)
        every.append(
            Bar(
                name=name,
                parts=[
                    ("{} {}".format(words, share(table[tier]["share"])), table[tier]["share"], ink)
                    for tier, (words, ink) in TIERS.items()
                    if tier in table and table[tier]["share"] > 0
                ],
                total=f"{copied:,} of {so_many(_rows(table), 'row')} copied"
                if copied
                else "no copies",
            )
        )
    return Figure(
        title=f"Lookups that each tier serves{of}",
        says="A bar for each table, in parts by tier: "
        + "; ".join(f"{bar.name} {', '.join(words for words, _, _ in bar.parts)}" for bar in every)
        + ".",
        drawing=bars(every, unit="%", most=1.0),
        legend=[(words, ink) for words, ink in TIERS.values()],
        columns=["table", "tier", "rows", "lookups", "memory a rank", "ms"],
        rows=[
            [
                name,
                TIERS[tier][0],
                f"{table[tier]['rows']:,}",
                share(table[tier]["share"]),
                quantity(table[tier]["memory"]),
                number(table[tier]["ms"]),
            ]
            for name, table in plan["tables"].items()
            for tier in TIERS
            if tier in table
        ],
    )


def _coverage(name: str, table: Mapping[str, Any], of: str) -> Figure:
    points = [(rows, taken) for rows, taken in table["coverage"]]
    plot = Plot(
        x=Scale(low=1, high=points[-1][0], log=True),
        y=Scale(low=0, high=1.04, unit="%"),
        height=150,
        right=20,
        x_words="hottest rows",
    )
    plot.line(points, "blue")
    rows, taken = 0, 0.0
    for tier in ("replicated", "per_node"):
        if tier in table and table[tier]["rows"]:
            rows, taken = rows + table[tier]["rows"], taken + table[tier]["share"]
            plot.dot(rows, taken, TIERS[tier][1], size=5)
            # The curve rises: words fit below it to the right, or above it to the left.
            right = plot.x.at(rows) <= 0.55
            plot.word(rows, taken, f"{rows:,} rows take {share(taken)}", below=right)
    tenth = next(taken for rows, taken in points if rows >= 0.1 * points[-1][0])
    return Figure(
        title=f"Coverage: {name}{of}",
        says=f"The share of lookups that the hottest rows of {name} take; the hottest tenth takes "
        f"{share(tenth)}.",
        drawing=plot.svg(),
        note=f"The hottest tenth of {points[-1][0]:,} rows takes {share(tenth)} of the lookups.",
        columns=["hottest rows", "lookups"],
        rows=[[f"{rows:,}", share(taken)] for rows, taken in points],
    )


def _frontier(plan: Mapping[str, Any], of: str) -> Iterator[Figure]:
    """Time against memory, with the chosen plan and the plans that it is compared with."""
    base = plan["memory"]["row_wise"]
    marked = {
        name: (plan["memory"][name] - base, plan["ms"][name])
        for name in PLANS
        if name in plan["ms"]
    }
    line = []
    if plan["frontier"]:
        # The frontier leaves out latencies, which are the same for all its points.
        nearest = min(plan["frontier"], key=lambda one: abs(one[0] - marked["plan"][0]))
        latency = marked["plan"][1] - nearest[1]
        line = [(memory, ms + latency) for memory, ms in plan["frontier"]]
    every = [*line, *marked.values()]
    plot = Plot(
        x=Scale.over((memory for memory, _ in every), unit="B"),
        y=Scale.over((ms for _, ms in every), zero=True),
        right=24,
        x_words="memory a rank over row-wise",
    )
    plot.line(line, "sky")
    for name, (memory, ms) in marked.items():
        chosen = name == "plan"
        plot.dot(memory, ms, "orange" if chosen else "slate", size=5.5 if chosen else 4)
    named: list[float] = []
    for name, (memory, ms) in sorted(marked.items(), key=lambda one: one[1][1]):
        near = any(abs(ms - other) < 0.09 * plot.y.high for other in named)
        if not near or name == "plan":
            plot.word(memory, ms, f"{PLANS[name]} {number(ms)}", below=name == "plan")
        named.append(ms)
    summary = ", ".join(f"{PLANS[name]} {number(ms)} ms" for name, (_, ms) in marked.items())
    yield Figure(
        title=f"Frontier: ms a step against memory{of}",
        says=f"Expected time of exchange and lookups against memory: {summary}.",
        drawing=plot.svg(),
        legend=[("this plan", "orange"), ("others", "slate"), ("least time for the memory", "sky")],
        columns=["plan", "memory a rank over row-wise", "ms", "exchanged"],
        rows=[
            [PLANS[name], quantity(memory), number(ms), quantity(plan["exchanged"][name])]
            for name, (memory, ms) in marked.items()
        ],
    )


def _bytes_by_cache(values: Mapping[str, Any]) -> Figure:
    """SCARS's curve of the bytes of a sample by the number of cached rows."""
    points = [one for one in values["by_cache"] if one["cached"]]
    best, none = values["optimum"], values["by_cache"][0]["bytes_per_sample"]
    plot = Plot(
        x=Scale.over((one["cached"] for one in points), log=True),
        y=Scale(low=0, high=1.3 * none, unit="B"),
        left=56,
        right=24,
        x_words="rows cached",
    )
    plot.level(none, f"no cache: {quantity(none)}")
    plot.line([(one["cached"], one["bytes_per_sample"]) for one in points], "orange")
    plot.dot(best["cached"], best["bytes_per_sample"], "orange", size=5.5)
    words = f"{so_many(best['cached'], 'row')}: {quantity(best['bytes_per_sample'])}"
    plot.word(best["cached"], best["bytes_per_sample"], words, below=True)
    return Figure(
        title=f"SCARS: bytes of a sample by the cache ({values.get('source', '')})",
        says=f"Bytes of a sample against rows cached: the least at {words}; without a cache "
        f"{quantity(none)}.",
        drawing=plot.svg(),
        note=f"Of {so_many(values['rows'], 'row')}; memory of {number(values['memory_mib'])} MiB "
        "for cache and batch together, so that a larger cache leaves a smaller batch.",
        columns=["rows cached", "hits", "batch", "bytes a sample"],
        rows=[
            [
                f"{one['cached']:,}",
                share(one["hits"]),
                f"{one['batch_size']:,.0f}",
                quantity(one["bytes_per_sample"]),
            ]
            for one in values["by_cache"]
        ],
    )


def _bytes_by_batch(values: Mapping[str, Any]) -> Figure:
    """SCARS's curves of the bytes of a sample by the batch size, with a cache and without."""
    best, sizes = values["optimum"], values["by_batch"]
    plot = Plot(
        x=Scale.over((one["batch_size"] for one in sizes), log=True),
        y=Scale(low=0, high=1.15 * values["plain"], unit="B"),
        left=56,
        right=70,
        x_words="batch size",
    )
    plot.level(values["plain"], f"plain: {quantity(values['plain'])}")
    plot.line([(one["batch_size"], one["no_cache"]) for one in sizes], "slate", end="coalesced")
    plot.line([(one["batch_size"], one["cached"]) for one in sizes], "orange", end="and cached")
    plot.dot(best["batch_size"], best["bytes_per_sample"], "orange", size=5.5)
    return Figure(
        title="SCARS: bytes of a sample by the batch",
        says=f"Bytes of a sample against the batch: plain {quantity(values['plain'])}, coalesced "
        f"fewer, and fewest with a cache, at {best['batch_size']:,.0f} samples.",
        drawing=plot.svg(),
        columns=["batch", "coalesced", "and cached"],
        rows=[
            [f"{one['batch_size']:,.0f}", quantity(one["no_cache"]), quantity(one["cached"])]
            for one in sizes
        ],
    )

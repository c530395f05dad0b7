"""Draws forecast beside fact for runs that have ended, and the forecasts of advice."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from recd_plugins.report.drawing import LETTER, NARROW, Bar, Figure, bars, escaped, number, quantity
from recd_plugins.report.sources import Printed, Sources
from recd_plugins.trainer.measure.beside import Beside, why_parted

__all__ = ["figures"]

ROW = 40
"""The height of a forecast, in pixels."""
REACH = 2.0
"""The scale goes from the forecast divided by this to the forecast times this; a fact beyond is
drawn at its end."""
FAMILIES = {
    "fixed": ("Python and optimizer", "pale"),
    "dense": ("dense layers", "slate"),
    "pooling": ("pooling", "purple"),
    "expansion": ("expansion", "orange"),
    "conversion": ("reading", "ochre"),
    "reading": ("reading", "ochre"),
    "lookups": ("lookups", "blue"),
    "a2a_global": ("all-to-alls", "sky"),
    "a2a_intra": ("all-to-alls", "sky"),
    "a2a_cross": ("all-to-alls", "sky"),
    "ar_global": ("all-reduces", "green"),
    "ar_cross": ("all-reduces", "green"),
    "dense_reduce": ("all-reduces", "green"),
}
"""The parts of a forecast step, and the words and the ink of each, which several may share."""


def figures(sources: Sources) -> Iterator[Figure]:
    for run in sources.runs:
        found = [Beside.of(one) for one in run.summary.get("forecasts") or ()]
        if found:
            yield _beside(found, f": {run.name}" if len(sources.runs) > 1 else "")
    for printed in sources.of("advice"):
        yield _way(printed)
        yield _before_and_after(printed)


def _beside(found: Sequence[Beside], of: str) -> Figure:
    """A row for each forecast, with the fact as a multiple of it; the bar is its interval."""
    marks, y = [], 6.0
    for one in found:
        what, forecast, fact = one.words
        marks.append(f'<text x="0" y="{y + 11:g}" class="word">{escaped(_short(what))}</text>')
        if LETTER * len(f"{_short(what)} {forecast} → {fact}") > NARROW:
            y += 15
        marks.append(
            f'<text x="100%" y="{y + 11:g}" text-anchor="end" class="word name">'
            f"{escaped(f'{forecast} → {fact}')}</text>"
            f'<line x1="0" x2="100%" y1="{y + 24:g}" y2="{y + 24:g}" class="grid"/>'
        )
        if one.forecast:
            low, high = one.interval or (one.forecast, one.forecast)
            first, last = _place(low / one.forecast), _place(high / one.forecast)
            at = _place(one.fact / one.forecast)
            ink = "orange" if one.parted else "blue"
            marks.append(
                f'<rect x="{first:.2f}%" width="{max(last - first, 0.4):.2f}%" y="{y + 19:g}" '
                f'height="10" rx="3" style="fill:var(--pale)"/><circle cx="{at:.2f}%" '
                f'cy="{y + 24:g}" r="5" class="dot" style="fill:var(--{ink})"/>'
            )
        y += ROW
    ticks = "".join(
        f'<line x1="{_place(times):.2f}%" x2="{_place(times):.2f}%" y1="0" y2="{y:g}" '
        f'class="{"level" if times == 1 else "grid"}"/><text x="{_place(times):.2f}%" '
        f'y="{y + 14:g}" text-anchor="{anchor}">{words}</text>'
        for times, words, anchor in (
            (1 / REACH, "half", "start"),
            (1, "as forecast", "middle"),
            (REACH, "twice", "end"),
        )
    )
    return Figure(
        title=f"Forecast → fact{of}",
        says="; ".join("{}: forecast {}, fact {}".format(*one.words) for one in found) + ".",
        drawing=f'<svg class="plot" height="{y + 20:g}">{ticks}{"".join(marks)}</svg>',
        legend=[("fact", "blue"), ("fact, parted", "orange"), ("interval of the forecast", "pale")],
        note=" ".join(f"{line}." for line in why_parted(found)),
        wide=True,
        columns=["what", "forecast", "fact"],
        rows=[list(one.words) for one in found],
    )


def _place(times: float) -> float:
    """The place of a multiple of the forecast, in percent."""
    return 50 + 50 * max(-1.0, min(1.0, math.log(max(times, 1e-9)) / math.log(REACH)))


def _short(what: str) -> str:
    """The text without parentheses and without what follows a comma; the table has the whole
    text."""
    return what.partition(" (")[0].partition(", ")[0]


def _way(printed: Printed) -> Figure:
    """A bar for the step of each registry on the way to the advised one."""
    values = printed.values
    baseline, advised = values["baseline"], values["advised"]
    way = [("TorchRec's own best plan", "", baseline)]
    way += [(one["name"], one["verdict"], one["outlook"]) for one in values["additions"]]
    way += [("advised", "", advised)]
    known = [(name, verdict, one) for name, verdict, one in way if one is not None]
    inks = {"kept": "blue", "": "slate"}
    return Figure(
        title=f"Advice: expected ms of a step, addition by addition ({printed.name})",
        says="; ".join(f"{name} {verdict} {number(one['ms'])} ms" for name, verdict, one in known)
        + ".",
        drawing=bars(
            [
                Bar(
                    name=f"{'+ ' if verdict else ''}{name}{f', {verdict}' if verdict else ''}",
                    parts=[("", one["ms"], "orange" if name == "advised" else
                            inks.get(verdict, "pale"))],
                    total=f"{number(one['ms'])} ms",
                )
                for name, verdict, one in known
            ],
            words="ms",
        ),
        legend=[("kept", "blue"), ("not kept", "pale"), ("advised", "orange")],
        note=" ".join(
            f"{one['name']}: {one['why']}." for one in values["additions"] if one["why"]
        ),
        wide=True,
        columns=["registry", "verdict", "ms", "samples/s", "between nodes", "memory a rank"],
        rows=[
            [
                name,
                verdict,
                number(one["ms"]),
                number(one["samples_per_second"]),
                quantity(one["between_nodes"]),
                quantity(one["memory"]),
            ]
            for name, verdict, one in known
        ],
    )  # fmt: skip


def _before_and_after(printed: Printed) -> Figure:
    """The parts of the baseline's step, and of the advised registry's step."""
    sides = {
        "TorchRec's own best plan": printed.values["baseline"],
        "advised": printed.values["advised"],
    }
    parts = list(dict.fromkeys(part for one in sides.values() for part in one["ms_by_part"]))
    hidden = {name: sum(one["ms_hidden"].values()) for name, one in sides.items()}
    return Figure(
        title=f"The step before and after, forecast by part ({printed.name})",
        says="; ".join(
            f"{name}: "
            + ", ".join(f"{words} {number(ms)}" for (words, _), ms in _families(one).items())
            for name, one in sides.items()
        )
        + " ms.",
        drawing=bars(
            [
                Bar(
                    name=name,
                    parts=[
                        (f"{words} {number(ms)}", ms, ink)
                        for (words, ink), ms in _families(one).items()
                    ],
                    total=f"{number(one['ms'])} ms",
                )
                for name, one in sides.items()
            ],
            words="ms",
        ),
        legend=list(dict.fromkeys(family for one in sides.values() for family in _families(one))),
        note="Bars are the sum of all parts; of them "
        + ", ".join(f"{number(ms)} ms are hidden in {name}" for name, ms in hidden.items())
        + ".",
        wide=True,
        columns=["part", *sides],
        rows=[
            *(
                [part, *(number(one["ms_by_part"].get(part)) for one in sides.values())]
                for part in parts
            ),
            ["hidden", *(number(ms) for ms in hidden.values())],
        ],
    )


def _families(outlook: Mapping[str, Any]) -> dict[tuple[str, str], float]:
    """The milliseconds of a step by (words, ink) of its parts."""
    found: dict[tuple[str, str], float] = {}
    for part, ms in outlook["ms_by_part"].items():
        family = FAMILIES.get(part, (part, "pale"))
        if ms > 0:
            found[family] = found.get(family, 0.0) + ms
    return found

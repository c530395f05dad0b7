"""Draws the SVG figures of the page, which fill the width of their place on any screen, and says
how numbers are written in it.

Along x all is in percent of the width, and along y in pixels, so that text keeps its size on a
phone. Lines are in a view box of 100 by the height, which is stretched without their strokes.
Colours are names of CSS variables, which the page has for light and for dark.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

__all__ = [
    "DASH",
    "INKS",
    "LETTER",
    "NARROW",
    "TIMES",
    "Bar",
    "Figure",
    "Plot",
    "Scale",
    "bars",
    "escaped",
    "number",
    "quantity",
    "share",
    "words_within",
]

DASH = "\N{EN DASH}"
"""The dash for unknown values, and between the ends of a range."""
TIMES = "\N{MULTIPLICATION SIGN}"
LINE = 13.0
"""Pixels from one line of small text to the next."""
LETTER = 6.6
"""Pixels of a letter of small text: a little more than the average."""
NARROW, WIDE = 270.0, 640.0
"""The least width in pixels of a plot on a phone, and of a wide one on a desk: it decides which
words fit."""
SPAN = 0.02
"""The least span of an axis, as a share of its largest value."""
INKS = ("blue", "orange", "green", "purple", "ochre", "sky", "slate", "pale")
"""The names of the palette, in the order in which they are used."""


def escaped(text: object) -> str:
    return html.escape(str(text))


def number(value: float | None, digits: int = 3) -> str:
    """A number with `digits` significant digits, and commas: 1,234 or 0.0123."""
    if value is None or not math.isfinite(value):
        return DASH
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{value:,.0f}"
    after = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{after}f}"


def quantity(value: float | None, unit: str = "B", digits: int = 3) -> str:
    """A number of bytes or other things, with a prefix for its magnitude: 1.23 MB, 45.6 k."""
    if value is None:
        return DASH
    for size, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{number(value / size, digits)} {prefix}{unit}".rstrip()
    return f"{number(value, digits)} {unit}".rstrip()


def share(value: float | None) -> str:
    return DASH if value is None else f"{100 * value:.3g}%"


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A figure in its frame: a title, a sentence on what it shows, the drawing and its numbers."""

    title: str
    says: str
    """A sentence on what it shows: the text alternative."""
    drawing: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    """The rows of the table of numbers, each with a text per column."""
    legend: Sequence[tuple[str, str]] = ()
    """The (words, ink) of each entry."""
    note: str = ""
    wide: bool = False
    """Whether it takes the page's whole width."""

    def html(self, at: str) -> str:
        """The HTML of the figure; `at` is its id on the page."""
        legend = "".join(
            f'<li><i style="background:var(--{ink})"></i>{escaped(words)}</li>'
            for words, ink in self.legend
        )
        note = f"<p>{escaped(self.note)}</p>" if self.note else ""
        return (
            f'<figure id="{at}"{" class=wide" if self.wide else ""}>'
            f"<figcaption>{escaped(self.title)}</figcaption>"
            + (f'<ul class="legend">{legend}</ul>' if legend else "")
            + f'<div role="img" aria-label="{escaped(self.says)}">{self.drawing}</div>'
            + note
            + table(self.columns, self.rows, f"{at}-numbers")
            + "</figure>"
        )


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], at: str) -> str:
    head = "".join(f"<th scope=col>{escaped(one)}</th>" for one in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{escaped(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return (
        f'<details id="{at}"><summary>Numbers</summary><div class="scroll"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div></details>"
    )


@dataclass(frozen=True, kw_only=True)
class Scale:
    """An axis from `low` to `high`; it is logarithmic if `log`."""

    low: float
    high: float
    log: bool = False
    unit: str = ""
    """`%` shows shares of 1 as percentages; `B` shows bytes."""

    @classmethod
    def over(
        cls,
        values: Iterable[float],
        *,
        zero: bool = False,
        log: bool = False,
        unit: str = "",
    ) -> Scale:
        """The scale of all values with some room. It spans at least `SPAN` of the largest value, so
        that tiny differences do not look large."""
        found = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
        low, high = min(found), max(found)
        if log:
            return cls(low=low, high=max(high, low * 1.0001), log=True, unit=unit)
        if zero:
            low, high = min(low, 0.0), high if high > 0 else 1.0
            return cls(low=low, high=high + 0.08 * (high - low), unit=unit)
        span = max(high - low, SPAN * max(abs(high), abs(low)), 1e-12)
        middle = (low + high) / 2
        return cls(low=middle - 0.55 * span, high=middle + 0.55 * span, unit=unit)

    def at(self, value: float) -> float:
        """The place of a value, from 0 to 1."""
        if self.log:
            low, high = math.log(self.low), math.log(self.high)
            return (math.log(max(value, self.low)) - low) / (high - low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self, most: int = 4) -> list[tuple[float, str]]:
        """Round values, each as (value, words)."""
        values = self._powers(most) if self.log else self._steps(most)
        return [(value, self.words(value)) for value in values]

    def words(self, value: float) -> str:
        if self.unit == "%":
            return share(round(value, 10))
        if not self.unit and abs(value) < 100_000:
            return f"{value:,.10g}"
        words, _, unit = quantity(value, self.unit, 5).partition(" ")
        return f"{words.rstrip('0').rstrip('.') if '.' in words else words} {unit}".rstrip()

    def _powers(self, most: int) -> list[float]:
        first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high))
        every = max(1, math.ceil((last - first + 1) / most))
        return [10.0**power for power in range(first, last + 1, every)] or [self.low, self.high]

    def _steps(self, most: int) -> list[float]:
        rough = (self.high - self.low) / most
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(power * by for by in (1, 2, 2.5, 5, 10) if power * by >= rough * 0.999)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [float(f"{step * n:.10g}") + 0.0 for n in range(first, last + 1)]  # no -0


@dataclass(kw_only=True)
class Plot:
    """Axes to draw on, `height` pixels high."""

    x: Scale
    y: Scale
    height: float = 190
    left: float = 46
    right: float = 50
    """Pixels to the right of the axes for words; `left` is the same to their left."""
    x_words: str = ""
    _marks: list[str] = field(default_factory=list)
    _ends: list[tuple[float, float, str, str]] = field(default_factory=list)
    """The ends of lines: (x in percent, y, words, ink)."""

    def line(
        self,
        points: Sequence[tuple[float, float]],
        ink: str,
        *,
        dashed: bool = False,
        end: str = "",
        dots: bool = False,
    ) -> None:
        """Draw a line through points, with words at its `end`; with `dots`, or for a single point,
        draw the points too."""
        placed = [(100 * self.x.at(x), self._y(y)) for x, y in points]
        if len(placed) > 1:
            path = " ".join(f"{x:.2f},{y:.1f}" for x, y in placed)
            dashes = " stroke-dasharray='5 4'" if dashed else ""
            self._marks.append(
                f'<svg viewBox="0 0 100 {self.height:g}" preserveAspectRatio="none" width="100%" '
                f'height="{self.height:g}" overflow="visible"><polyline points="{path}" '
                f'class="line" style="stroke:var(--{ink})"{dashes}/></svg>'
            )
        if dots or len(placed) < 2:
            for x, y in points:
                self.dot(x, y, ink)
        if end and placed:
            self._ends.append((*placed[-1], end, ink))

    def dot(self, x: float, y: float, ink: str, *, size: float = 3.5) -> None:
        self._marks.append(
            f'<circle cx="{100 * self.x.at(x):.2f}%" cy="{self._y(y):.1f}" r="{size:g}" '
            f'class="dot" style="fill:var(--{ink})"/>'
        )

    def word(self, x: float, y: float, words: str, *, below: bool) -> None:
        """Write words beside a point, on the side that has room, and above it, or `below` it if
        there is room."""
        at = 100 * self.x.at(x)
        anchor, dx = ("end", -8) if at > 55 else ("start", 8)
        dy = 15 if below and self._y(y) < self.height - 2 * LINE else -7
        self._marks.append(
            f'<text x="{at:.2f}%" y="{self._y(y):.1f}" dx="{dx}" dy="{dy}" text-anchor="{anchor}" '
            f'class="word" style="fill:var(--text)">{escaped(words)}</text>'
        )

    def level(self, y: float, words: str) -> None:
        """Draw a dashed line across, with words above its start."""
        at = self._y(y)
        self._marks.append(
            f'<line x1="0" x2="100%" y1="{at:.1f}" y2="{at:.1f}" class="level" '
            f'style="stroke:var(--soft)"/><text x="4" y="{at - 5:.1f}" class="word" '
            f'style="fill:var(--soft)">{escaped(words)}</text>'
        )

    def column(self, start: float, end: float, top: float, ink: str, words: str = "") -> None:
        """Draw a bar of a histogram, from `start` to `end`, which are places along x from 0 to
        1."""
        at = self._y(top)
        self._marks.append(
            f'<rect x="{100 * start:.2f}%" width="{100 * (end - start):.2f}%" y="{at:.1f}" '
            f'height="{max(self.height - at, 0.0):.1f}" rx="1.5" style="fill:var(--{ink})"/>'
        )
        if words:
            self._marks.append(
                f'<text x="{50 * (start + end):.2f}%" y="{at - 4:.1f}" text-anchor="middle" '
                f'class="word">{escaped(words)}</text>'
            )

    def svg(self, x_ticks: Sequence[tuple[float, str]] | None = None) -> str:
        """The drawing; `x_ticks`, each (place from 0 to 1, words), replace those of the scale."""
        parts = []
        for value, words in self.y.ticks():
            at = self._y(value)
            if -1 <= at <= self.height + 1:
                parts.append(
                    f'<line x1="0" x2="100%" y1="{at:.1f}" y2="{at:.1f}" class="grid"/>'
                    f'<text x="-7" y="{at + 4:.1f}" text-anchor="end">{escaped(words)}</text>'
                )
        if x_ticks is None:
            x_ticks = [(self.x.at(value), words) for value, words in self.x.ticks()]
        for place, words in x_ticks:
            parts.append(
                f'<text x="{100 * place:.2f}%" y="{self.height + 17:g}" '
                f'text-anchor="middle">{escaped(words)}</text>'
            )
        below = 22.0
        if self.x_words:
            below += 15
            parts.append(
                f'<text x="100%" y="{self.height + 33:g}" text-anchor="end" class="axis">'
                f"{escaped(self.x_words)}</text>"
            )
        width = f"calc(100% - {self.left + self.right:g}px)"
        return (
            f'<svg class="plot" height="{self.height + below:g}" style="width:{width};margin:'
            f'18px {self.right:g}px 0 {self.left:g}px">{"".join(parts)}'
            f'<line x1="0" x2="100%" y1="{self.height:g}" y2="{self.height:g}" class="base"/>'
            f"{''.join(self._marks)}{''.join(self._named())}</svg>"
        )

    def _y(self, value: float) -> float:
        return self.height * (1 - self.y.at(value))

    def _named(self) -> list[str]:
        """The words of the ends, placed so that none overlap."""
        ends = sorted(self._ends, key=lambda one: one[1])
        places = apart([y for _, y, _, _ in ends], LINE, self.height - 3)
        return [
            f'<text x="{x:.2f}%" y="{place + 4:.1f}" dx="7" class="word" '
            f'style="fill:var(--{ink})">{escaped(words)}</text>'
            for (x, _, words, ink), place in zip(ends, places, strict=True)
        ]


def apart(wanted: Sequence[float], least: float, most: float) -> list[float]:
    """Places near those `wanted`, which are ascending, that are at least `least` apart and not
    beyond `most`."""
    found: list[float] = []
    for place in wanted:
        found.append(max(place, found[-1] + least) if found else place)
    for index in range(len(found) - 1, -1, -1):
        top = most if index == len(found) - 1 else found[index + 1] - least
        found[index] = min(found[index], top)
    return found


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A bar that consists of parts, one after the other."""

    name: str
    parts: Sequence[tuple[str, float, str]]
    """The (words, size, ink) of each part."""
    total: str
    """The words above its right end."""


def bars(every: Sequence[Bar], *, unit: str = "", most: float = 0.0, words: str = "") -> str:
    """Bars below each other on one scale, each with its name above it. Parts have names if there is
    room. The scale ends at `most` or beyond."""
    whole = max([most, 1e-12, *(sum(part for _, part, _ in bar.parts) for bar in every)])
    scale = Scale(low=0.0, high=whole, unit=unit)
    y, marks = 0.0, []
    for bar in every:
        if bar.name or bar.total:
            marks.append(f'<text x="0" y="{y + 11:g}" class="word name">{escaped(bar.name)}</text>')
            if LETTER * (len(bar.name) + len(bar.total) + 2) > NARROW:
                y += 15
            marks.append(
                f'<text x="100%" y="{y + 11:g}" text-anchor="end" class="word">'
                f"{escaped(bar.total)}</text>"
            )
            y += 17
        left = 0.0
        for what, part, ink in bar.parts:
            start, width = left / whole, part / whole
            left += part
            marks.append(
                f'<rect x="{100 * start:.3f}%" y="{y:g}" width="{100 * width:.3f}%" height="20" '
                f'class="part" style="fill:var(--{ink})"/>'
            )
            marks += words_within(what, start + width / 2, width, y + 14, ink)
        y += 20 + (14 if bar is not every[-1] else 0)
    ticks = "".join(
        f'<text x="{100 * scale.at(value):.2f}%" y="{y + 17:g}" '
        f'text-anchor="{"start" if not value else "middle"}">{escaped(text)}</text>'
        for value, text in scale.ticks()
        if scale.at(value) < 0.9
    )
    below = 17 if len(words) <= 4 else 32  # beside the ticks, or on a separate line
    end = f'<text x="100%" y="{y + below:g}" text-anchor="end" class="axis">{escaped(words)}</text>'
    return f'<svg class="plot" height="{y + below + 7:g}">{"".join(marks)}{ticks}{end}</svg>'


def words_within(words: str, middle: float, width: float, y: float, ink: str) -> list[str]:
    """Words inside a part whose `width` is a share of the whole: they are shown on every screen,
    only on wide screens, or not at all."""
    needs = LETTER * len(words) + 10
    kind = "" if needs <= width * NARROW else " desk" if needs <= width * WIDE else None
    if kind is None or not words:
        return []
    return [
        f'<text x="{100 * middle:.2f}%" y="{y:g}" text-anchor="middle" class="on{kind}" '
        f'style="fill:var(--on-{ink})">{escaped(words)}</text>'
    ]

"""RESULTS.md and the tables of README and docs/limits.md, drawn from the results that are kept."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.kept import KeptFigure, KeptResult, histories, kept_results, noise
from benchmarks.suites import SUITES, Suite

__all__ = ["HEADLINES", "LIMITS", "Headline", "draw", "headline_rows", "limit_rows", "results_page"]

ROOT = Path(__file__).parents[1]
PAGE, README, LIMITS = ROOT / "RESULTS.md", ROOT / "README.md", ROOT / "docs" / "limits.md"
ABOUT = """\
`python -m benchmarks` draws this page from the files of [benchmarks/results](benchmarks/results).
They have every figure with its conditions: machine, versions, load, seed, commit. Both sides of a
figure are measured in one run; a figure is the median of its rounds, its spread their interquartile
range. `python -m benchmarks.compare COMMIT COMMIT` says what got slower beyond noise. A limit is
the bound of a figure by the work that nobody can leave out, and the share is what is reached of it:
[docs/limits.md](docs/limits.md) says what each limit is made of."""
BEGIN, END = "<!-- results -->", "<!-- end of results -->"


@dataclass(frozen=True, kw_only=True)
class Headline:
    """A row of README."""

    what: str
    """In a reader's words."""
    suite: str
    figure: str
    """Its name among the suite's figures, or how that begins."""


HEADLINES = (
    Headline(
        what="RM1 at a sixth of its sizes on two ranks, plain TorchRec",
        suite="demo",
        figure="RM1, plain: samples/s",
    ),
    Headline(what="the same, with RecD", suite="demo", figure="RM1, RecD: samples/s"),
    Headline(
        what="RM1 on two nodes, all papers together: a step, against plain TorchRec",
        suite="combined",
        figure="all together, against plain TorchRec",
    ),
    Headline(
        what="RecD: a step of RM1, S = 16.5, against plain KJTs",
        suite="recd_train",
        figure="RM1-like step, S = 16.5",
    ),
    Headline(
        what="RecD: files clustered by session, against files in the order of time",
        suite="recd_data",
        figure="clustered vs time-ordered file size",
    ),
    Headline(
        what="FlexShard: saturated hot rows, a step, against rows coalesced per rank",
        suite="flexshard",
        figure="saturated hot rows, step against row-wise coalesced per rank",
    ),
    Headline(
        what="SCARS: a step with coalescing, against plain row-wise",
        suite="scars",
        figure="step with coalescing, Zipf 1.05, sequences",
    ),
    Headline(
        what="Forecasts: a cache's coverage, against what it then served; the worst",
        suite="honesty --only coverage",
        figure="coverage, forecast against served, stationary: worst",
    ),
    Headline(
        what="DSI: popular columns first and reads coalesced: I/Os",
        suite="dsi",
        figure="reordered and coalesced, I/Os",
    ),
    Headline(
        what="The local reader's rows/s, of pyarrow's on the same row groups",
        suite="reader",
        figure="reader, share of pyarrow's rows/s",
    ),
)
"""Ten rows: RESULTS.md has the others."""


def draw() -> None:
    """Write all pages anew."""
    results = kept_results()
    PAGE.write_text(results_page(results))
    block = re.compile(f"(?<={re.escape(BEGIN)}\n).*?(?={re.escape(END)})", re.DOTALL)
    for page, rows in ((README, headline_rows(results)), (LIMITS, limit_rows(results))):
        table = "\n".join(rows)
        page.write_text(block.sub(lambda _, table=table: f"{table}\n", page.read_text()))


def headline_rows(results: Sequence[KeptResult]) -> Iterator[str]:
    """README's table: the newest full run of each, else the newest quick one, of those kept."""
    yield "| what | measured | target | command |"
    yield "|---|---|---|---|"
    for one in HEADLINES:
        figure = _newest(results, one)
        if figure is None:
            continue
        command = f"`python -m benchmarks.{one.suite}{' --quick' * figure.of.quick}`"
        missed = ", **missed**" if figure.met is False else ""
        yield f"| {one.what} | {figure.shown} | {figure.target}{missed} | {command} |"


def _newest(results: Sequence[KeptResult], headline: Headline) -> KeptFigure | None:
    of_suite = [one for one in results if one.suite == headline.suite]
    for quick in (False, True):
        for history in histories(of_suite, quick):
            if history[-1].name.startswith(headline.figure):
                return history[-1]
    return None


def limit_rows(results: Sequence[KeptResult]) -> Iterator[str]:
    """The table of docs/limits.md: every figure with a limit, of the newest run that has it."""
    yield "| figure | value | limit | share | what the limit is made of | run |"
    yield "|---|---|---|---|---|---|"
    newest: dict[str, KeptFigure] = {}
    for result in reversed(results):
        for values in result.figures:
            if values.get("limit"):
                newest.setdefault(values["name"], KeptFigure(values=values, of=result))
    order = {suite.name: place for place, suite in enumerate(SUITES)}
    for one in sorted(newest.values(), key=lambda each: order.get(each.of.suite, len(order))):
        assert one.limit is not None
        load = one.of.conditions["machine"]["load_average_before"]
        run = f"{one.of.suite}{', quick' * one.of.quick}, {one.of.date}, load {load}"
        made_of = _cell(one.limit["of"])
        cells = (_cell(one.name), one.shown, one.shown_limit, one.share, made_of, run)
        yield f"| {' | '.join(cells)} |"


def results_page(results: Sequence[KeptResult]) -> str:
    return "\n".join(_page(results)) + "\n"


def _page(results: Sequence[KeptResult]) -> Iterator[str]:
    latest = [
        history[-1]
        for suite in SUITES
        for quick in (False, True)
        for history in histories([one for one in results if one.suite == suite.name], quick)
    ]
    met = [one.met for one in latest if one.met is not None]
    yield "# Results"
    yield ""
    yield ABOUT
    yield ""
    yield f"Of {len(met)} figures with a target, {sum(met)} meet it."
    for suite in SUITES:
        of_suite = [one for one in results if one.suite == suite.name]
        for quick in (False, True):
            if runs := [one for one in of_suite if one.quick == quick]:
                yield from _section(suite, runs[-1], list(histories(of_suite, quick)), quick)


def _section(
    suite: Suite, run: KeptResult, figures: Sequence[Sequence[KeptFigure]], quick: bool
) -> Iterator[str]:
    machine = run.conditions["machine"]
    versions = run.conditions["versions"]
    packages = ", ".join(f"{name} {versions[name]}" for name in ("torch", "torchrec"))
    yield ""
    yield f"## {suite.name}{', quick' * quick}"
    yield ""
    yield suite.about
    yield ""
    yield (
        f"`python -m benchmarks.{suite.name}{' --quick' * quick}`, {run.date}, "
        f"commit {run.commit}: {machine['cpu']}, {machine['cores']} cores, "
        f"load {machine['load_average_before']} before it; {packages}."
    )
    yield ""
    yield "| figure | value | limit | share | target | | spread | trend |"
    yield "|---|---|---|---|---|---|---|---|"
    for history in figures:
        yield _row(history, run)


def _row(history: Sequence[KeptFigure], run: KeptResult) -> str:
    one = history[-1]
    met = {None: "", True: "met", False: "**missed**"}[one.met]
    spread = one.values["spread"]
    trend = "" if len(history) == 1 else _trend(history[-2], one)
    if one.of is not run:
        trend = f"of {one.of.date}, {one.of.commit} {trend}".strip()
    cells = (
        _cell(one.name),
        one.shown,
        one.shown_limit,
        one.share,
        one.target,
        met,
        "" if spread is None else f"{spread:.0%}",
        trend,
    )
    return f"| {' | '.join(cells)} |"


def _trend(before: KeptFigure, after: KeptFigure) -> str:
    if not before.value:
        return ""
    moved = after.value / before.value - 1
    if abs(moved) <= noise(before, after):
        return "as before"
    return f"{moved:+.0%} since {before.of.commit}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")

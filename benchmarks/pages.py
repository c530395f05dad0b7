"""RESULTS.md and the tables in README and docs/, written from the kept results."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from benchmarks.kept import KeptFigure, KeptResult, histories, kept_results, noise
from benchmarks.shown import END, HEADLINES, TABLES, SuiteTable
from benchmarks.suites import SUITES, Suite

__all__ = [
    "LIMITS",
    "draw",
    "headline_rows",
    "limit_rows",
    "results_page",
    "table_rows",
]

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGE, README, LIMITS = ROOT / "RESULTS.md", ROOT / "README.md", DOCS / "limits.md"
ABOUT = """\
`python -m benchmarks` draws this page from the files of [benchmarks/results](benchmarks/results).
They have every figure with its conditions: machine, versions, load, seed, commit. Both sides of a
figure are measured in one run; a figure is the median of its rounds, its spread their interquartile
range. `python -m benchmarks.compare COMMIT COMMIT` says what got slower beyond noise. A limit is
the bound of a figure by the work that nobody can leave out, and the share is what is reached of it:
[docs/limits.md](docs/limits.md) says what each limit is made of. A trend is that of one kind of
machine; `elsewhere` has the newest value of each other kind."""
MET = {None: "", True: "met", False: "**missed**"}
BEGIN = "<!-- results -->"


def draw() -> None:
    """Write all pages anew."""
    results = kept_results()
    PAGE.write_text(results_page(results))
    _put(README, BEGIN, headline_rows(results))
    _put(LIMITS, BEGIN, limit_rows(results))
    for table in TABLES:
        _put(DOCS / table.page, table.mark, table_rows(results, table))


def _put(page: Path, mark: str, rows: Iterable[str]) -> None:
    block = re.compile(f"(?<={re.escape(mark)}\n).*?(?={re.escape(END)})", re.DOTALL)
    table = "".join(f"{row}\n" for row in rows)
    page.write_text(block.sub(lambda _: table, page.read_text(), count=1))


def table_rows(results: Sequence[KeptResult], table: SuiteTable) -> Iterator[str]:
    """The newest full run of each figure, or else the newest quick one; no row if the suite was
    never run."""
    found = [_newest(results, table.suite, name) for name in table.figures]
    if not any(found):
        return
    yield "| figure | measured | target | | run |"
    yield "|---|---|---|---|---|"
    for figure in found:
        if figure is not None:
            run = f"{'quick, ' * figure.of.quick}{figure.of.date}, {figure.of.processor}"
            cells = (_cell(figure.name), figure.shown, figure.target, MET[figure.met], run)
            yield f"| {' | '.join(cells)} |"


def headline_rows(results: Sequence[KeptResult]) -> Iterator[str]:
    """README's table: of each figure the newest full run that is kept, or else the newest quick
    one."""
    yield "| what | measured | target | command |"
    yield "|---|---|---|---|"
    for one in HEADLINES:
        figure = _newest(results, one.suite, one.figure)
        if figure is None:
            continue
        command = f"`python -m benchmarks.{one.suite}{' --quick' * figure.of.quick}`"
        missed = ", **missed**" if figure.met is False else ""
        yield f"| {one.what} | {figure.shown} | {figure.target}{missed} | {command} |"


def _newest(results: Sequence[KeptResult], suite: str, name: str) -> KeptFigure | None:
    """The figure of this name, or the first whose name begins like this; None if there is none."""
    of_suite = [one for one in results if one.suite == suite]
    for quick in (False, True):
        found = [history[-1] for history in histories(of_suite, quick)]
        for one in sorted(found, key=lambda each: each.name != name):
            if one.name.startswith(name):
                return one
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
        run = f"{one.of.suite}{', quick' * one.of.quick}, {one.of.date}, {one.of.processor}, "
        run += f"load {load}"
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
        f"commit {run.commit}: {run.processor}, load {machine['load_average_before']} before it; "
        f"{packages}."
    )
    yield ""
    elsewhere = any(one.of.processor != run.processor for history in figures for one in history)
    head = "| figure | value | limit | share | target | | spread | trend |"
    yield head + " elsewhere |" * elsewhere
    yield "|---|---|---|---|---|---|---|---|" + "---|" * elsewhere
    for history in figures:
        yield f"{_row(history, run)}{f' {_elsewhere(history)} |' * elsewhere}"


def _elsewhere(history: Sequence[KeptFigure]) -> str:
    """The figure's newest value on each other kind of machine."""
    newest = {one.of.processor: one for one in history}
    own = newest.pop(history[-1].of.processor)
    return "; ".join(
        f"{one.shown}{'' if one.met == own.met else ' (met)' if one.met else ' (missed)'}, {where}"
        for where, one in newest.items()
    )


def _row(history: Sequence[KeptFigure], run: KeptResult) -> str:
    one = history[-1]
    spread = one.values["spread"]
    before = [each for each in history[:-1] if each.of.processor == one.of.processor]
    trend = _trend(before[-1], one) if before else ""
    if one.of is not run:
        trend = f"of {one.of.date}, {one.of.commit} {trend}".strip()
    cells = (
        _cell(one.name),
        one.shown,
        one.shown_limit,
        one.share,
        one.target,
        MET[one.met],
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

"""The page: what runs and commands found, first at one glance, then figure by figure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.resources import files
from statistics import median

from recd_plugins.errors import DataError, RecdError, is_of_the_system, shown, so_many
from recd_plugins.report import (
    forecasts,
    hot_rows,
    learning,
    memory,
    provenance,
    reading,
    repeats,
    steps,
    traffic,
)
from recd_plugins.report.drawing import TIMES, Figure, escaped, number
from recd_plugins.report.sources import Sources
from recd_plugins.trainer.measure.run_log import RunLog
from recd_plugins.trainer.measure.runs_compared import COLUMNS, RATES, row, spread

__all__ = ["SECTIONS", "body", "framed", "naming_source", "page"]

Figures = Callable[[Sources], Iterator[Figure]]

SECTIONS: tuple[tuple[str, str, Figures], ...] = (
    ("learned", "Loss and metrics", learning.figures),
    ("step", "A step's time", steps.figures),
    ("forecast", "Forecasts, and what came", forecasts.figures),
    ("traffic", "Bytes that ranks exchange", traffic.figures),
    ("repeats", "Repeated samples", repeats.figures),
    ("hot", "Hot rows", hot_rows.figures),
    ("reading", "Reading", reading.figures),
    ("memory", "Memory", memory.figures),
)
"""The id and the heading of each section, and the function that draws it, in the order of the
page."""
GLANCE = (
    *("samples_per_second", "step_ms", "test_auc", "test_ne", "dedupe_factor"),
    *("collectives_mib", "peak_memory_mib"),
)
"""The columns that are shown large for a single run."""


SAME = 5e-4
"""A number that differs from the first run's by less than this share counts as the same."""


def page(sources: Sources) -> str:
    """The whole page; the same sources give the same page."""
    return framed(sources.title, body(sources), script="")


def framed(title: str, inside: str, script: str) -> str:
    """A page that needs no other files."""
    style = files("recd_plugins.report").joinpath("page.css").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="icon" href="data:,">'
        f"<title>{escaped(title)}</title><style>{style}</style></head>\n"
        f"<body><main>{inside}</main>{script}</body></html>\n"
    )


def body(sources: Sources) -> str:
    with naming_source(sources):
        return _body(sources)


@contextmanager
def naming_source(sources: Sources) -> Iterator[None]:
    """Inside, an error from the content of a source becomes a `DataError` that names the source:
    another version may have written it."""
    try:
        yield
    except RecdError:
        raise
    except Exception as error:
        if is_of_the_system(error):
            raise
        raise DataError(
            f"{_undrawable(sources)}: holds what cannot be drawn ({type(error).__name__}: "
            f"{shown(str(error))}), so another version wrote it, or somebody changed it. Leave it "
            "out, or write it again with this version; --debug shows where it is."
        ) from error


def _undrawable(sources: Sources) -> str:
    """The name of the first source that cannot be drawn by itself; the names of all if each can
    be."""
    alone = [
        *(Sources(runs=[run]) for run in sources.runs),
        *(Sources(printed=[printed]) for printed in sources.printed),
    ]
    for one in alone:
        try:
            _body(one)
        except Exception:
            return one.title
    return sources.title


def _body(sources: Sources) -> str:
    drawn = [(at, heading, list(draw(sources))) for at, heading, draw in SECTIONS]
    drawn = [one for one in drawn if one[2]]
    made = "".join(provenance.texts(sources))
    links = [(at, heading) for at, heading, _ in drawn]
    links += [("made", "What it is made of")] if made else []
    parts = [_head(sources, links), _glance(sources)]
    for at, heading, figures in drawn:
        inside = "".join(one.html(f"{at}-{place}") for place, one in enumerate(figures, 1))
        parts.append(
            f'<section id="{at}"><h2>{heading}</h2><div class="figures">{inside}</div></section>\n'
        )
    if made:
        parts.append(f'<section id="made"><h2>What it is made of</h2>{made}</section>\n')
    return "".join(parts)


def _head(sources: Sources, links: list[tuple[str, str]]) -> str:
    about = []
    for run in sources.runs[:1]:
        where = run.environment
        if where:
            ranks, cores = so_many(where["ranks"], "rank"), so_many(where["cores"], "core")
            about.append(f"{ranks}, {where['backend']}, {where['device']}, {cores}")
            about.append(where["begun"])
        if not run.summary:
            step = max((line.get("step", 0) for line in run.lines), default=0)
            about.append(f"at step {step:,}; still running, or stopped before its end")
    nav = "".join(f'<a href="#{at}">{heading}</a>' for at, heading in links)
    return (
        f'<header><p class="kind">recd report</p><h1>{escaped(sources.title)}</h1>'
        f"<p>{escaped(' · '.join(about))}</p><nav>{nav}</nav></header>\n"
    )


def _so_far(run: RunLog) -> dict[str, float | None]:
    """The run in numbers; for a run without a summary, which still runs, those of its lines."""
    found = row(run)
    costs = [line for line in run.lines if line["kind"] == "cost"]
    if not run.summary and costs:
        for key, kind in RATES.items():
            rates = run.curve(kind, key).values
            found[key] = median(rates) if rates else None
        for key in ("dedupe_factor", "peak_memory_mib"):
            found[key] = next((one[key] for one in reversed(costs) if one.get(key)), None)
    return found


def _glance(sources: Sources) -> str:
    """The numbers of a single run, shown large, or a table that compares several runs with the
    first."""
    rows = [_so_far(run) for run in sources.runs]
    shown = [key for key in COLUMNS if any(one[key] is not None for one in rows)]
    if len(rows) == 1:
        (values,) = rows
        tiles = [(COLUMNS[key], values[key]) for key in GLANCE if values[key] is not None]
        inside = "".join(
            f"<div><dd>{number(value, 4)}</dd><dt>{escaped(words)}</dt></div>"
            for words, value in tiles
        )
        return f'<dl class="glance">{inside}</dl>\n' if tiles else ""
    if not rows:
        return ""
    quartiles = [spread(run) for run in sources.runs]
    head = "".join(
        f'<th scope="col"><i style="background:var(--{ink})"></i>{escaped(run.name)}</th>'
        for run, ink in sources.inks()
    )
    lines = []
    for key in shown:
        cells = []
        for place, one in enumerate(rows):
            value, first = one[key], rows[0][key]
            text = "" if value is None else number(value, 4)
            if place and value and first and abs(value / first - 1) >= SAME:
                text = f"<small>{number(value / first)}{TIMES} </small>{text}"
            elif key in quartiles[place]:
                between = "{} to {}".format(*map(number, quartiles[place][key]))
                text = f"<small>{between} </small>{text}"
            cells.append(f"<td>{text}</td>")
        lines.append(f'<tr><th scope="row">{escaped(COLUMNS[key])}</th>{"".join(cells)}</tr>')
    return (
        f'<div class="scroll"><table class="glance"><thead><tr><td></td>{head}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
        f'<p class="aside">Small: as many times {escaped(sources.runs[0].name)}; of it, quartiles '
        "over the lines of metrics but the first, while kernels compile and pipelines fill.</p>\n"
    )

"""docs/scale.md's tables, from what the suite prints: `python -m benchmarks.scale.page FILE...`.

Each FILE is the JSON of a run (`--quick`, `--papers`); a table replaces what the page has between
its markers.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["paper_table", "step_table", "written"]

PAGE = Path(__file__).parents[2] / "docs" / "scale.md"

Figures = Sequence[Mapping[str, Any]]


def paper_table(figures: Figures) -> str:
    """What is published beside what is predicted."""
    lines = ["| figure | published | predicted | off | why |", "|---|---|---|---|---|"]
    for one in figures:
        value, published = one["value"], one["baseline"]
        known = published is not None
        bound = "bound" in one["note"]
        off = f"{100 * (value / published - 1):+.0f}%" if known and not bound else ""
        used = one["note"].startswith("used")
        why = one["note"].removeprefix("used; ")
        printed = f"{'≤ ' * bound}{_short(published if known else value)} {one['unit']}".strip()
        ours = _short(value) if known else "no price"
        cells = [one["name"], printed, ours, "taken" if used else off, why]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def step_table(figures: Figures) -> str:
    """Modelled steps, one row for each cluster, one column for each plan."""
    rows: dict[str, dict[str, str]] = {}
    for one in figures:
        if not one["name"].startswith("modelled: "):
            continue
        model, sheet, nodes, plan, *strong = one["name"].removeprefix("modelled: ").split(", ")
        cell = f"{_short(one['value'] / 1000)}k"
        memory = re.search(r"([\d.]+) GiB a rank", one["note"])
        assert memory is not None
        where = f"{model}, {sheet}, {nodes}{', same batch in all' if strong else ''}"
        rows.setdefault(where, {})[plan] = f"{cell}, {memory[1]} GiB"
    plans = list(next(iter(rows.values())))
    lines = [f"| | {' | '.join(plans)} |", f"|---{'|---' * len(plans)}|"]
    lines += [f"| {where} | {' | '.join(cells.values())} |" for where, cells in rows.items()]
    return "\n".join(lines)


def written(page: str, name: str, table: str) -> str:
    """The page with this table between its markers."""
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n{table}\n{end}{after}"


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


if __name__ == "__main__":
    text = PAGE.read_text()
    for file in map(Path, sys.argv[1:]):
        figures = json.loads(file.read_text())["figures"]
        steps = any(one["name"].startswith("modelled: ") for one in figures)
        table = step_table(figures) if steps else paper_table(figures)
        text = written(text, "steps" if steps else "papers", table)
    PAGE.write_text(text)

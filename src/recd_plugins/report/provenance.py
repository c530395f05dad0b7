"""What a page is made of: the registry of each run and the machine that it ran on, as texts."""

from __future__ import annotations

from collections.abc import Iterator

from recd_plugins.report.drawing import escaped
from recd_plugins.report.sources import Sources

__all__ = ["texts"]


def texts(sources: Sources) -> Iterator[str]:
    """The HTML of each run's registry, machine and plan, and of each printed plan."""
    for run in sources.runs:
        about = dict(run.environment)
        versions = about.pop("versions", {})
        rows = [*about.items(), *versions.items()]
        facts = "".join(
            f"<div><dt>{escaped(key.replace('_', ' '))}</dt><dd>{escaped(value)}</dd></div>"
            for key, value in rows
        )
        text = f"<pre>{escaped(run.registry.rstrip())}</pre>" if run.registry else ""
        if facts or text:
            yield (
                f'<article class="made"><h3>{escaped(run.name)}</h3><dl>{facts}</dl>'
                f"{_folded('registry.yaml', text)}{_folded('plan', _why(run.plan.get('plan', '')))}"
                "</article>"
            )
    for printed in sources.printed:
        found = printed.values.get("plan")
        if printed.kind == "plan" and found:
            name = escaped(printed.name)
            yield f'<article class="made"><h3>{name}</h3>{_folded("plan", _why(found))}</article>'


def _why(plan: str) -> str:
    return f"<pre>{escaped(plan)}</pre>" if plan else ""


def _folded(name: str, inside: str) -> str:
    return f"<details><summary>{name}</summary>{inside}</details>" if inside else ""

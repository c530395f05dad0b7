"""Advice in words, and the registry.yaml that is advised."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from recd_plugins.advise.advice import RegistryAdvice
from recd_plugins.advise.outlook import Outlook
from recd_plugins.advise.walk import Weighed
from recd_plugins.config.yaml_text import to_yaml
from recd_plugins.errors import so_many
from recd_plugins.planning.explain.words import aligned, in_bytes
from recd_plugins.registry import KEYS

__all__ = ["advice_lines", "advised_registry", "next_step"]

WIDE = 100
"""The most characters in a line of the registry."""
WHAT = {
    "samples_per_second": "samples a second",
    "memory": "memory",
    "time_to_loss": "time to a loss",
}


def advice_lines(advice: RegistryAdvice) -> Iterator[str]:
    """The forecast of the baseline and of each addition on the way; why each is kept or not; what
    would change the advice, and what to measure."""
    walk = advice.walk
    cluster = walk.base.ledger.prices.cluster
    yield (
        f"for {WHAT[advice.goal.objective]}, {advice.goal.budget_gb:g} GB a rank over TorchRec's "
        f"own plan; {so_many(cluster.n_nodes, 'node')} of "
        f"{so_many(cluster.ranks_per_node, 'rank')}, {so_many(advice.batch_size, 'sample')} a rank "
        "and step"
    )
    alone = cluster.world_size == 1
    if alone:
        yield "one rank exchanges nothing; what it hands to collectives comes back to itself"
    moved = "to itself" if alone else "exchanged"
    rows: list[Sequence[str]] = [
        ("", "", "ms a step", "samples/s", moved, "between nodes", "memory")
    ]
    room = "no room" if walk.base.lacks else ""
    rows.append(_row("TorchRec's own best plan", room, walk.base))
    rows += [_row(f"+ {one.name}", one.verdict, one.outlook) for one in walk.weighed]
    if advice.as_given is not None:
        rows.append(_row("as it was given", "", advice.as_given))
    _, best = advice.won
    rows.append(_row("advised", "" if best is walk.best else "by training", best))
    yield from aligned(rows)
    yield ""
    if walk.base.lacks:
        yield f"TorchRec's own best plan, as if there were room; {walk.base.lacks}"
    for one in walk.weighed:
        yield f"{one.name}: {one.verdict}; {one.why}{_at_the_end(one)}"
    if advice.left_out:
        yield advice.left_out
    if len(advice.walks) > 1:
        yield ""
        for size, other in advice.walks.items():
            chosen = "  taken" if size == advice.batch_size else ""
            yield (
                f"{so_many(size, 'sample')} a rank: {other.best.ms:.3g} ms, "
                f"{other.best.samples_per_second:,.0f} samples/s{chosen}"
            )
    if advice.trials:
        yield ""
        yield from _trials(advice)
    if advice.what_ifs:
        yield ""
        yield "what if:"
        for what in advice.what_ifs:
            times = ""
            if what.walk is not None:
                times = f" ({what.walk.base.ms:.3g} -> {what.walk.best.ms:.3g} ms)"
            yield f"  {what.name}: {what.changes(walk.kept)}{times}"
    if advice.to_measure:
        yield ""
        yield "to be surer, measure:"
        yield from (f"  {one}" for one in advice.to_measure)


def advised_registry(advice: RegistryAdvice) -> str:
    """The text of the advised registry.yaml, which `recd train -r` runs unchanged, or a trainer
    loads."""
    walk, values, (names, best) = advice.walk, advice.values, advice.won
    lines = [
        f"# Written by `recd advise`, for {WHAT[advice.goal.objective]}: a step is forecast at "
        f"{best.ms:.3g} ms,",
        f"# where TorchRec's own best plan is at {walk.base.ms:.3g} ms"
        + (", had memory room for it." if walk.base.lacks else "."),
    ]
    if advice.taken:
        lines.append(f"# Trained here, it took {advice.taken.ms:.3g} ms: train.forecast_ms.")
    if best.mapped:
        tables = _yaml(list(best.mapped), True)  # a name may hold the end of a line
        lines.append(f"# In mapped files, for memory has no room: {tables}.")
    lines += [
        f"# {one.name}: {one.claim.addition.summary}" for one in walk.weighed if one.name in names
    ]
    left = [one for one in walk.weighed if one.name not in names and one.verdict != "replaced"]
    if left:
        every = ", ".join(one.name for one in left)
        lines.append(f"# Left out, for what `recd advise` says: {every}.")
    lines += [_dumped(key, values[key]) for key in KEYS if key in values]
    return "\n".join(lines) + "\n"


def next_step(advice: RegistryAdvice, out: Path) -> str:
    """What to do with the registry after it is written."""
    if not advice.of_trainer:
        return f"recd train -r {out}"
    values, more = advice.values, ", features=features" if advice.has_features else ""
    calls = [f"stack.plan(model, batches=loader{more})", "stack.sharders()"]
    if "dedup" in values:
        adapt = f"stack.adapt(model, batches=loader{more})"
        calls = [adapt, f"stack.converting(collate{more})", *calls]
    if "cache" in values:
        calls.append(f"stack.order(loader{more})")
    return f"in your trainer, stack = rp.load({str(out)!r}); then {', '.join(calls)}"


def _dumped(key: str, value: Any) -> str:
    """The key and its value as YAML, on one line if they fit."""
    flow = _yaml(value, True).removesuffix("\n...")
    if len(f"{key}: {flow}") <= WIDE:
        return f"{key}: {flow}"
    return _yaml({key: value}, None)


def _yaml(value: Any, flow: bool | None) -> str:
    return to_yaml(value, flow=flow, width=10_000).rstrip("\n")


def _trials(advice: RegistryAdvice) -> Iterator[str]:
    """Forecast beside fact of each trial, and which one is taken."""
    names, _ = advice.won
    rows: list[Sequence[str]] = [("trained here", "", "ms a step", "forecast", "off by")]
    for one in advice.trials:
        called = " + ".join(one.additions) or "TorchRec's own best plan"
        off = f"{one.outlook.ms / one.ms - 1:+.0%}"
        mark = "taken" if one.additions == names else ""
        rows.append((called, mark, f"{one.ms:.3g}", f"{one.outlook.ms:.3g}", off))
    yield from aligned(rows)
    yield "a trial uses this machine's links, whatever `topology` says"


def _row(name: str, verdict: str, outlook: Outlook | None) -> tuple[str, ...]:
    if outlook is None:
        return (name, verdict, "", "", "", "", "")
    return (
        name,
        verdict,
        f"{outlook.ms:.3g}",
        f"{outlook.samples_per_second:,.0f}",
        in_bytes(sum(outlook.bytes_by_link.values())),
        in_bytes(outlook.between_nodes),
        in_bytes(outlook.memory),
    )


def _at_the_end(one: Weighed) -> str:
    if one.at_the_end is None or one.verdict != "kept":
        return ""
    return f"; without it alone, {1 + one.at_the_end:.2f} times as much"

"""The rows that the curve of a cache is of: those of a law, of a profile, or of a registry."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import recd_plugins
from recd_plugins.api import RegistryError, nearest
from recd_plugins.api.planning import (
    Floats,
    Integers,
    Profile,
    RowDistribution,
    exponential,
    half_normal,
    model_tables,
    uniform,
    zipf,
)

__all__ = ["CurveSource", "merged_rows", "of_law", "of_profile", "of_registry"]

LAWS: Mapping[str, Callable[..., RowDistribution]] = {
    "exponential": exponential,
    "half_normal": half_normal,
    "uniform": uniform,
    "zipf": zipf,
}


@dataclass(frozen=True, kw_only=True)
class CurveSource:
    """Rows that share a device's memory."""

    name: str
    rows: RowDistribution
    width: int
    """d: numbers in each."""


def of_law(law: str, rows: int, lookups: float, width: int) -> CurveSource:
    """`zipf:1.05`: a name, and its parameter unless the default will do."""
    name, colon, parameter = law.partition(":")
    if name not in LAWS:
        raise RegistryError(f"--law: there is no law {name!r}; {nearest(name, LAWS)}")
    try:
        drawn = LAWS[name](rows, lookups, *([float(parameter)] if colon else []))
    except (TypeError, ValueError) as error:
        raise RegistryError(
            f"--law: {law!r} is no law with a number that it takes, say zipf:1.05 ({error})"
        ) from error
    return CurveSource(name=law, rows=drawn, width=width)


def of_profile(path: Path, tables: Sequence[str], width: int) -> CurveSource:
    """Tables of a saved profile; it does not know how wide their rows are."""
    profile = Profile.load(path)
    names = list(tables or profile.rows)
    return CurveSource(
        name=", ".join(names), rows=merged_rows([profile[name] for name in names]), width=width
    )


def of_registry(
    registry: Path, overrides: Sequence[str], tables: Sequence[str], batches: int | None
) -> CurveSource:
    """The model's tables, as the train split will look them up."""
    stack = recd_plugins.load(registry, overrides)
    for slot in ("dataset", "model"):
        stack.registry.one(slot)
    chosen = model_tables(stack.model(), tables or ("*",), where="--table")
    if not chosen:
        raise RegistryError("the model has no embedding table, so there is nothing to cache.")
    widths = {table.dim for table in chosen.values()}
    if len(widths) != 1:
        raise RegistryError(
            f"--table: rows of {' and '.join(map(str, sorted(widths)))} numbers do not make one "
            f"curve; name tables of one width, of {', '.join(chosen)}."
        )
    profile = stack.profile({name: table.counted for name, table in chosen.items()}, batches)
    rows = merged_rows([profile[name] for name in chosen])
    return CurveSource(name=", ".join(chosen), rows=rows, width=widths.pop())


def merged_rows(tables: Sequence[RowDistribution]) -> RowDistribution:
    """The rows of all, hottest first; ids are not kept."""
    if len(tables) == 1:
        return tables[0]
    counts, p, presence = (
        np.concatenate([getattr(one, part) for one in tables])
        for part in ("counts", "p", "presence")
    )
    order = np.argsort(-p, kind="stable")
    return RowDistribution.of(
        counts[order], p[order], presence[order], uncertainty=_together(tables, order)
    )


def _together(tables: Sequence[RowDistribution], order: Integers) -> Floats | None:
    """[R] the uncertainty of all, as if each table's were on its own: their lookups, at the rows of
    each that are as hot."""
    if all(one.uncertainty is None for one in tables):
        return None
    lookups = sum(one.lookups for one in tables)
    of = np.repeat(np.arange(len(tables)), [len(one.counts) for one in tables])[order]
    whole = np.zeros(len(order))
    for number, one in enumerate(tables):
        if one.uncertainty is not None and lookups:
            at = np.append(0.0, one.uncertainty)[np.cumsum(of == number)]
            whole += (at * one.lookups / lookups) ** 2
    return np.sqrt(whole)

"""The rows that the curve of a cache is of: those of a law, of a profile, or of a registry."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import recd_plugins
from recd_plugins.api import RegistryError, nearest
from recd_plugins.api.planning import (
    Profile,
    RowDistribution,
    exponential,
    half_normal,
    model_tables,
    uniform,
    zipf,
)
from recd_scars.cache_curve import rows_of_all

__all__ = ["CurveSource", "of_law", "of_profile", "of_registry"]

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
            f"--law: {law!r} is no law with a number that suits it, such as zipf:1.05 ({error})"
        ) from error
    return CurveSource(name=law, rows=drawn, width=width)


def of_profile(path: Path, tables: Sequence[str], width: int) -> CurveSource:
    """Tables of a saved profile, which does not say how wide their rows are."""
    profile = Profile.load(path)
    names = list(tables or profile.rows)
    return CurveSource(
        name=", ".join(names), rows=rows_of_all([profile[name] for name in names]), width=width
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
    rows = rows_of_all([profile[name] for name in chosen])
    return CurveSource(name=", ".join(chosen), rows=rows, width=widths.pop())

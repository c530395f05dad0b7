"""Where a curve's distribution comes from: a formula, a saved profile, a registry's tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

import recd_plugins
from recd_plugins.api import RegistryError, nearest
from recd_plugins.api.planning import (
    Profile,
    RowDistribution,
    exponential,
    half_normal,
    model_tables,
    profile_batches,
    uniform,
    zipf,
)

__all__ = ["Source", "of_law", "of_profile", "of_registry", "together"]

LAWS: Mapping[str, Callable[..., RowDistribution]] = {
    "exponential": exponential,
    "half_normal": half_normal,
    "uniform": uniform,
    "zipf": zipf,
}


@dataclass(frozen=True, kw_only=True)
class Source:
    """Rows that share a device's memory."""

    name: str
    rows: RowDistribution
    width: int
    """d: numbers in each."""


def of_law(law: str, rows: int, lookups: float, width: int) -> Source:
    """`zipf:1.05`: a name, and its parameter unless the default will do."""
    name, colon, said = law.partition(":")
    if name not in LAWS:
        raise RegistryError(f"--law: there is no law {name!r}; {nearest(name, LAWS)}")
    try:
        drawn = LAWS[name](rows, lookups, *([float(said)] if colon else []))
    except (TypeError, ValueError) as error:
        raise RegistryError(
            f"--law: {law!r} is no law with a number that it takes, say zipf:1.05."
        ) from error
    return Source(name=law, rows=drawn, width=width)


def of_profile(path: Path, tables: Sequence[str], width: int) -> Source:
    """Tables of a saved profile; it does not know how wide their rows are."""
    profile = Profile.load(path)
    names = list(tables or profile.rows)
    return Source(
        name=", ".join(names), rows=together([profile[name] for name in names]), width=width
    )


def of_registry(
    registry: Path, overrides: Sequence[str], tables: Sequence[str], batches: int
) -> Source:
    """The model's tables, as the train split's first batches look them up."""
    stack = recd_plugins.load(registry, overrides)
    for slot in ("dataset", "model"):
        stack.registry.one(slot)
    chosen = model_tables(stack.model(), tables or ("*",), where="--table")
    if not chosen:
        raise RegistryError("the model has no embedding table, so there is nothing to cache.")
    widths = {table.dim for table in chosen.values()}
    if len(widths) != 1:
        raise RegistryError(
            f"--table: rows of {' and '.join(map(str, sorted(widths)))} numbers are no one curve; "
            f"name tables of one width, of {', '.join(chosen)}."
        )
    loader = stack.loader(0, stack.registry.train.ranks)
    counted = {name: table.counted for name, table in chosen.items()}
    profile = profile_batches(islice(loader, batches), counted)
    rows = together([profile[name] for name in chosen])
    return Source(name=", ".join(chosen), rows=rows, width=widths.pop())


def together(tables: Sequence[RowDistribution]) -> RowDistribution:
    """The rows of all, hottest first; ids are not kept."""
    if len(tables) == 1:
        return tables[0]
    counts, p, presence = (
        np.concatenate([getattr(one, part) for one in tables])
        for part in ("counts", "p", "presence")
    )
    return RowDistribution.of(counts, p, presence)

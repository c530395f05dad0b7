"""The traffic that a cache and coalescing save, by the paper's formulas, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from recd_plugins.api import so_many
from recd_plugins.api.planning import Coalesce, ProfiledTable, TableSizes, aligned, in_share
from recd_scars.theory import coalesced, plain

__all__ = ["lines", "rows_per_batch"]

HEADER = ("table", "cached", "of rows", "lookups", "MB", "rows a step", "coalesced", "and cached")


def rows_per_batch(
    table: ProfiledTable, *, batch_size: int, cached: int
) -> tuple[float, float, float]:
    """Rows that come to a rank in a step: b L; each once; each once that is not cached."""
    rows = table.rows
    indices = plain(rows, batch_size=batch_size, width=1)
    once, rest = (
        coalesced(rows, batch_size=batch_size, width=1, cached=hot) - indices for hot in (0, cached)
    )
    return indices, once, rest


def lines(
    tables: Mapping[str, ProfiledTable],
    sizes: Mapping[str, TableSizes],
    *,
    batch_size: int,
    k: float,
) -> Iterator[str]:
    """A line per table, and what all of them move."""
    shown: list[Sequence[str]] = [HEADER]
    before = once = after = 0.0
    for name, table in tables.items():
        cached = sizes[name].replicated
        moved = rows_per_batch(table, batch_size=batch_size, cached=cached)
        shown.append(
            (
                name,
                f"{cached:,}",
                f"{table.rows.num_rows:,}",
                in_share(table.rows.coverage(cached), table.rows.interval(cached)),
                f"{k * cached * table.width / 1e6:.3g}",
                *(f"{rows:,.0f}" for rows in moved),
            )
        )
        before, once, after = (
            total + rows * table.width
            for total, rows in zip((before, once, after), moved, strict=True)
        )
    yield from aligned(shown, named=1)
    yield (
        f"rows that come to a rank in a step of {so_many(batch_size, 'sample')}: "
        f"{before / 1e6:.3g} MB, each once {once / 1e6:.3g} MB, cached ones left out "
        f"{after / 1e6:.3g} MB; as much goes back as gradients"
    )
    levels: set[Coalesce] = {sizes[name].coalesce for name in tables}
    if levels == {"none"}:
        yield "ids are not coalesced (cache.coalesce: none), so rows come as often as looked up"

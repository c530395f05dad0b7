"""Numbers and tables as a person reads them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

__all__ = ["aligned", "in_bytes", "in_us"]


def aligned(rows: Sequence[Sequence[str]], *, named: int = 2) -> Iterator[str]:
    """A line for each, the first `named` columns to the left and numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        left = map(str.ljust, row[:named], widths[:named])
        yield "  ".join([*left, *map(str.rjust, row[named:], widths[named:])])


def in_bytes(count: float, *, sign: bool = False) -> str:
    """Three digits of so many bytes, in units of 1024 as TorchRec's GB are."""
    size, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 999.5:
            break
        size, unit = size / 1024, larger
    return f"{size:{'+' if sign else ''}.3g} {unit}"


def in_us(ms: float) -> str:
    return f"{ms * 1000:.3g} us"

"""Numbers and tables as a person reads them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.cells import cell_len

__all__ = ["aligned", "in_bytes", "in_share", "in_us"]


def aligned(rows: Sequence[Sequence[str]], *, named: int = 2) -> Iterator[str]:
    """A line for each, the first `named` columns to the left and numbers to the right, by the width
    that letters have on a terminal."""
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        room = [" " * (width - cell_len(one)) for one, width in zip(row, widths, strict=True)]
        left = map(str.__add__, row[:named], room[:named])
        yield "  ".join([*left, *map(str.__add__, room[named:], row[named:])])


def in_bytes(count: float, *, sign: bool = False) -> str:
    """Three digits of so many bytes, in units of 1024 as TorchRec's GB are."""
    size, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 999.5:
            break
        size, unit = size / 1024, larger
    return f"{size:{'+' if sign else ''}.3g} {unit}"


def in_share(share: float, interval: tuple[float, float]) -> str:
    """A share, and half of its interval where it has one: 54.2±1.3%."""
    low, high = interval
    wide = f"{50 * (high - low):.1f}"
    return f"{share:.1%}" if wide == "0.0" else f"{100 * share:.1f}±{wide}%"


def in_us(ms: float) -> str:
    return f"{ms * 1000:.3g} us"

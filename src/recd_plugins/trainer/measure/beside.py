"""A forecast beside the fact, in numbers and in words, and the reason if they differ."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from recd_plugins.planning.explain.words import aligned, in_bytes, in_share

__all__ = ["Beside", "lines", "why_parted"]

PARTED = 0.1
"""The share of the forecast by which the fact may differ before the reason is given."""


@dataclass(frozen=True, kw_only=True)
class Beside:
    """A forecast and the fact beside it."""

    what: str
    unit: str
    """`share`, `bytes`, `factor`, `ms` or `batches`."""
    forecast: float | None
    """None if there could be no forecast."""
    interval: tuple[float, float] | None = None
    fact: float
    note: str = ""
    """The reason if they differ, and what to do."""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Beside:
        """The forecast whose `values` these are."""
        interval = values["interval"]
        kept = {name: values[name] for name in ("what", "unit", "forecast", "fact", "note")}
        return cls(**kept, interval=interval and (interval[0], interval[1]))

    def values(self) -> dict[str, Any]:
        """The forecast as values, for machines."""
        return dataclasses.asdict(self) | {"parted": self.parted}

    @property
    def parted(self) -> bool:
        """Whether the fact is outside the interval and off by more than `PARTED`."""
        if self.forecast is None:
            return False
        low, high = self.interval or (self.forecast, self.forecast)
        off = abs(self.fact - self.forecast)
        return bool(off > PARTED * max(self.forecast, 1e-12) and not low <= self.fact <= high)

    @property
    def words(self) -> tuple[str, str, str]:
        """The quantity, the forecast, the fact."""
        expected = "-" if self.forecast is None else self._number(self.forecast, self.interval)
        return self.what, expected, self._number(self.fact, None)

    def _number(self, value: float, interval: tuple[float, float] | None) -> str:
        if self.unit == "share":
            return in_share(value, interval or (value, value))
        if self.unit == "bytes":
            return in_bytes(value)
        if self.unit == "batches":
            return f"{value:,.0f}"
        low, high = interval or (value, value)
        wide = f"{(high - low) / 2:,.2g}"
        return f"{value:,.3g}" + (f"±{wide}" if high > low else "")


def lines(found: Sequence[Beside]) -> Iterator[str]:
    """A table, and what to do if forecast and fact differ."""
    if found:
        header = ("forecast beside fact", "forecast", "fact")
        yield from aligned([header, *(one.words for one in found)], named=1)
    yield from why_parted(found)


def why_parted(found: Sequence[Beside]) -> Iterator[str]:
    """The notes, each in a line."""
    for one in found:
        if one.note:
            parted = f"{one.what}: forecast and fact part: " if one.parted else ""
            yield f"{parted}{one.note}"

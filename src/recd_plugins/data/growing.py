"""A dataset that grows: each epoch is a table of the rows of one period."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pyarrow as pa

from recd_plugins.data.dataset import Dataset, Split
from recd_plugins.errors import DataError

__all__ = ["GrowingDataset", "NotClosed", "Period", "Together", "Waiting", "closed_period"]

Waiting = Callable[[str], None]
"""Is called again and again while a period is waited for, with the reason for the wait."""

Together = Callable[[bool], bool]
"""Is called at each look with whether the period is closed here; returns whether it is closed for
all who wait."""

LOOK_EVERY = 0.5
"""Seconds between two looks at a period that is waited for."""


class NotClosed(DataError):
    """Rows of a period may still come; the message says from where."""

    def __init__(self, message: str, so_far: object = None) -> None:
        """`so_far` is how far the writers have come: the wait goes on as long as it changes."""
        super().__init__(message)
        self.so_far = so_far


class Period(Dataset):
    """The rows of an interval of time; they never change."""

    @abstractmethod
    def verify(self) -> None:
        """Raises `DataError` if the source no longer has what the period was made of."""

    def counts(self, folder: Path) -> Mapping[str, int]:
        """Counts of what came, by name, once the period has been prepared in this folder."""
        return {}


class GrowingDataset(Dataset):
    """Epoch e is the table of period e; authors write `schema` and `period`.

    Where one table is needed, the first period with rows stands for the dataset: planners count it,
    commands measure it.
    """

    patience: float = 600.0
    """Seconds to wait for a period that is not closed while nothing changes."""
    keep: int = 8
    """How many periods before the one in training keep their tables."""

    @abstractmethod
    def period(self, number: int) -> Period | None:
        """The rows of a period; None if the data end before it. Raises `NotClosed` if more rows may
        come.

        Any number of processes may call this at any time, and all get the same rows.
        """

    def chunks(self, split: Split) -> Iterator[pa.Table]:
        """The rows of the first period."""
        period = closed_period(self, 0)
        if period is not None:
            yield from period.chunks(split)


def closed_period(
    dataset: GrowingDataset,
    number: int,
    waiting: Waiting = lambda what: None,
    together: Together = bool,
) -> Period | None:
    """The period, once it is closed; None if the data end before it. Raises `DataError` if nothing
    has changed for `dataset.patience`."""
    found: tuple[str, object] = ("", None)
    since = time.monotonic()
    while True:
        period, closed = None, True
        try:
            period = dataset.period(number)
        except NotClosed as error:
            closed = False
            if (now := (str(error), error.so_far)) != found:
                found, since = now, time.monotonic()
            elif time.monotonic() - since > dataset.patience:
                raise DataError(
                    f"period {number} is waited for, but nothing has come for {dataset.patience:g} "
                    f"s (dataset.patience): {error}. Check whether the writers run, or set where "
                    "the data end."
                ) from None
        if together(closed):
            return period
        waiting(f"period {number}: {found[0]}")
        time.sleep(LOOK_EVERY)

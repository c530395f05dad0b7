"""A dataset without end: a table for each epoch, of the rows of a period."""

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
"""Is called again and again while a period is waited for, with what it waits for."""

Together = Callable[[bool], bool]
"""Takes at each look whether a period is closed here, and gives whether it is for all who wait."""

LOOK_EVERY = 0.5
"""Seconds between two looks at what is waited for."""


class NotClosed(DataError):
    """Rows of a period may still come; the message says from whom."""

    def __init__(self, message: str, so_far: object = None) -> None:
        """`so_far`: how far the writers have come; one waits with patience while it changes."""
        super().__init__(message)
        self.so_far = so_far


class Period(Dataset):
    """The rows of an interval of time, which no later look changes."""

    @abstractmethod
    def verify(self) -> None:
        """`DataError` where the source does not have any more what the period was made of."""

    def counts(self, folder: Path) -> Mapping[str, int]:
        """The numbers of what came, by name, once the period was prepared in this folder."""
        return {}


class GrowingDataset(Dataset):
    """Epoch e is the table of period e; authors fill `schema` and `period`.

    The first period with rows stands for the dataset where one table is asked for: planners count
    it, commands measure it.
    """

    patience: float = 600.0
    """Seconds for which a period that is not closed is waited for while nothing changes."""
    keep: int = 8
    """Periods behind the one in training whose tables stay."""

    @abstractmethod
    def period(self, number: int) -> Period | None:
        """The rows of a period; None where the data end before it, `NotClosed` where more of them
        may come.

        Any number of processes may ask at any time, and all are given the same.
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
    """The period, once it is closed; None where the data end before it. `DataError` where nothing
    has changed for as long as the dataset has patience."""
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
                    f"period {number} is waited for, and nothing has come for "
                    f"{dataset.patience:g} s (dataset.patience): {error}. See whether the writers "
                    "run, or say where the data end."
                ) from None
        if together(closed):
            return period
        waiting(f"period {number}: {found[0]}")
        time.sleep(LOOK_EVERY)

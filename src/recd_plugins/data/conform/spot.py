"""Where a value lies that does not conform: the file, column and row that an error names."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from recd_plugins.errors import DataError

__all__ = ["Spot", "shown"]


class Spot(NamedTuple):
    """A stretch of a column."""

    where: str
    """The file, and its row group."""
    column: str
    first: int = 0
    """The row of the chunk at which the stretch begins."""
    chunk: int = 0
    """The number of the chunk's first row in the row group."""
    kept: npt.NDArray[np.int64] | None = None
    """The rows of the chunk that were kept; None if all were."""
    lengths: npt.NDArray[np.int64] | None = None
    """The number of values in each row, if the rows are lists."""
    numbered: bool = True
    """Whether its rows have numbers; they have none once equal values were merged."""
    drops: bool = True
    """Whether a row with a null may be left out; if so, errors advise that, too."""

    def error(self, what: str, cure: str) -> DataError:
        """The error for a column that is not what it should be."""
        return DataError(f"{self.where}: column {self.column!r} {what}. {cure}")

    def error_at(self, bad: npt.NDArray[np.bool_], what: str, cure: str) -> DataError:
        """The error for the `bad` ones of N values; it names the row of the first."""
        if not self.numbered:
            return self.error(what.rstrip(","), cure)
        count = int(np.count_nonzero(bad))
        others = f" ({count:,} times in all)" if count > 1 else ""
        return self.error(f"{what} in row {self.row(int(bad.argmax())):,}{others}", cure)

    def row(self, value: int) -> int:
        """The number, in its row group, of the row in which a value of the stretch lies."""
        if self.lengths is not None:
            value = int(self.lengths.cumsum().searchsorted(value, side="right"))
        row = self.first + value
        return self.chunk + (row if self.kept is None else int(self.kept[row]))


def shown(value: Any) -> str:
    """A value as errors show it, shortened to 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."

"""Which rows of foreign files are to train on, and which to test on."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recd_plugins.data.conform.rows import conform, dropping_columns, only, rows_left
from recd_plugins.data.dataset import Split
from recd_plugins.data.foreign import ForeignSchema
from recd_plugins.data.importing.reading import Block
from recd_plugins.data.importing.splits import SplitBy

__all__ = ["RowSplit"]


@dataclass(frozen=True, kw_only=True)
class RowSplit:
    """How the rows of an import are split."""

    split: SplitBy | None
    """The rule; without one, all rows are for training."""
    schema: ForeignSchema
    cut: int | None
    """The time from which on rows are for testing, if time splits them."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the files by which `trained` chooses rows, each once."""
        by = None if self.split is None else self.split.column or self.schema.timestamp
        return tuple(dict.fromkeys([*([by] if by else []), *dropping_columns(self.schema)]))

    def trained(self, raw: pa.Table, block: Block) -> pa.Table:
        """The rows, as they were read, that become train rows: neither those for testing nor those
        that are left out for a null."""
        where, left = str(block.file.path), rows_left(raw, self.schema)
        rows = only(raw, left)
        if self.split is None:
            return rows
        if self.split.column is not None:
            tested = self.split.tested(raw[self.split.column], where, block.first)
            tested = tested if left is None else tested[left]
        else:
            assert self.cut is not None
            tested = self._times(raw, block, left) >= self.cut
        return rows.filter(pa.array(~tested))

    def times(self, raw: pa.Table, block: Block) -> npt.NDArray[np.int64]:
        """[N] the times of the rows that are not left out for a null."""
        return self._times(raw, block, rows_left(raw, self.schema))

    def _times(
        self, raw: pa.Table, block: Block, left: npt.NDArray[np.int64] | None
    ) -> npt.NDArray[np.int64]:
        where, name = str(block.file.path), self.schema.conformed.timestamp
        assert name is not None
        rows = conform(raw, self.schema, where, columns=[name], first_row=block.first, left=left)
        found: npt.NDArray[np.int64] = rows[name].to_numpy()
        return found

    def parts(self, raw: pa.Table, block: Block) -> tuple[dict[Split, pa.Table], Counter[str]]:
        """The conformed rows of each split; and the number of rows that were left out, by the
        column whose null was the reason."""
        dropped: Counter[str] = Counter()
        made, where = self.schema.conformed, str(block.file.path)

        def conformed(rows: pa.Table) -> pa.Table:
            found = conform(rows, self.schema, where, first_row=block.first, dropped=dropped)
            return found.select(list(made.columns))

        if self.split is None:
            return {"train": conformed(raw)}, dropped
        if self.split.column is None:
            rows = conformed(raw)
            assert made.timestamp is not None
            tested = rows[made.timestamp].to_numpy() >= self.cut
        else:
            tested = self.split.tested(raw[self.split.column], where, block.first)
            rows = conformed(raw)
            left = rows_left(raw, self.schema)
            tested = tested if left is None else tested[left]
        train, test = (rows.filter(pa.array(one)) for one in (~tested, tested))
        return {"train": train, "test": test}, dropped

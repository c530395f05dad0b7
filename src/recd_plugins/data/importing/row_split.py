"""Which rows of foreign files are to train on, and which to test on."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recd_plugins.data.conform.rows import conform, rows_left
from recd_plugins.data.conform.values import missing
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
    def column(self) -> str | None:
        """The column of the files by which rows are split; None if there is none."""
        if self.split is None:
            return None
        return self.split.column or self.schema.timestamp

    def tested(self, raw: pa.Table, block: Block) -> npt.NDArray[np.bool_] | None:
        """[N] which rows, as they were read, are for testing, or are left out because they have no
        time; None if nothing is split."""
        if self.split is None:
            return None
        if self.split.column is not None:
            return self.split.tested(raw[self.split.column], str(block.file.path), block.first)
        name, source = self.schema.conformed.timestamp, self.schema.timestamp
        assert name is not None
        assert source is not None
        where = str(block.file.path)
        found = conform(raw, self.schema, where, columns=[name], first_row=block.first)
        there = np.ones(raw.num_rows, np.bool_)
        if found.num_rows < raw.num_rows:
            there = ~np.concatenate([missing(chunk) for chunk in raw[source].chunks])
        tested = ~there
        tested[there] = found[name].to_numpy() >= self.cut
        return tested

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

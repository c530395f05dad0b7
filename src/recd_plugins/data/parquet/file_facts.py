"""What is known of a table's file before its rows are read."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa

from recd_plugins.data.parquet.table_names import TableNames
from recd_plugins.errors import DataError
from recd_plugins.storage.uri import Location

__all__ = ["FileFacts"]


@dataclass(frozen=True)
class FileFacts:
    """What is known of a table's file before its rows are read."""

    size: int | None = None
    mtime_ns: int | None = None
    digest: str = ""
    """The digest of its footer, which says where each page lies and what is in it."""
    folders: Mapping[str, str] = field(default_factory=dict)
    """The `key=value` of its folders."""
    partitions: Mapping[str, pa.Scalar] = field(default_factory=dict)
    """Columns that have the same value in all of its rows; the file itself need not have them."""
    columns: frozenset[str] | None = None
    """The columns of its table, if a log lists them: other columns of the file are not the
    table's."""
    names: TableNames | None = None
    """What its table calls the columns of the file, if a log says so."""

    @property
    def partition_texts(self) -> list[tuple[str, str]]:
        """The columns that have one value in all rows, by name, and that value as text."""
        return sorted((name, str(value)) for name, value in self.partitions.items())

    def check_names(self, own: Collection[str], file: Location) -> None:
        """Raises `DataError` if the file has a column of the table under a name in another case."""
        lacked = (self.columns or frozenset()).difference(own)
        spelled = {name.casefold(): name for name in own} if lacked else {}
        for name in sorted(lacked):
            other = spelled.get(name.casefold(), name)
            if other not in (self.columns or ()):
                raise DataError(
                    f"{file}: has column {other!r}, which its table calls {name!r}. Here these are "
                    "two different names: write the file again with the table's name."
                )

    def beside(self, own: Collection[str]) -> FileFacts:
        """The facts without the partitions that are also among the file's `own` columns, which take
        precedence."""
        if self.partitions.keys().isdisjoint(own):
            return self
        left = {name: one for name, one in self.partitions.items() if name not in own}
        return replace(self, partitions=left)

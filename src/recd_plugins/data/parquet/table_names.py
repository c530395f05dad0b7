"""What a table calls the columns of its files, if its log identifies them by numbers, or by names
that only files have.

Delta Lake does so if `delta.columnMapping.mode` is `name` or `id`, and Iceberg always: a column may
have been renamed since a file was written, or dropped and made again under the same name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from recd_plugins.data.parquet.footer_names import StoredColumn, columns_of, renamed
from recd_plugins.errors import DataError
from recd_plugins.storage.uri import Location

__all__ = ["Kind", "TableColumn", "TableNames"]

Kind = Literal["values", "struct", "list", "map"]
"""What a column holds in a row."""


@dataclass(frozen=True)
class TableColumn:
    """A column of a table, or a field within one."""

    name: str
    number: int | None = None
    """Its `field_id` in files."""
    stored: tuple[str, ...] = ()
    """The names that files may have for it."""
    kind: Kind = "values"
    within: tuple[TableColumn, ...] = ()
    """The fields of a struct, the element of a list, the key and the value of a map."""


@dataclass(frozen=True)
class TableNames:
    """The columns of a table, and what identifies them in a file."""

    columns: tuple[TableColumn, ...]
    numbers: bool
    """Whether numbers identify them."""
    names: Literal["always", "without numbers", "never"]
    """Whether names identify columns without a number; or do so only in files in which no column
    has one."""
    cure: str
    """What errors say of files that do not identify their columns."""

    def applied(self, raw: bytes, file: Location) -> bytes:
        """The footer of a file with the table's names. A column that is not the table's keeps its
        name, or gets another one if a column of the table has that name. Raises `DataError` for a
        file that does not say which column is which."""
        stored = columns_of(raw)
        by_number = self.numbers and any(
            one.number is not None for column in stored for one in column.every()
        )
        if self.names == "never" and not by_number:
            raise DataError(
                f"{file}: has no numbers of columns (field_id), by which its table identifies "
                f"them. {self.cure}."
            )
        by_name = self.names == "always" or (self.names == "without numbers" and not by_number)
        matching = _Matching(file, self.numbers, by_number, by_name, self.cure)
        matching.columns(stored, self.columns, "")
        return renamed(raw, stored, matching.names) if matching.names else raw

    def has(self, where: Sequence[str], elements: str) -> bool:
        """Whether the table has a field; in its path, `elements` is the step into a list."""
        columns = self.columns
        for part in where:
            if part == elements:
                continue
            found = next((one for one in columns if one.name == part), None)
            if found is None:
                return False
            while found.kind == "list":
                (found,) = found.within
            columns = found.within
        return True


@dataclass
class _Matching:
    """Matches a file's columns to those of its table."""

    file: Location
    numbers: bool
    by_number: bool
    by_name: bool
    cure: str
    names: dict[int, str] = field(default_factory=dict)

    def columns(
        self,
        stored: Sequence[StoredColumn],
        columns: Sequence[TableColumn],
        before: str,
        *,
        in_list: bool = False,
    ) -> None:
        places: list[int] = []
        taken = {*(one.name for one in stored), *(one.name for one in columns)}
        for one in stored:
            column = self._column(one, columns, before)
            if column is not None:
                place = columns.index(column)
                if place in places:
                    raise DataError(
                        f"{self.file}: has column {before + column.name!r} twice, by what its "
                        f"table identifies it with. {self.cure}."
                    )
                places.append(place)
                self._call(one, column.name)
                self._within(one, column, f"{before}{column.name}.")
            elif any(one.name == other.name for other in columns):
                number, name = 2, f"{one.name} of before"
                while name in taken:
                    number, name = number + 1, f"{one.name} of before, {number}"
                taken.add(name)
                self._call(one, name)
        if in_list and len(columns) == 2 and places == [1, 0]:
            raise DataError(
                f"{self.file}: has the pairs of {before[:-1]!r} in another order than its table, "
                f"and only the order tells ids from weights. {self.cure}."
            )

    def _column(
        self, one: StoredColumn, columns: Sequence[TableColumn], before: str
    ) -> TableColumn | None:
        if self.by_number and one.number is not None:
            return next((column for column in columns if column.number == one.number), None)
        found = next((column for column in columns if one.name in column.stored), None)
        if found is not None and self.by_name:
            return found
        if self.numbers and any(one.name in (each.name, *each.stored) for each in columns):
            raise DataError(
                f"{self.file}: has column {before + one.name!r} without a number (field_id), by "
                f"which its table identifies columns: nothing says which one it is. {self.cure}."
            )
        return None

    def _within(
        self, one: StoredColumn, column: TableColumn, before: str, *, in_list: bool = False
    ) -> None:
        if column.kind == "struct":
            self.columns(one.within, column.within, before, in_list=in_list)
        elif column.kind == "list" and (element := _element(one)) is not None:
            self._within(element, column.within[0], before, in_list=True)
        elif column.kind == "map" and len(one.within) == 1:
            for part, within in zip(one.within[0].within, column.within, strict=False):
                self._within(part, within, before)

    def _call(self, one: StoredColumn, name: str) -> None:
        if name != one.name:
            self.names[one.at] = name


def _element(stored: StoredColumn) -> StoredColumn | None:
    """The element of a list, which lies in a group of its own, or is that group; None if there is
    no list."""
    if stored.repeated:
        return stored
    if len(stored.within) != 1 or not stored.within[0].repeated:
        return None
    (group,) = stored.within
    is_step = len(group.within) == 1 and group.name != "array"  # the names that Arrow takes
    return group.within[0] if is_step and not group.name.endswith("_tuple") else group

"""Which columns of a Delta Lake table a file has, if the table identifies them by names other than
its own, or by numbers: `delta.columnMapping.mode`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recd_plugins.data.parquet.table_names import Kind, TableColumn, TableNames
from recd_plugins.errors import DataError
from recd_plugins.storage.uri import Location

__all__ = ["MAPPING_MODE", "delta_names"]

MAPPING_MODE = "delta.columnMapping.mode"
NUMBER, STORED = "delta.columnMapping.id", "delta.columnMapping.physicalName"


def delta_names(
    schema: Mapping[str, Any], mode: str, table: Location, cure: str
) -> TableNames | None:
    """The names of a table by its schema, which its log holds as JSON; None if the files have these
    names and no reader depends on the order of fields, as readers of ids with weights do."""
    mode = mode.lower()
    if mode not in ("none", "name", "id"):
        raise DataError(
            f"{table}: identifies columns in a way that this version does not know ({MAPPING_MODE} "
            f"is {mode}). {cure}."
        )
    try:
        columns = tuple(_column(one, mode) for one in schema["fields"])
    except KeyError as error:
        raise DataError(
            f"{table}: {MAPPING_MODE} is {mode}, but its log says no {error.args[0]} of some "
            f"column. {cure}."
        ) from None
    if mode == "none" and not any(map(_has_pairs, columns)):
        return None
    by_id = mode == "id"
    return TableNames(
        columns=columns, numbers=by_id, names="never" if by_id else "always", cure=cure
    )


def _column(field: Mapping[str, Any], mode: str) -> TableColumn:
    kind, within = _kind(field["type"], mode)
    return TableColumn(
        name=field["name"],
        number=int(field["metadata"][NUMBER]) if mode == "id" else None,
        stored=(field["name"] if mode == "none" else field["metadata"][STORED],),
        kind=kind,
        within=within,
    )


def _kind(described: Any, mode: str) -> tuple[Kind, tuple[TableColumn, ...]]:
    """What a type has in a row, and what is within it."""
    kind = described["type"] if isinstance(described, Mapping) else ""
    if kind == "struct":
        return "struct", tuple(_column(one, mode) for one in described["fields"])
    if kind == "array":
        return "list", _parts(mode, element=described["elementType"])
    if kind == "map":
        return "map", _parts(mode, key=described["keyType"], value=described["valueType"])
    return "values", ()


def _parts(mode: str, **parts: Any) -> tuple[TableColumn, ...]:
    kinds = {name: _kind(part, mode) for name, part in parts.items()}
    return tuple(TableColumn(name=name, kind=kind, within=w) for name, (kind, w) in kinds.items())


def _has_pairs(column: TableColumn) -> bool:
    """Whether some list has elements of two fields, as an id and its weight would be."""
    if column.kind == "list" and len(column.within[0].within) == 2:
        return True
    return any(map(_has_pairs, column.within))

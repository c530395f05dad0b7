"""The fields of JSON objects as columns of a `ForeignSchema`.

What a row becomes depends only on its object, not on the other objects, since the network decides
how a topic is cut into batches. So each value is converted by itself as its column requires, and
rows whose sessions or times have different types, which would change a column, are made separately.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa

from recd_plugins.api import DataError
from recd_plugins.api.data import ForeignSchema, conform

__all__ = ["JsonColumns", "JsonRows", "field_of", "spelled_by"]

MOST_EXACT = 2.0**53
"""Beyond this a float64 does not hold every integer."""
ONE = "an object"
"""The place that the error of an object names; the caller knows a better one."""
PAIR = 'an id and its weight, as {"id": ..., "weight": ...}'
Object = Mapping[str, Any]


class Column(NamedTuple):
    """A column of the files, or a field of objects."""

    read: Callable[[Any], Any]
    """Converts a value as the column requires; raises `ValueError` if it cannot."""
    made: Callable[[Sequence[Any]], pa.Array]
    """Makes Arrow's column from such values."""


class JsonRows(NamedTuple):
    """The objects that fit, as rows [N] in order, and the others."""

    at: Sequence[int]
    """[N] the place of each row among the objects."""
    rows: pa.Table
    misfits: Mapping[int, str]
    """Why an object does not fit, by its place."""


class JsonColumns:
    """Makes conformed columns from objects."""

    def __init__(self, schema: ForeignSchema, leave_out: Sequence[str] = ()) -> None:
        """`leave_out` are columns that are not made, such as labels that events make."""
        self._schema = schema
        self._names = [name for name in schema.conformed.columns if name not in leave_out]
        columns = _columns(schema)
        self._columns = {name: one for name, one in columns.items() if name not in leave_out}
        time = () if schema.timestamp is None else (schema.timestamp,)
        self._keys = (*schema.session_columns, *time)

    def of(self, objects: Sequence[Object], *, until_misfit: bool = False) -> JsonRows:
        """The rows of objects. With `until_misfit` there are no rows if an object does not fit, and
        one such object is named."""
        misfits: dict[int, str] = {}
        values = {
            name: _values([field_of(one, name) for one in objects], name, column.read, misfits)
            for name, column in self._columns.items()
        }
        parts: list[tuple[Sequence[int], pa.Table]] = []
        if not (misfits and until_misfit):
            for at in self._alike(values, [i for i in range(len(objects)) if i not in misfits]):
                self._conform(values, at, parts, misfits, until_misfit=until_misfit)
        if misfits and until_misfit:
            return JsonRows([], pa.table({}), misfits)
        if not parts:
            none = self._schema.conformed.arrow().empty_table()
            return JsonRows([], none.select(self._names), misfits)
        rows = pa.concat_tables([part for _, part in parts])
        at = [i for places, _ in parts for i in places]
        if len(parts) > 1:
            order = sorted(range(len(at)), key=at.__getitem__)
            rows, at = rows.take(pa.array(order, pa.int64())), sorted(at)
        return JsonRows(at, rows, misfits)

    def _alike(
        self, values: Mapping[str, Sequence[Any]], left: Sequence[int]
    ) -> Sequence[Sequence[int]]:
        """The places of objects, grouped by the types of their sessions and times."""
        found: dict[tuple[object, ...], list[int]] = {}
        keys = [values[name] for name in self._keys]
        for i in left:
            found.setdefault(tuple(_kind(column[i]) for column in keys), []).append(i)
        return [*found.values()]

    def _conform(
        self,
        values: Mapping[str, Sequence[Any]],
        at: Sequence[int],
        parts: list[tuple[Sequence[int], pa.Table]],
        misfits: dict[int, str],
        *,
        until_misfit: bool,
    ) -> None:
        """Add the rows of these places; if some do not fit, try each half."""
        try:
            made = {
                name: column.made([values[name][i] for i in at])
                for name, column in self._columns.items()
            }
            rows = pa.table(made)
            conformed = conform(rows, self._schema, ONE, columns=self._names, drops=False)
            parts.append((at, conformed))
        except (DataError, UnicodeEncodeError) as error:
            if len(at) == 1:
                misfits[at[0]] = (
                    re.sub(",? in row 0", "", str(error).removeprefix(f"{ONE}: "), count=1)
                    if isinstance(error, DataError)
                    else f"one of its texts is not Unicode ({error})."
                )
                return
            for half in (at[: len(at) // 2], at[len(at) // 2 :]):
                if not (misfits and until_misfit):
                    self._conform(values, half, parts, misfits, until_misfit=until_misfit)


def field_of(one: Object, path: str) -> Any:
    """The value of a field, where a dotted name is a field of a nested object; None if it is
    missing."""
    if path in one:
        return one[path]
    found: Any = one
    for name in path.split("."):
        if not isinstance(found, Mapping):
            return None
        found = found.get(name)
    return found


def _columns(schema: ForeignSchema) -> Mapping[str, Column]:
    """Each column of the files; a session or a time may also be a feature."""
    weight = () if schema.sample_weight is None else (schema.sample_weight,)
    needs = {name: schema.nulls.get(name, "error") == "error" for name in weight}
    needs |= {label.name: label.nulls == "error" for label in schema.label_columns}
    needs |= {one.name: one.nulls == "error" for one in schema.dense_columns if one.width is None}
    found = {name: Column(_needed if must else _number, _floats) for name, must in needs.items()}
    for dense in schema.dense_columns:
        if dense.width is not None:
            found[dense.name] = Column(_vector, _vectors)
    for feature in schema.sparse:
        below = 2**63 if feature.missing else feature.num_ids
        one = partial(_whole, below=below) if feature.ids == "as_is" else _id
        found[feature.name] = (
            Column(partial(_pairs, one=one), _scored)
            if feature.paired
            else Column(partial(_ids, one=one), _lists)
        )
        if feature.weights is not None:
            found[feature.weights] = Column(_weights, _vectors)
    if schema.timestamp is not None:
        of_texts = any(sign in schema.timestamp_unit for sign in "-/ ")
        found[schema.timestamp] = Column(_text if of_texts else _time, _keys)
    return found | {name: Column(_id, _keys) for name in schema.session_columns}


def _values(
    fields: Sequence[Any], name: str, read: Callable[[Any], Any], misfits: dict[int, str]
) -> Sequence[Any]:
    """The values of a column; None for one that does not fit, which becomes a misfit."""
    try:
        return [read(value) for value in fields]
    except ValueError:
        found: list[Any] = []
    for i, value in enumerate(fields):
        try:
            found.append(read(value))
        except ValueError as error:
            found.append(None)
            misfits.setdefault(i, f"column {name!r} {error}")
    return found


def _kind(value: Any) -> object:
    """What determines the type of Arrow's column: integers beyond int64 make it unsigned."""
    return value >= 2**63 if isinstance(value, int) else type(value)


def _id(value: Any) -> int | str | None:
    """An integer of 64 bits, or a text; a larger integer becomes the text that spells it."""
    match value:
        case None | str():
            return value
        case float():
            if math.isnan(value):
                return None
            value = _without_fraction(value)
        case bool() | int():
            value = int(value)
        case _:
            raise _error(value, "an id is an integer or a text")
    return value if -(2**63) <= value < 2**64 else str(value)


def _whole(value: Any, below: int) -> int | None:
    """An id that is taken as it is; a value that stands for a null may have any size."""
    found = _id(value)
    if isinstance(found, str):
        raise _error(
            value,
            "its ids are taken as they are: write `ids: hash`, or `ids: vocabulary`, in its entry "
            "of the schema",
        )
    if found is not None and not (0 <= found < below or below == 2**63 > found >= -(2**63)):
        raise _error(
            value,
            f"ids are in [0, {below}): raise its num_ids, or write `ids: hash`, in its entry of "
            "the schema",
        )
    return found


def _ids(value: Any, one: Callable[[Any], Any]) -> Any:
    return [one(each) for each in value] if isinstance(value, list) else one(value)


def _weights(value: Any) -> Sequence[float | None] | None:
    """The weights of ids that are beside them in another field; of one id, a number."""
    if value is None:
        return None
    return [_number(each) for each in (value if isinstance(value, list) else [value])]


def _pairs(value: Any, one: Callable[[Any], Any]) -> Sequence[Any] | None:
    """Pairs of an id and its weight: a list of objects, or an object with a weight by id."""
    match value:
        case None:
            return None
        case dict():
            return [(one(spelled_by(key)), _number(weight)) for key, weight in value.items()]
        case list():
            return [None if pair is None else _pair(pair, one) for pair in value]
        case _:
            raise _error(value, f"scored ids are a list of {PAIR}")


def _pair(value: Any, one: Callable[[Any], Any]) -> tuple[Any, float | None]:
    """The id and the weight of a scored id: of its two fields, the id is the one named `id`, or the
    one beside `weight`, else the first."""
    if not isinstance(value, dict) or len(value) != 2:
        raise _error(value, f"a scored id is {PAIR}")
    first, second = value
    if second == "id" or first == "weight":
        first, second = second, first
    return one(value[first]), _number(value[second])


def spelled_by(key: str) -> int | str:
    """The integer that a text spells as JSON would, as names of fields do, or the text."""
    digits = key.removeprefix("-")
    spells = digits.isascii() and digits.isdigit() and len(digits) < 20
    return int(key) if spells and str(int(key)) == key else key


def _time(value: Any) -> int | float | None:
    match value:
        case bool():
            pass
        case float() if math.isnan(value):
            return None
        case None | float():
            return value
        case int() if -(2**63) <= value < 2**63:
            return value
        case int():
            raise _error(value, "it is no int64 in ms")
    raise _error(
        value,
        "`timestamp_unit` is for numbers: for texts it must be the form of their dates, as "
        "yyyy-mm-dd",
    )


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise _error(value, "`timestamp_unit` is for texts: for numbers it must be a unit, as ms")


def _number(value: Any) -> float | None:
    if value is None or isinstance(value, float):
        return value
    if not isinstance(value, int):
        raise _error(value, "it must be a number, or else a feature under `sparse`")
    try:
        return float(value)
    except OverflowError:
        raise _error(value, "no float is this large") from None


def _needed(value: Any) -> float:
    found = _number(value)
    if found is None or not math.isfinite(found):
        raise _error(
            value,
            "must be a number: give a value for nulls in its entry, as `nulls: {value: 0}`",
        )
    return found


def _vector(value: Any) -> Sequence[float | None] | None:
    if value is None:
        return None
    if not isinstance(value, list):
        raise _error(value, "a vector is a list of numbers: take `width` out")
    return [_number(each) for each in value]


def _without_fraction(value: float) -> int:
    if abs(value) > MOST_EXACT:
        raise _error(
            value, "beyond 2^53 floats skip integers: write it as an integer, or as a text"
        )
    if not value.is_integer():
        raise _error(value, "an id is an integer or a text, or else under `dense`")
    return int(value)


def _error(value: Any, why: str) -> ValueError:
    text = json.dumps(value)
    return ValueError(f"holds {text if len(text) < 60 else text[:57] + '...'}, but {why}.")


def _keys(values: Sequence[Any]) -> pa.Array:
    """Sessions or times, all of one type."""
    unsigned = _kind(values[0]) is True
    return pa.array(values, pa.uint64() if unsigned else None)


def _floats(values: Sequence[Any]) -> pa.Array:
    return pa.array(values, pa.float64())


def _vectors(values: Sequence[Any]) -> pa.Array:
    return pa.array(values, pa.list_(pa.float64()))


def _lists(values: Sequence[Any]) -> pa.Array:
    """One id per row, or a list in every row if there is a list in any."""
    if not any(isinstance(value, list) for value in values):
        return _integers_or_texts(values, pa.int64(), pa.string(), _text_of)
    rows = [value if value is None or isinstance(value, list) else [value] for value in values]
    return _integers_or_texts(
        rows,
        pa.list_(pa.int64()),
        pa.list_(pa.string()),
        lambda row: [*map(_text_of, row)],
    )


def _scored(values: Sequence[Any]) -> pa.Array:
    def of(kind: pa.DataType) -> pa.DataType:
        return pa.list_(pa.struct([("id", kind), ("weight", pa.float64())]))

    return _integers_or_texts(
        values,
        of(pa.int64()),
        of(pa.string()),
        lambda row: [pair and (_text_of(pair[0]), pair[1]) for pair in row],
    )


def _integers_or_texts(
    values: Sequence[Any], integers: pa.DataType, texts: pa.DataType, spelled: Callable[[Any], Any]
) -> pa.Array:
    """Integers, or texts if any value is a text: an integer and the text that spells it have the
    same hash."""
    try:
        return pa.array(values, integers)
    except (pa.ArrowException, TypeError, OverflowError):
        return pa.array([None if one is None else spelled(one) for one in values], texts)


def _text_of(value: Any) -> str | None:
    return value if value is None else str(value)

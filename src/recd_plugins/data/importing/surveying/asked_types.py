"""The types as which columns of text are read if a schema says more about them than a sample shows:
columns without a value, codes that are numbers, and ids that have weights."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import get_args

import pyarrow as pa
import pyarrow.compute as pc

from recd_plugins.data.foreign import ForeignSchema, TextDates
from recd_plugins.data.importing.column_types import ColumnTypes, with_ids
from recd_plugins.data.importing.surveying.column_survey import ColumnSurvey
from recd_plugins.data.importing.surveying.sampled_types import id_type
from recd_plugins.data.importing.surveying.survey import NUMBER, Survey
from recd_plugins.data.importing.text_form import MORE_NULLS
from recd_plugins.data.schema import Fill

__all__ = ["types_asked"]


def types_asked(found: Survey, schema: ForeignSchema) -> ColumnTypes:
    """How the columns of a survey are read by a schema.

    Columns of text without a value in the sample, or with only NA and the like, are read as the
    schema says: as numbers, unless texts are allowed there. Whole numbers with leading zeros are
    numbers if the schema says so. So are columns of numbers and texts, so that the reader names the
    first text. Ids that have weights by the schema are read with weights, whatever the sample
    shows.
    """
    read_as = found.read_as
    if found.files[0].format != "text":
        return read_as
    types, parted, nulls = dict(read_as.types), dict(read_as.parted), dict(read_as.nulls)
    scored = {one.name for one in schema.sparse if one.paired}
    vectors = {one.name for one in schema.dense_columns if one.width is not None}
    hashed, of_schema = {*schema.hashed}, _types_in(schema)
    for column in found.columns:
        name, kind = column.name, types[column.name]
        asked = of_schema.get(name, pa.string())
        if name in scored and not _are_pairs(kind):
            parted[name] = found.form.lists.get(name) or parted.get(name, "|")
            types[name] = _pairs_of(column, asked)
        elif not column.values and with_ids(kind, pa.string()) == kind:
            types[name] = with_ids(
                kind, pa.float64() if name in vectors and kind != asked else asked
            )
        elif name not in hashed and kind == pa.string() != asked and _are_nothing(column):
            types[name] = asked
            nulls[name] = tuple(map(str, column.seen or ()))
        elif name not in hashed and asked != pa.string() and _are_padded(column):
            types[name] = with_ids(kind, pa.int64())
        elif name not in hashed and kind == pa.string() != asked and _some_number(column):
            types[name] = asked  # the reader names the first text that is none

    def numbers(names: Collection[str]) -> set[str]:
        """Columns of numbers whose commas the sample does not show."""
        return {
            name for name in names if name in types and types[name] in (pa.int64(), pa.float64())
        }

    return replace(
        read_as,
        types=types,
        parted=parted,
        nulls=nulls,
        decimal_commas=read_as.decimal_commas | numbers(found.form.decimal_commas),
        thousands=read_as.thousands | numbers(found.form.thousands),
    )


def _types_in(schema: ForeignSchema) -> dict[str, pa.DataType]:
    """The types of columns of text by their parts in a schema: a session is a number until a text
    shows that it is not, because numbers stay as they are."""
    found = dict.fromkeys(schema.columns, pa.float64())
    found |= dict.fromkeys((one.name for one in schema.sparse), pa.int64())
    if schema.timestamp is not None:
        texts = schema.timestamp_unit in get_args(TextDates)
        found[schema.timestamp] = pa.string() if texts else pa.int64()
    vectors = (one.name for one in schema.dense_columns if one.width is not None)
    found |= dict.fromkeys((*schema.hashed, *vectors), pa.string())
    for name in schema.session_columns:
        stands_in = schema.nulls.get(name)
        texts = isinstance(stands_in, Fill) and isinstance(stands_in.value, str)
        found[name] = pa.string() if texts else pa.int64()
    return found


def _are_padded(column: ColumnSurvey) -> bool:
    """Whether its texts are whole numbers, some of them like 007: a schema may still take them for
    numbers."""
    if column.seems != "texts" or column.seen is None:
        return False
    whole = pc.match_substring_regex(column.seen, r"^\s*-?\d{1,18}\s*$")
    return bool(pc.all(whole).as_py())


def _some_number(column: ColumnSurvey) -> bool:
    """Whether some of its texts are numbers."""
    if column.seen is None:
        return False
    return bool(pc.any(pc.match_substring_regex(column.seen, NUMBER)).as_py())


def _are_nothing(column: ColumnSurvey) -> bool:
    """Whether its texts would stand for nothing among numbers."""
    if column.seen is None or not len(column.seen):
        return False
    return bool(pc.all(pc.is_in(column.seen, value_set=pa.array(MORE_NULLS))).as_py())


def _are_pairs(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) and pa.types.is_struct(kind.value_type))


def _pairs_of(column: ColumnSurvey, asked: pa.DataType) -> pa.DataType:
    """The type of ids with weights if the sample has none with a weight, or only single ones; it
    may still show what the ids are."""
    ids = asked
    if column.values and column.seen is not None:
        texts = column.seen.cast(pa.string())
        ids = id_type(pc.replace_substring_regex(texts, r":[^:]*$", ""))
    return pa.list_(pa.struct([("id", ids), ("weight", pa.float64())]))

"""Conversion of ids of any type, one or a list per row, to lists of int64 in [0, num_ids)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from recd_plugins.data.conform.floats import finite, not_finite, numbers_of
from recd_plugins.data.conform.spot import Spot
from recd_plugins.data.conform.values import (
    NO_IDS,
    are_integers,
    are_texts,
    has_missing,
    hashes,
    identifies,
    integers,
    is_list,
    missing,
    plain,
    plain_type,
    text_error,
    with_nulls,
)
from recd_plugins.data.foreign import ForeignFeature
from recd_plugins.data.schema import IDS, WEIGHTS, Fill
from recd_plugins.errors import DataError, so_many

__all__ = [
    "feature_type_problem",
    "id_error",
    "ids_of",
    "missing_rows",
    "missing_weights",
    "weights_of",
    "weights_type_problem",
]

I64 = npt.NDArray[np.int64]
F32 = npt.NDArray[np.float32]
MOST_OFFSET = 2**31 - 1


class Elements(NamedTuple):
    """Rows of elements, laid end to end."""

    values: pa.Array
    """[lengths.sum()]."""
    lengths: I64
    """[N]; 0 for a null row."""
    null_rows: npt.NDArray[np.bool_] | None
    """[N] which rows are null; None if none is. In a column of scalars, a null is in `values`."""
    weights: F32 | None = None
    """[lengths.sum()] of pairs, and of ids whose weights were put beside them; a null weight is
    NaN."""

    @property
    def absent(self) -> npt.NDArray[np.bool_] | None:
        """Which elements are null or have no finite weight; None if there are none."""
        ids = missing(self.values) if has_missing(self.values) else None
        if self.weights is None or finite(self.weights):
            return ids
        lacking = not_finite(self.weights)
        return lacking if ids is None else ids | lacking

    def per_row(self, marked: npt.NDArray[np.bool_]) -> I64:
        """[N] how many of the marked elements each row has."""
        rows = np.repeat(np.arange(len(self.lengths)), self.lengths)
        return np.bincount(rows[marked], minlength=len(self.lengths))

    def row_of(self, marked: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """[N] which rows hold at least one of the marked elements."""
        return self.per_row(marked) > 0


def ids_of(
    array: pa.Array,
    weights: pa.Array | None = None,
    *,
    feature: ForeignFeature,
    spot: Spot,
    in_range: bool = False,
) -> pa.Array:
    """The rows as lists of ids, some of which their `weights` may leave out if these are a column
    of their own. `in_range` says that the ids are known to be in range."""
    whole = _as_they_are(array, feature) if weights is None else None
    if whole is None:
        whole, _ = _converted(array, weights, feature, spot)
    elif in_range:
        return whole
    if feature.ids == "as_is":
        _check_range(whole, feature, spot)
    return whole


def weights_of(
    array: pa.Array, weights: pa.Array | None = None, *, feature: ForeignFeature, spot: Spot
) -> pa.Array:
    """The rows as lists of weights, as long as the lists of `ids_of`."""
    _, found = _converted(array, weights, feature, spot)
    return found


def _to_ids(values: pa.Array, feature: ForeignFeature, spot: Spot) -> npt.NDArray[np.int64]:
    """The id of each value; none is null."""
    if feature.ids == "hash":
        buckets = hashes(values, spot, feature.hash_seed) % np.uint64(feature.num_ids)
        return buckets.view(np.int64)
    if feature.ids == "vocabulary":
        return _by_vocabulary(values, feature, spot)
    if are_texts(values.type):
        raise text_error(values, spot)
    if pa.types.is_null(values.type):
        return np.empty(0, np.int64)
    found = integers(values, spot)
    if found.dtype == np.uint64 and len(found) and found.max() > np.iinfo(np.int64).max:
        raise spot.error(
            f"holds {found.max()}, which is beyond int64",
            "Write `ids: hash` in its entry of the schema, which takes integers of any size.",
        )
    return found.view(np.int64)


def _by_vocabulary(values: pa.Array, feature: ForeignFeature, spot: Spot) -> npt.NDArray[np.int64]:
    from recd_plugins.data.conform.vocabulary import load_vocabulary  # numba

    if feature.vocabulary is None:
        raise spot.error(
            "has `ids: vocabulary` but no vocabulary yet",
            "`recd data import` makes it, with the table; or name its file in the entry of the "
            "schema, as `vocabulary: FILE`, or write `ids: hash`.",
        )
    found = load_vocabulary(feature.vocabulary)
    if found.num_ids > feature.num_ids:
        raise spot.error(
            f"has a vocabulary of {so_many(found.num_ids, 'id')}, {feature.vocabulary}, and "
            f"num_ids is {feature.num_ids:,}",
            f"Set num_ids to {found.num_ids} in its entry of the schema.",
        )
    return found.encode(hashes(values, spot))


def missing_rows(array: pa.Array, feature: ForeignFeature) -> npt.NDArray[np.bool_]:
    """[N] which rows are null, or have a null or a non-finite weight in their list."""
    elements = _elements(array, feature)
    absent, null_rows = elements.absent, elements.null_rows
    rows = np.zeros(len(array), np.bool_) if absent is None else elements.row_of(absent)
    return rows if null_rows is None else rows | null_rows


def missing_weights(array: pa.Array) -> npt.NDArray[np.bool_]:
    """[N] which rows of a column of weights are null, or have one that is not finite."""
    found = _as_stored(array, paired=False)
    return _null_rows(array, found) | found.row_of(not_finite(numbers_of(found.values)))


def weights_type_problem(kind: pa.DataType, feature: ForeignFeature) -> tuple[str, str] | None:
    """What is wrong with the type of a column of weights, and the cure; or None."""
    inner = plain_type(kind)
    element = plain_type(inner.value_type) if is_list(inner) else inner
    if are_integers(element) or pa.types.is_null(element):
        return None
    return (
        f"is {kind}, but the weights of {feature.name!r} must be lists of numbers",
        "Make it such lists where the table is made, or take `weights` out of the entry of the "
        "schema.",
    )


def feature_type_problem(kind: pa.DataType, feature: ForeignFeature) -> tuple[str, str] | None:
    """What is wrong with a column's type for this feature, and the cure; or None."""
    inner = plain_type(kind)
    name = feature.name
    if feature.paired:
        nothing = pa.types.is_null(inner.value_type if is_list(inner) else inner)
        return None if nothing else _pairs_problem(inner, feature)
    if pa.types.is_map(inner) or (is_list(inner) and pa.types.is_struct(inner.value_type)):
        return (
            f"is {kind}",
            f"Ids with weights are a feature with `scored: true`: write that for {name}."
            if feature.weights is None
            else f"Its ids come with weights: write `scored: true` for {name}, without `weights`.",
        )
    element = plain_type(inner.value_type) if is_list(inner) else inner
    return _element_problem(kind, element, feature)


def _pairs_problem(kind: pa.DataType, feature: ForeignFeature) -> tuple[str, str] | None:
    cure = (
        "Make it a list<struct<id, weight>> or a map<id, weight> where the table is made; or, in "
        "its entry of the schema, name the column that has the weights, as `weights: COLUMN`, or "
        "take `scored` out."
    )
    if pa.types.is_map(kind):
        parts = [kind.key_type, kind.item_type]
    elif is_list(kind) and pa.types.is_struct(kind.value_type):
        parts = [field.type for field in kind.value_type]
    else:
        return (f"is {kind}, but scored ids are pairs of an id and a weight", cure)
    if len(parts) != 2 or not are_integers(parts[1]):
        return (f"is {kind}, but scored ids are pairs of an id and then a weight", cure)
    return _element_problem(kind, parts[0], feature)


def _element_problem(
    kind: pa.DataType, element: pa.DataType, feature: ForeignFeature
) -> tuple[str, str] | None:
    if not identifies(element):
        return (
            f"is {kind}, {NO_IDS}",
            "Make such a column of it where the table is made, or take it out of the schema.",
        )
    if feature.ids == "as_is" and are_texts(element):
        return (
            f"is {kind}, but its ids are taken as they are, so they cannot be texts",
            "Write `ids: hash`, or `ids: vocabulary`, in its entry of the schema.",
        )
    return None


def id_error(
    where: object, feature: str, found: int, num_ids: int, row: int | None = None
) -> DataError:
    """The error for an id outside [0, num_ids)."""
    in_row = "" if row is None else f" in row {row:,}"
    cure = (
        "Raise its num_ids in the schema; in a schema of foreign files, `ids: hash` takes any id."
    )
    if found < 0:
        cure = (
            "No table has rows below 0: in a schema of foreign files, `ids: hash` takes any id, "
            f"and `missing: [{found}]` leaves out one that stands for none."
        )
    return DataError(
        f"{where}: feature {feature!r} holds id {found}{in_row}, outside [0, {num_ids}). {cure}"
    )


def _as_they_are(array: pa.Array, feature: ForeignFeature) -> pa.Array | None:
    """The same memory if it already holds int64 lists without nulls; None otherwise."""
    kind = array.type
    if (
        feature.ids != "as_is"
        or feature.missing
        or not (pa.types.is_list(kind) or pa.types.is_large_list(kind))
    ):
        return None
    if kind.value_type != pa.int64() or array.null_count or array.values.null_count:
        return None
    return _lists(array.offsets, array.values)


def _converted(
    array: pa.Array, scores: pa.Array | None, feature: ForeignFeature, spot: Spot
) -> tuple[pa.Array, pa.Array | None]:
    """Lists of ids, and for a scored feature lists of their weights; otherwise None."""
    if scores is None:
        elements = _elements(array, feature)
    else:
        elements = _with_weights(array, scores, feature, spot)
    if elements.weights is not None and isinstance(feature.nulls, Fill):
        weighed = np.nan_to_num(elements.weights, nan=1, posinf=1, neginf=1)
        elements = elements._replace(weights=weighed)
    values, lengths, null_rows, weights = elements
    absent = elements.absent
    if absent is None and null_rows is None:
        ids = _to_ids(values, feature, spot._replace(lengths=lengths))
        return _both(lengths, ids, weights)
    if feature.nulls in ("error", "drop"):
        rows = np.zeros(len(lengths), np.bool_) if null_rows is None else null_rows
        raise spot.error_at(
            rows if absent is None else rows | elements.row_of(absent),
            "holds a null" if weights is None else "holds a null, or a weight that is not finite,",
            "Give a value for nulls in its entry of the schema, as `nulls: empty` (no id) or "
            "`nulls: {value: ...}`.",
        )
    kept = values if absent is None else values.filter(pa.array(~absent))
    left = lengths if absent is None else lengths - elements.per_row(absent)
    ids = _to_ids(kept, feature, spot._replace(lengths=left))
    if not isinstance(feature.nulls, Fill):
        return _both(left, ids, weights if weights is None or absent is None else weights[~absent])
    one = _to_ids(pa.array([feature.nulls.value]), feature, spot)
    if absent is not None:
        filled = np.repeat(one, len(values))
        filled[~absent] = ids
        ids = filled
    if null_rows is not None:
        starts = (lengths.cumsum() - lengths)[null_rows]
        ids = np.insert(ids, starts, one)
        weights = None if weights is None else np.insert(weights, starts, np.float32(1))
        lengths = lengths + null_rows
    return _both(lengths, ids, weights)


def _both(lengths: I64, ids: I64, weights: F32 | None) -> tuple[pa.Array, pa.Array | None]:
    offsets = _offsets(lengths)
    return _lists(offsets, ids), None if weights is None else _lists(offsets, weights, WEIGHTS)


def _elements(array: pa.Array, feature: ForeignFeature) -> Elements:
    """The rows' elements; those that stand for a null are null."""
    elements = _as_stored(array, paired=feature.paired)
    if not feature.missing:
        return elements
    return elements._replace(values=with_nulls(elements.values, feature.missing))


def _with_weights(ids: pa.Array, scores: pa.Array, feature: ForeignFeature, spot: Spot) -> Elements:
    """The elements of `ids` with weights from a column of their own. Where ids or weights are null,
    so are both."""
    elements, scored = _elements(ids, feature), _as_stored(scores, paired=False)
    weights, lengths = numbers_of(scored.values), scored.lengths
    lacking = _null_rows(ids, elements) | _null_rows(scores, scored)
    if lacking.any():
        weights = weights[np.repeat(~lacking, lengths)]
        left = np.where(lacking, 0, lengths)
        none = np.where(lacking, elements.lengths, 0)
        weights = np.insert(weights, np.repeat(left.cumsum() - left, none), np.float32(np.nan))
        lengths = left + none
    differ = lengths != elements.lengths
    if differ.any():
        at = int(differ.argmax())
        raise spot.error_at(
            differ,
            f"holds {so_many(int(elements.lengths[at]), 'id')} and {feature.weights!r} "
            f"{so_many(int(lengths[at]), 'weight')}",
            "Each id needs one: make the lists equally long where the table is made, or take "
            "`weights` out of the entry of the schema.",
        )
    return elements._replace(weights=weights)


def _null_rows(array: pa.Array, elements: Elements) -> npt.NDArray[np.bool_]:
    """[N] which rows of a column of lists or of scalars are null."""
    if not is_list(plain_type(array.type)):
        return missing(elements.values)
    nothing = np.zeros(len(array), np.bool_)
    return nothing if elements.null_rows is None else elements.null_rows


def _as_stored(array: pa.Array, *, paired: bool) -> Elements:
    array = _but_dictionaries(array)
    if isinstance(array, pa.DictionaryArray) and is_list(array.type.value_type):
        array = array.dictionary_decode()
    if paired and pa.types.is_null(array.type):
        nothing = np.zeros(len(array), np.int64)
        null_rows = nothing == 0 if len(array) else None
        return Elements(array[:0], nothing, null_rows, np.empty(0, np.float32))
    if not (is_list(array.type) or pa.types.is_map(array.type)):
        return Elements(array, np.ones(len(array), np.int64), None)
    null_rows = None
    if array.null_count:
        null_rows = array.is_null().to_numpy(zero_copy_only=False)
    if not paired:
        lengths = pc.list_value_length(array).fill_null(0).to_numpy().astype(np.int64)
        return Elements(_but_dictionaries(array.flatten()), lengths, null_rows)
    there = array if null_rows is None else array.drop_null()
    lengths = np.zeros(len(array), np.int64)
    if isinstance(there, pa.MapArray):
        offsets = there.offsets.to_numpy()
        counts, first, count = np.diff(offsets), offsets[0], offsets[-1] - offsets[0]
        ids, weights = there.keys.slice(first, count), there.items.slice(first, count)
    else:
        counts, pairs = pc.list_value_length(there).to_numpy(), there.flatten()
        both = (pairs, pairs) if pa.types.is_null(pairs.type) else pairs.flatten()
        ids, weights = both  # a null pair makes both null
    lengths[slice(None) if null_rows is None else ~null_rows] = counts
    return Elements(_but_dictionaries(ids), lengths, null_rows, numbers_of(weights))


def _but_dictionaries(array: pa.Array) -> pa.Array:
    """Plain values, or a dictionary of them, so that each different value is hashed once."""
    return array if isinstance(array, pa.DictionaryArray) else plain(array)


def _offsets(lengths: I64) -> I64:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def _lists(
    offsets: pa.Array | I64, values: pa.Array | I64 | F32, kind: pa.ListType = IDS
) -> pa.Array:
    """Lists of `kind` over the given values; large lists if there are more than 2^31 - 1 values."""
    values = pa.array(values, kind.value_type)
    offsets = pa.array(offsets) if isinstance(offsets, np.ndarray) else offsets
    if len(values) > MOST_OFFSET:
        large = pa.large_list(kind.value_field)
        return pa.LargeListArray.from_arrays(offsets.cast(pa.int64()), values, type=large)
    return pa.ListArray.from_arrays(offsets.cast(pa.int32(), safe=False), values, type=kind)


def _check_range(lists: pa.Array, feature: ForeignFeature, spot: Spot) -> None:
    ids = lists.flatten().to_numpy()
    if not len(ids):
        return
    low, high = int(ids.min()), int(ids.max())
    if low >= 0 and high < feature.num_ids:
        return
    worst = low if low < 0 else high
    within = spot._replace(lengths=pc.list_value_length(lists).to_numpy().astype(np.int64))
    row = within.row(int((ids == worst).argmax()))
    raise id_error(spot.where, spot.column, worst, feature.num_ids, row)

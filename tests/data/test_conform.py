"""Value tests: columns of somebody else's files, and the conformed ones that they become."""

from __future__ import annotations

import json
import math
import re
import struct
from collections import Counter
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import yaml

from recd_plugins.config import parse
from recd_plugins.data.conform.dates import DATE_DIGITS, date_digits, texts_to_ms
from recd_plugins.data.conform.hashing import hash_integers, hash_texts
from recd_plugins.data.conform.keys import times_of
from recd_plugins.data.conform.rows import conform
from recd_plugins.data.conform.spot import Spot
from recd_plugins.data.foreign import DenseColumn, ForeignSchema
from recd_plugins.data.schema import IDS, Fill, Schema, SparseFeature, Vector
from recd_plugins.errors import DataError, RegistryError


def schema(**options: Any) -> ForeignSchema:
    return parse(ForeignSchema, {"session_id": None, "timestamp": None, **options}, "schema")


def text_hash(text: bytes, seed: int = 0) -> int:
    data = np.frombuffer(text, np.uint8) if text else np.empty(0, np.uint8)
    return int(hash_texts(data, np.array([0, len(text)]), seed)[0])


@pytest.mark.parametrize(
    ("text", "known"),
    [
        (b"", 0xEF46DB3751D8E999),
        (b"a", 0xD24EC4F1A98C6E5B),
        (b"abc", 0x44BC2CF5AD770999),
        (b"Nobody inspects the spammish repetition", 0xFBCEA83C8A378BF1),
    ],
)
def test_texts_are_hashed_by_xxh64(text: bytes, known: int) -> None:
    """The values of the reference implementation."""
    assert text_hash(text) == known


def test_a_text_that_spells_an_integer_is_that_integer() -> None:
    numbers = [0, 7, -7, 12, 2**63 - 1, -(2**63)]
    for number in numbers:
        whole = hash_integers(np.array([number]), 3)[0]
        assert text_hash(str(number).encode(), 3) == whole
    assert text_hash(str(2**64 - 1).encode()) == hash_integers(np.array([2**64 - 1], np.uint64))[0]
    others = [b"007", b"+7", b"-0", b"7.0", b" 7", b"18446744073709551616", b"-9223372036854775809"]
    hashes = {text_hash(text, 3) for text in others} | {
        *hash_integers(np.array(numbers), 3).tolist()
    }
    assert len(hashes) == len(others) + len(numbers)


def test_an_integer_is_its_eight_bytes() -> None:
    """The path of whole words and that of bytes agree: 32 zeros are no number, 8 bytes are one."""
    word = struct.pack("<q", -1234567890123)
    assert text_hash(word) == hash_integers(np.array([-1234567890123]))[0]


def test_canonical_columns_stay_on_their_memory() -> None:
    mine = schema(dense=["price"], sparse=[{"name": "item", "num_ids": 9}])
    chunk = pa.table(
        {
            "label": pa.array([0, 1, 0], pa.float32()),
            "price": pa.array([1, 2, 3], pa.float32()),
            "item": pa.array([[1], [2, 3], []], pa.list_(pa.int64())),
        }
    ).slice(1)
    found = conform(chunk, mine, "here")
    assert found.to_pydict() == chunk.to_pydict()
    for name in ("label", "price"):
        assert (
            found[name].chunk(0).buffers()[1].address == chunk[name].chunk(0).buffers()[1].address
        )
    ids, before = found["item"].chunk(0), chunk["item"].chunk(0)
    assert ids.values.buffers()[1].address == before.values.buffers()[1].address


def test_rows_are_of_one_type_whatever_lists_they_come_in() -> None:
    """As Polars writes lists: some without a null, which stay on their memory, beside others."""
    lists = pa.large_list(pa.int64())
    parts = [pa.array([[1], [2, 3]], lists), pa.array([None, [4]], lists), pa.array([], lists)]
    rows = pa.table({"label": [0.0] * 4, "item": pa.chunked_array(parts)})
    found = conform(rows, schema(sparse=[{"name": "item", "num_ids": 9}]), "here")
    assert found["item"].type == IDS
    assert found["item"].to_pylist() == [[1], [2, 3], [], [4]]


def test_what_a_schema_becomes() -> None:
    mine = schema(
        session_id=["user", "visit"],
        timestamp="user",
        labels=[{"name": "click"}, {"name": "dwell", "kind": "regression", "weight": 0.5}],
        sample_weight="w",
        dense=["price", {"name": "vector", "width": 3}],
        sparse=[{"name": "user", "num_ids": 5, "ids": "hash", "kind": "user"}],
    )
    whole = mine.conformed
    assert whole.columns == (
        *("session_id", "user_key", "click", "dwell", "w", "price", "vector", "user"),
    )
    assert whole.label == "click"
    assert whole.vectors == (Vector(name="vector", width=3),)
    assert whole.dense_width == 4
    assert whole.sparse == (SparseFeature(name="user", num_ids=5, kind="user"),)
    assert Schema.from_json(whole.to_json(), "here") == whole
    assert parse(ForeignSchema, json.loads(mine.to_json()), "here") == mine


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"label": "a", "labels": [{"name": "b"}]}, "label: names label 'a' beside labels b"),
        ({"labels": [{"name": "b", "kind": "graded"}]}, "labels.0..grades: .*as `grades: 5`"),
        ({"session_id": []}, "session_id: names no column"),
        ({"dense": [{"name": "a", "nulls": "empty"}]}, "dense: column 'a' has a value in every"),
        ({"dense": [{"name": "a", "nulls": {"value": "x"}}]}, "nulls: .*'x' is not"),
        ({"nulls": {"a": "drop"}}, "nulls: no plain column 'a'"),
        ({"sparse": [{"name": "a", "num_ids": 1}], "nulls": {"a": "drop"}}, "in the entry of 'a'"),
        ({"sparse": [{"name": "a", "num_ids": 1, "vocabulary": "v"}]}, "vocabulary: FILE"),
        ({"dense": ["label"]}, "column 'label' is named twice"),
    ],
)
def test_a_schema_that_contradicts_itself(options: dict[str, Any], says: str) -> None:
    with pytest.raises(RegistryError, match=says):
        schema(**options)


def test_rows_are_dropped_and_counted_and_those_that_are_left_keep_their_numbers() -> None:
    mine = schema(
        nulls={"label": "drop"},
        sparse=[{"name": "item", "num_ids": 9, "nulls": "drop"}, {"name": "tag", "num_ids": 3}],
    )
    chunk = pa.table(
        {
            "label": [0, 1, None, 1, 1],
            "item": [[1], [None], [2], None, [3]],
            "tag": [0, 0, 9, 9, 1],
        }
    )
    dropped: Counter[str] = Counter()
    found = conform(chunk, mine, "here", dropped=dropped)
    assert found.to_pydict() == {"label": [0, 1], "item": [[1], [3]], "tag": [[0], [1]]}
    assert dropped == {"label": 1, "item": 2}
    wrong = chunk.set_column(2, "tag", pa.array([0, 0, 9, 9, 7]))
    with pytest.raises(DataError, match=r"here: feature 'tag' holds id 7 in row 104, outside"):
        conform(wrong, mine, "here", first_row=100)


PAIRS = [[(7, 0.5), (3, 2.0)], None, [], [(1, None), None, (2, 1.0)], [(None, 4.0)]]


@pytest.mark.parametrize("form", ["structs", "map", "large", "sliced"])
@pytest.mark.parametrize(
    ("nulls", "ids", "weights"),
    [
        ("empty", [[7, 3], [], [], [2], []], [[0.5, 2], [], [], [1], []]),
        ({"value": 9}, [[7, 3], [9], [], [1, 9, 2], [9]], [[0.5, 2], [1], [], [1, 1, 1], [4]]),
        ("drop", [[7, 3], []], [[0.5, 2], []]),
    ],
    ids=["empty", "value", "drop"],
)
def test_scored_ids_are_ids_and_weights(
    form: str, nulls: Any, ids: list[list[int]], weights: list[list[float]]
) -> None:
    pair = pa.struct([("item", pa.uint16()), ("score", pa.float64())])
    structs = [
        row and [pair and {"item": pair[0], "score": pair[1]} for pair in row] for row in PAIRS
    ]
    column = pa.array(structs, pa.list_(pair))
    if form == "large":
        column = column.cast(pa.large_list(pair))
    elif form == "sliced":
        column = pa.array([structs[0], *structs, structs[3]], pa.list_(pair)).slice(1, 5)
    elif form == "map":  # which has no null pair and no null id
        rows = [[(1, None), (2, 1.0)] if row and None in row else row for row in PAIRS]
        rows[4] = [(9, 4.0)] if nulls == {"value": 9} else None
        column = pa.array(rows, pa.map_(pa.uint16(), pa.float64()))
        if nulls == {"value": 9}:
            ids, weights = [*ids[:3], [1, 2], [9]], [*weights[:3], [1, 1], [4]]
    mine = schema(sparse=[{"name": "cart", "num_ids": 10, "scored": True, "nulls": nulls}])
    chunk = pa.table({"label": [0] * 5, "cart": column})
    found = conform(chunk, mine, "here")
    assert found.column_names == ["label", "cart", "cart_weights"]
    assert found["cart"].to_pylist() == ids
    assert found["cart_weights"].to_pylist() == weights


@pytest.mark.parametrize(
    ("column", "left"),
    [
        (pa.array([[3, -1], [-1, -1], None, [0, 5]]), [[3], [], [], [5]]),
        (pa.array([[3, -1], [-1], [], [5, 0]], pa.list_(pa.int32())), [[3], [], [], [5]]),
        (pa.array([3, -1, None, 0]), [[3], [], [], []]),
        (pa.array([3.0, -1.0, float("nan"), 5.0]), [[3], [], [], [5]]),
        (pa.array([3, 0, 255, 5], pa.uint8()), [[3], [], [255], [5]]),
        (pa.array([3, -1, 3, 0]).dictionary_encode(), [[3], [], [3], []]),
        (pa.array([3, -1, None, 0]).cast(pa.decimal128(20, 0)), [[3], [], [], []]),
        (pa.array([Decimal(3), Decimal(-1), None, Decimal(0)]), [[3], [], [], []]),
        (pa.array(np.array([3, -1, 0, 5], np.float16)), [[3], [], [], [5]]),
        (pa.array([3.0, -1.0, -0.0, 0.0]), [[3], [], [], []]),
        (pa.array([False, True, None, False]), [[], [1], [], []]),
    ],
)
def test_a_value_that_stands_for_a_null_is_one(column: pa.Array, left: list[list[int]]) -> None:
    given = schema(sparse=[{"name": "f", "num_ids": 256, "missing": [-1, "0"]}])
    table = pa.table({"label": [0.0] * 4, "f": column})
    assert conform(table, given, "t")["f"].to_pylist() == left


def test_the_largest_integer_may_stand_for_a_null() -> None:
    """As -1 becomes in columns without a sign."""
    largest = 2**64 - 1
    table = pa.table({"label": [0.0] * 3, "f": pa.array([3, largest, 5], pa.uint64())})
    given = schema(sparse=[{"name": "f", "num_ids": 256, "missing": [str(largest)]}])
    assert conform(table, given, "t")["f"].to_pylist() == [[3], [], [5]]
    with pytest.raises(RegistryError, match=f"Write it as a text: '{largest}'"):
        schema(sparse=[{"name": "f", "num_ids": 256, "missing": [largest]}])


def test_texts_may_stand_for_a_null_and_have_no_bucket() -> None:
    feature = {"name": "f", "num_ids": 1_000, "ids": "hash"}
    rows = [["a", "-1", "none"], ["none"], ["b"], ["-1", "a"]]
    for kind in (pa.string(), pa.large_string(), pa.binary()):
        table = pa.table({"label": [0.0] * 4, "f": pa.array(rows).cast(pa.list_(kind))})
        found = conform(table, schema(sparse=[{**feature, "missing": [-1, "none"]}]), "t")
        whole = conform(table, schema(sparse=[feature]), "t")["f"].to_pylist()
        assert found["f"].to_pylist() == [whole[0][:1], [], whole[2], whole[3][1:]]


def test_what_stands_for_a_null_is_treated_as_nulls_are() -> None:
    feature = {"name": "f", "num_ids": 10, "missing": [-1]}
    table = pa.table({"label": [0.0] * 3, "f": [4, -1, 2]})
    filled = schema(sparse=[{**feature, "nulls": {"value": 7}}])
    assert conform(table, filled, "t")["f"].to_pylist() == [[4], [7], [2]]
    dropped = Counter[str]()
    left = conform(table, schema(sparse=[{**feature, "nulls": "drop"}]), "t", dropped=dropped)
    assert (left["f"].to_pylist(), dropped) == ([[4], [2]], {"f": 1})
    with pytest.raises(DataError, match="'f' holds a null in row 1"):
        conform(table, schema(sparse=[{**feature, "nulls": "error"}]), "t")


def test_a_pair_whose_id_stands_for_a_null_is_left_out_with_its_weight() -> None:
    pairs = pa.array([[(1, 0.5), (-1, 2.0)], [(3, 4.0)]], pa.map_(pa.int64(), pa.float32()))
    given = schema(sparse=[{"name": "f", "num_ids": 10, "scored": True, "missing": [-1]}])
    found = conform(pa.table({"label": [0.0, 1.0], "f": pairs}), given, "t")
    assert found["f"].to_pylist() == [[1], [3]]
    assert found[given.conformed.sparse[0].weights_name].to_pylist() == [[0.5], [4.0]]


@pytest.mark.parametrize("nulls", ["empty", {"value": 9}, "drop"], ids=["empty", "value", "drop"])
@pytest.mark.parametrize("form", ["lists", "large", "sliced", "chunked"])
def test_weights_in_a_column_of_their_own_are_as_those_of_pairs(form: str, nulls: Any) -> None:
    pair = pa.struct([("item", pa.uint16()), ("score", pa.float64())])
    rows = [row and [each or (None, None) for each in row] for row in PAIRS]
    structs = [row and [{"item": each[0], "score": each[1]} for each in row] for row in rows]
    chunk = pa.table({"label": [0] * 5, "cart": pa.array(structs, pa.list_(pair))})
    feature = {"name": "cart", "num_ids": 10, "nulls": nulls}
    together = conform(chunk, schema(sparse=[{**feature, "scored": True}]), "here")
    apart = [
        pa.array([row and [each[at] for each in row] for row in rows], pa.list_(kind))
        for at, kind in enumerate((pa.uint16(), pa.float64()))
    ]
    if form == "large":
        apart = [one.cast(pa.large_list(one.type.value_type)) for one in apart]
    elif form == "sliced":
        apart = [pa.concat_arrays([one[:2], one, one[:1]]).slice(2, 5) for one in apart]
    columns = [pa.chunked_array([one]) for one in apart]
    if form == "chunked":  # each in chunks of its own
        columns = [pa.chunked_array([one[:at], one[at:]]) for at, one in enumerate(apart, 2)]
    mine = schema(sparse=[{**feature, "weights": "score"}])
    assert mine.columns == ("label", "cart", "score")
    table = pa.table({"label": [0] * 5, "cart": columns[0], "score": columns[1]})
    dropped = Counter[str]()
    found = conform(table, mine, "here", dropped=dropped)
    assert found == together
    assert bool(dropped) == (nulls == "drop")


def test_weights_of_a_column_of_their_own_may_be_absent_or_of_one_id_a_row() -> None:
    mine = schema(sparse=[{"name": "cart", "num_ids": 10, "weights": "score", "ids": "hash"}])
    for ids, score, lengths, weights in (
        (["a", None, "b"], pa.array([2, 1, None]), [1, 0, 0], [[2], [], []]),
        ([["a", "b"], [], None], pa.array([[2, math.inf], [], None]), [1, 0, 0], [[2], [], []]),
        ([["a", "b"], [], ["c"]], pa.array([None, [], [1.0]]), [0, 0, 1], [[], [], [1]]),
        ([["a", "b"], [], None], pa.nulls(3), [0, 0, 0], [[], [], []]),
    ):
        table = pa.table({"label": [0] * 3, "cart": ids, "score": score})
        found = conform(table, mine, "here")
        assert pc.list_value_length(found["cart"]).to_pylist() == lengths
        assert found["cart_weights"].to_pylist() == weights


def test_weights_of_a_column_of_their_own_that_do_not_fit_are_refused() -> None:
    mine = schema(sparse=[{"name": "cart", "num_ids": 10, "weights": "score"}])
    ids = [[1, 2], [3], []]
    for score, what in (
        ([[1.0, 2.0], [1.0, 2.0], []], "'cart' holds 1 id and 'score' 2 weights in row 1"),
        (
            [["x", "y"], ["z"], []],
            "column 'score' is list<item: string>, but the weights of",
        ),
    ):
        with pytest.raises(DataError, match=re.escape(what)):
            conform(pa.table({"label": [0] * 3, "cart": ids, "score": score}), mine, "here")
    with pytest.raises(DataError, match="column 'score' is not there"):
        conform(pa.table({"label": [0] * 3, "cart": ids}), mine, "here")
    pairs = pa.array([[(1, 0.5)], [], []], pa.map_(pa.int64(), pa.float32()))
    table = pa.table({"label": [0] * 3, "cart": pairs, "score": [[1.0], [], []]})
    with pytest.raises(DataError, match="`scored: true` for cart, without `weights`"):
        conform(table, mine, "here")


def test_a_scored_feature_needs_pairs() -> None:
    mine = schema(sparse=[{"name": "cart", "num_ids": 10, "scored": True}])
    with pytest.raises(DataError, match=r"column 'cart' is list<item: int64>, but scored ids are"):
        conform(pa.table({"label": [0], "cart": [[1]]}), mine, "here")


def test_counts_may_be_scaled_by_their_logarithm() -> None:
    dense = (
        DenseColumn(name="count", scale="log", nulls=Fill(value=0)),
        DenseColumn(name="vector", width=2, scale="log"),
        "plain",
    )
    schema = ForeignSchema(session_id=None, timestamp=None, dense=dense)
    counts = pa.array([0, 735_072, None, -3], pa.int64())
    vectors = pa.array([[1.0, -1.0]] * 4, pa.list_(pa.float64()))
    table = pa.table(
        {"label": [0, 1, 0, 1], "count": counts, "vector": vectors, "plain": [1e6] * 4}
    )
    found = conform(table, schema, "a file")
    expected = np.log1p(np.array([0, 735_072, 0, 3], np.float32)) * [1, 1, 1, -1]
    np.testing.assert_array_equal(found["count"], expected.astype(np.float32))
    two = np.log1p(np.float32(1))
    assert found["vector"].to_pylist() == [[two, -two]] * 4
    assert found["plain"].to_pylist() == [1e6] * 4


@pytest.mark.parametrize("has_entry", [True, False])
def test_the_cure_of_a_number_that_is_none_works_as_typed(has_entry: bool) -> None:
    """In a column's entry, or under `nulls` of the schema where it has none, as `label` has."""
    rows = pa.table({"clicked": [1.0, None], "item": [1, 2]})
    label: dict[str, Any] = {"labels": [{"name": "clicked"}]} if has_entry else {"label": "clicked"}
    options: dict[str, Any] = {"sparse": [{"name": "item", "num_ids": 9}]}
    with pytest.raises(DataError) as raised:
        conform(rows, schema(**options, **label), "rows")
    in_entry, below = re.findall(r"`(nulls: [^`]*\}+)`", str(raised.value))
    if has_entry:
        label["labels"][0] |= yaml.safe_load(in_entry)
    else:
        options |= yaml.safe_load(below)
    left = conform(rows, schema(**options, **label), "rows")
    assert left["clicked"].to_pylist() == [1, 0]


def test_a_time_that_is_none_is_named_beside_fractions_and_nulls_are_filled_by_a_day() -> None:
    spot = Spot("a file", "at")
    texts = ["1970-01-01 00:00:01.123456789", "9999-12-31", "1970-01-01T01Z", "1970-01-01 02+02"]
    found = texts_to_ms(pa.array(texts), "yyyy-mm-dd", spot)
    assert found.to_pylist() == [1_123, 253_402_214_400_000, 3_600_000, 0]
    with pytest.raises(DataError, match=r"holds 'never', which is no date .* in row 4\."):
        texts_to_ms(pa.array([*texts, "never"]), "yyyy-mm-dd", spot)
    assert date_digits(pa.array([20240501, None])) == "yyyymmdd"
    days = pa.array(["02/01/1970", None])
    with pytest.raises(DataError, match=r'at: {value: "01/01/1970"}'):
        times_of(days, "dd/mm/yyyy", "error", spot)
    filled = times_of(days, "dd/mm/yyyy", Fill(value="01/01/1970"), spot)
    assert filled.to_pylist() == [86_400_000, 0]


@pytest.mark.parametrize(
    ("unit", "value"),
    [
        ("ms", 1_700_000_000_000),
        ("s", 1_700_000_000),
        ("s", "1700000000"),
        ("s", 1_700_000_000.0),
        ("ms", "2023-11-14T22:13:20"),
        ("yyyymmddhhmmss", 20231114221320),
        ("dd/mm/yyyy", "14/11/2023 22:13:20"),
        ("dd/mm/yyyy", "2023-11-14 22:13:20"),
    ],
)
def test_a_value_for_nulls_is_one_time_whatever_the_type_of_a_file(unit: Any, value: Any) -> None:
    """It was counted in each column's own unit, and a time with a zone took no date."""
    of_texts = "dd" in unit and "/" in unit
    kinds = [pa.timestamp("s"), pa.timestamp("ns"), pa.timestamp("us", "UTC"), pa.date32()]
    kinds += [pa.null(), *([pa.string()] if of_texts else [pa.int64(), pa.float64()])]
    for kind in kinds:
        found = times_of(pa.nulls(2, kind), unit, Fill(value=value), Spot("f", "at"))
        assert found.to_pylist() == [1_700_000_000_000] * 2, kind


def test_what_is_no_time_stands_for_no_null_and_rows_keep_their_numbers() -> None:
    spot = Spot("f", "at", first=10, chunk=100)
    late = pa.array([None, 5, None, 2**62])
    with pytest.raises(DataError, match="no int64 in ms in row 113"):
        times_of(late, "s", Fill(value=0), spot)
    assert times_of(late[:3], "s", Fill(value=7), spot).to_pylist() == [7_000, 5_000, 7_000]
    for value in ("soon", 1e30, 20231332):
        with pytest.raises(DataError, match="value for nulls, which is neither a number of"):
            times_of(late, "yyyymmdd", Fill(value=value), spot)
    with pytest.raises(DataError, match="neither a number of `timestamp_unit: yyyy-mm-dd` nor"):
        times_of(pa.nulls(1, pa.timestamp("s")), "yyyy-mm-dd", Fill(value=1_700_000_000), spot)


@pytest.mark.parametrize(
    ("column", "unit"),
    [
        *((pa.array([None], pa.int64()), unit) for unit in DATE_DIGITS),
        (pa.array([None], pa.date32()), "ms"),
        (pa.array([None], pa.timestamp("us", "UTC")), "yyyymmdd"),
    ],
)
def test_the_time_that_an_error_shows_stands_for_nulls(column, unit) -> None:
    spot = Spot("a file", "at")
    with pytest.raises(DataError) as told:
        times_of(column, unit, "error", spot)
    shown = re.search(r"\{value: (.*?)\}\}", str(told.value))
    assert shown is not None
    filled = times_of(column, unit, Fill(value=yaml.safe_load(shown[1])), spot)
    assert filled.null_count == 0

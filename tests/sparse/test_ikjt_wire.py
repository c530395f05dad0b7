"""Rung 1 and 2 (values, properties): IKJTs ↔ Arrow columns, record batches and bytes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.errors import DataError
from recd_plugins.sparse.ikjt import InverseKeyedJaggedTensor
from recd_plugins.sparse.wire import _padded
from recd_plugins.testing.batches import from_lists, to_lists

IKJT = InverseKeyedJaggedTensor
LISTS = {"a": [[1, 2], [1, 2], []], "b": [[3], [3], [4]], "c": [[5], [6], [5]]}
GROUPS = [["a", "b"], ["c"]]
rows = st.lists(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3), min_size=1, max_size=5)


@st.composite
def ikjts(draw):
    pools = {key: draw(rows) for key in "abc"}
    samples = draw(st.lists(st.integers(0, 99), min_size=1, max_size=8))
    lists = {key: [pool[sample % len(pool)] for sample in samples] for key, pool in pools.items()}
    features = from_lists(lists)
    weights = torch.rand(features.values().numel()) if draw(st.booleans()) else None
    return IKJT.from_kjt(
        KeyedJaggedTensor(
            keys=features.keys(),
            values=features.values().to(draw(st.sampled_from([torch.int64, torch.int32]))),
            lengths=features.lengths(),
            weights=weights,
        ),
        draw(st.sampled_from([GROUPS, [["c", "a", "b"]], [["b"], ["a"], ["c"]]])),
    )


def same(left, right):
    ours, theirs = left.kjt, right.kjt
    assert (left.groups, left.unique_counts) == (right.groups, right.unique_counts)
    assert torch.equal(left.inverse_lookup, right.inverse_lookup)
    assert ours.keys() == theirs.keys()
    assert torch.equal(ours.lengths(), theirs.lengths())
    for mine, other in (
        (ours.values(), theirs.values()),
        (ours.weights_or_none(), theirs.weights_or_none()),
    ):
        assert (mine is None) == (other is None)
        assert mine is None or (mine.dtype == other.dtype and torch.equal(mine, other))
    return True


@given(ikjt=ikjts())
def test_bytes_bring_all_back(ikjt):
    assert same(IKJT.from_bytes(ikjt.to_bytes()), ikjt)
    assert same(IKJT.from_bytes(ikjt.to_bytes().to_pybytes()), ikjt)


@given(ikjt=ikjts())
def test_columns_bring_ids_back(ikjt):
    if ikjt.kjt.weights_or_none() is not None:
        with pytest.raises(DataError, match="Use to_record_batch"):
            ikjt.to_arrow()
        return
    columns = ikjt.to_arrow()
    assert {key: column.to_pylist() for key, column in columns.items()} == to_lists(ikjt.to_kjt())
    assert same(IKJT.from_arrow(columns, ikjt.groups), ikjt)


def test_values_are_not_copied_either_way():
    ikjt = IKJT.from_kjt(from_lists(LISTS), GROUPS)
    columns = ikjt.to_arrow()
    addresses = {column.dictionary.values.buffers()[1].address for column in columns.values()}
    assert addresses == {ikjt.kjt.values().data_ptr()}
    assert IKJT.from_arrow(columns, GROUPS).kjt.values().data_ptr() == ikjt.kjt.values().data_ptr()


def test_values_off_the_wire_stay_where_they_came():
    data = IKJT.from_kjt(from_lists(LISTS), GROUPS).to_bytes()
    at = IKJT.from_bytes(data).kjt.values().data_ptr()
    assert data.address <= at < data.address + data.size


def test_columns_that_agree_are_a_group_by_default():
    columns = IKJT.from_kjt(from_lists(LISTS), GROUPS).to_arrow()
    assert IKJT.from_arrow(columns).groups == (("a", "b"), ("c",))
    with pytest.raises(DataError, match="'c' and 'b' are in one group, but their samples"):
        IKJT.from_arrow(columns, [["a"], ["b", "c"]])


@pytest.mark.parametrize("index", [pa.int8(), pa.int64(), pa.uint16()], ids=str)
def test_a_foreign_column_with_unused_and_shuffled_rows(index):
    unique = pa.array([[9], [7, 7], [8], []], type=pa.list_(pa.int32()))
    column = pa.DictionaryArray.from_arrays(pa.array([9, 3, 1, 3, 0], index)[1:], unique)
    ikjt = IKJT.from_arrow({"a": column})
    assert ikjt.inverse_lookup.tolist() == [[0, 1, 0, 2]]
    assert to_lists(ikjt.kjt) == {"a": [[], [7, 7], [9]]}
    sliced = pa.DictionaryArray.from_arrays(pa.array([1, 0]), unique[1:3])
    assert to_lists(IKJT.from_arrow({"a": sliced}).to_kjt()) == {"a": [[8], [7, 7]]}


def test_arrows_own_dictionary_of_rows_is_the_same():
    """What `dictionary_encode` makes of rows as bytes: an implementation that is not ours."""
    feature = from_lists({"a": [[1, 2], [3], [1, 2], [], [3], []]})
    offsets = pa.py_buffer((feature.offsets() * 8).to(torch.int32).numpy())
    values = pa.py_buffer(feature.values().numpy())
    encoded = pa.Array.from_buffers(pa.binary(), 6, [None, offsets, values]).dictionary_encode()
    assert IKJT.from_kjt(feature).inverse_lookup[0].tolist() == encoded.indices.to_pylist()


def test_bytes_fall_by_the_dedupe_factor():
    """512 samples in sessions of 8, a group of four features of 20 ids."""
    draw = torch.Generator().manual_seed(0)
    sessions = torch.randint(0, 2**40, (4, 64, 20), generator=draw)
    values = sessions.repeat_interleave(8, dim=1)
    features = KeyedJaggedTensor(
        keys=list("abcd"),
        values=values.flatten(),
        lengths=torch.full((4 * 512,), 20, dtype=torch.int32),
    )
    ikjt = IKJT.from_kjt(features, [list("abcd")])
    plain = 8 * features.values().numel() + 4 * features.lengths().numel()
    assert ikjt.dedupe_factor() == 8
    assert plain / ikjt.to_bytes().size >= 0.95 * 8


def column(indices, lists):
    return pa.DictionaryArray.from_arrays(pa.array(indices, pa.int32()), pa.array(lists))


def unsafe(indices, lists):
    return pa.DictionaryArray.from_arrays(pa.array(indices), pa.array(lists), safe=False)


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"a": pa.array([[1]])}, "'a': is list<.*must be a dictionary of lists"),
        ({"a": column([0, None], [[1]])}, "'a': 1 of its rows are null"),
        ({"a": column([0], [[1, None]])}, "'a': its lists hold 1 null"),
        ({"a": column([0], [1.5])}, "'a': is double, but must be a list of integers"),
        ({"a": unsafe([0, 7], [[1]])}, "from 0 to 7, outside of its 1 unique"),
        ({"a": column([0], [[1]]), "b": column([0, 0], [[1]])}, r"are \[1\] of .*, \[2\] of "),
        ({"a": pa.chunked_array([column([0], [[1]])])}, "'a': is in chunks. Pass one array"),
        ({"a": column([0], pa.array([[2**63]], pa.list_(pa.uint64())))}, "one is no int64"),
    ],
)
def test_columns_that_are_no_ikjt(columns, reason):
    with pytest.raises(DataError, match=reason):
        IKJT.from_arrow(columns)


def test_what_no_list_of_a_column_has_may_be_null():
    lists = pa.array([[None, 5], [1, 2]])
    columns = {"a": pa.DictionaryArray.from_arrays(pa.array([0, 0]), lists.slice(1))}
    assert to_lists(IKJT.from_arrow(columns).to_kjt()) == {"a": [[1, 2], [1, 2]]}


def test_bytes_that_are_no_ikjt():
    data = IKJT.from_kjt(from_lists(LISTS), GROUPS).to_bytes().to_pybytes()
    with pytest.raises(DataError, match="no Arrow stream"):
        IKJT.from_bytes(data[: len(data) // 2])
    with pytest.raises(DataError, match="no Arrow stream"):
        IKJT.from_bytes(b"")
    with pytest.raises(DataError, match="is no IKJT"):
        IKJT.from_record_batch(pa.record_batch({"a": [1]}))


AWKWARD = (b"[" * 100_000, b'{"groups": [["a", "b"], ["c"]], "batch_size": Infinity}')
"""Numbers and depths that a JSON reader refuses by errors of other kinds."""


def test_a_record_batch_whose_promises_are_broken():
    batch = IKJT.from_kjt(from_lists(LISTS), GROUPS).to_record_batch()

    def with_metadata(text):
        return batch.replace_schema_metadata({b"recd_plugins.ikjt": text})

    for text in (
        b"{",
        b"{}",
        b'{"groups": [["a"]], "batch_size": 3}',
        b"[]",
        b'{"groups": 1}',
        *AWKWARD,
    ):
        with pytest.raises(DataError, match="damaged IKJT"):
            IKJT.from_record_batch(with_metadata(text))
    with pytest.raises(DataError, match="'c' is named twice"):
        IKJT.from_record_batch(with_metadata(b'{"groups": [["a", "c"], ["c"]], "batch_size": 3}'))


@pytest.mark.parametrize(
    ("name", "numbers", "reason"),
    [
        ("values", [1, 2, 3, 4, 5], "add up to 6, but it has 5 values"),
        ("values", [1, None, 3, 4, 5, 6], "values has nulls"),
        ("values", [1.5] * 6, "values are double, not signed integers"),
        ("values", np.full(6, 2**63, np.uint64), "values are uint64, not signed integers"),
        ("lengths", [2, 0, 1, 1, 1, 2**32 + 1], "a list of 4294967297 ids, more than it has"),
        ("lengths", [2, 0, 1, 1, 1], "damaged IKJT"),
        ("unique_counts", [2], "damaged IKJT"),
        ("unique_counts", [-1, 2], r"unique counts are \(-1, 2\)"),
        ("codes", [0, 0, 9, 0, 1, 0], "outside of its 2 unique samples"),
        ("codes", [0, 0, 1, 0, 1], "damaged IKJT"),
        ("runs", [1, 1, 1, 1, 1, 2**40], "its bands have 1099511627781 samples"),
        ("runs", [2, -1, 1, 1, 2, 1], "damaged IKJT"),
        ("runs", [3, 3, 1, 2**63 - 1, 2**63 - 1, 1], "its bands have"),
    ],
)
def test_numbers_that_do_not_fit_each_other(name, numbers, reason):
    batch = IKJT.from_kjt(from_lists(LISTS), GROUPS).to_record_batch()
    place = batch.schema.get_field_index(name)
    with pytest.raises(DataError, match=reason):
        IKJT.from_record_batch(batch.set_column(place, name, pa.array([numbers])))


@pytest.mark.parametrize("odd", [["a"], [3], [True], [{"x": 1, "y": 2}], [None]])
def test_columns_that_are_no_lists_are_refused(odd):
    batch = IKJT.from_kjt(from_lists(LISTS), GROUPS).to_record_batch()
    for place, name in enumerate(batch.schema.names):
        with pytest.raises(DataError, match=f"{name} are .*, not a list"):
            IKJT.from_record_batch(batch.set_column(place, name, pa.array(odd)))


def test_few_lengths_do_not_become_many_by_padding():
    """A group of one key with many rows pads the keys of the other group to as many."""
    lengths, others = np.zeros(100_000, np.uint8), tuple(f"k{n}" for n in range(20_000))
    with pytest.raises(ValueError, match="padded to the largest group, would be 2000100000"):
        _padded(lengths, (("a",), others), (100_000, 0), many=False)


def test_lookups_go_as_runs_where_these_are_shorter():
    def sent(rows):
        ikjt = IKJT.from_kjt(from_lists({"a": rows, "b": rows[::-1]}))
        batch = ikjt.to_record_batch()
        assert same(IKJT.from_record_batch(batch), ikjt)
        return {name: batch[name][0].as_py() for name in ("codes", "runs")}

    clustered = [[session] for session in range(4) for _ in range(8)]
    assert sent(clustered) == {"codes": [0, 1, 2, 3] * 2, "runs": [8] * 8}
    assert sent([[n] for n in range(4)]) == {"codes": [0, 1, 2, 3] * 2, "runs": []}


def test_numbers_take_as_few_bytes_as_they_need():
    def kinds(rows):
        batch = IKJT.from_kjt(from_lists({"a": rows})).to_record_batch()
        return {name: batch.schema.field(name).type.value_type for name in ("lengths", "codes")}

    assert kinds([[n] for n in range(256)]) == {"lengths": pa.uint8(), "codes": pa.uint8()}
    assert kinds([[n] for n in range(257)]) == {"lengths": pa.uint8(), "codes": pa.uint16()}
    assert kinds([[1] * 256]) == {"lengths": pa.uint16(), "codes": pa.uint8()}


def test_lengths_widen_where_values_need_it():
    """More than 2^31 - 1 values would take 16 GB, so only the rule that decides is tried."""
    assert _padded(np.array([1, 2]), (("a",),), (2,), many=False).dtype == torch.int32
    assert _padded(np.array([1, 2]), (("a",),), (2,), many=True).dtype == torch.int64

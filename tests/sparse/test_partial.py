"""Rung 1 and 2 (values, properties): partial IKJTs, what they keep and what comes back."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils import _pytree as pytree
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.errors import DataError
from recd_plugins.sparse.ikjt import InverseKeyedJaggedTensor
from recd_plugins.sparse.partial import PartialInverseKeyedJaggedTensor as Partial
from recd_plugins.sparse.rows.gather import spread_places, spread_rows
from recd_plugins.sparse.rows.shared import overlap_rows
from recd_plugins.sparse.wire import from_bytes, to_bytes

Columns = dict[str, list[list[int]]]

INT64 = st.sampled_from([-(2**63), -1, 0, 1, 2**32, 2**63 - 1])
PAPER = {"b": [[3, 4, 5], [4, 5, 6], [3, 4, 5]]}


def kjt(columns: Columns, *, ids=torch.int64, lengths=torch.int32, weights=None):
    rows = [row for lists in columns.values() for row in lists]
    flat = [value for row in rows for value in row]
    return KeyedJaggedTensor(
        keys=list(columns),
        values=torch.tensor(flat, dtype=ids),
        lengths=torch.tensor([len(row) for row in rows], dtype=lengths),
        weights=None if weights is None else torch.tensor(weights),
        stride=len(next(iter(columns.values()), [])),
    )


def assert_same(found: KeyedJaggedTensor, features: KeyedJaggedTensor) -> None:
    assert found.keys() == features.keys()
    assert found.stride() == features.stride()
    for name in ("values", "lengths", "weights_or_none"):
        one, other = getattr(found, name)(), getattr(features, name)()
        assert (one is None) == (other is None)
        if one is not None:
            assert one.dtype == other.dtype
            assert torch.equal(one, other), name


@st.composite
def tables(draw, ids=INT64) -> tuple[Columns, list[list[str]]]:
    """Columns of repeated and shifted rows, and a grouping of them."""
    num_rows, num_keys = draw(st.integers(0, 7)), draw(st.integers(1, 3))
    columns: Columns = {}
    for key in "abc"[:num_keys]:
        tape = draw(st.lists(ids, min_size=6, max_size=6))
        cuts = st.tuples(st.integers(0, 6), st.integers(0, 6))
        chosen = draw(st.lists(cuts, min_size=num_rows, max_size=num_rows))
        columns[key] = [tape[start:stop] for start, stop in chosen]
    order = draw(st.permutations(list(columns)))
    cut = draw(st.integers(0, len(order)))
    return columns, [group for group in (order[:cut], order[cut:]) if group]


@given(tables())
def test_everything_comes_back(drawn) -> None:
    columns, groups = drawn
    features = kjt(columns)
    partial = Partial.from_kjt(features, groups).validate()
    assert_same(partial.to_kjt(features.keys()), features)
    assert partial.values_kept() <= features.values().numel()


@given(tables(ids=st.integers(-2, 2)), st.data())
def test_weights_count_as_part_of_ids(drawn, data) -> None:
    columns, groups = drawn
    total = sum(len(row) for lists in columns.values() for row in lists)
    drawn_weights = st.lists(st.sampled_from([0.0, -0.0, 1.5]), min_size=total, max_size=total)
    features = kjt(columns, ids=torch.int32, weights=data.draw(drawn_weights))
    partial = Partial.from_kjt(features, groups).validate()
    assert_same(partial.to_kjt(features.keys()), features)


@given(tables(), st.data())
def test_select_and_concat_are_those_of_the_expanded(drawn, data) -> None:
    columns, groups = drawn
    partial = Partial.from_kjt(kjt(columns), groups)
    if partial.batch_size:
        chosen = data.draw(st.lists(st.integers(0, partial.batch_size - 1), max_size=6))
    else:
        chosen = []
    selected = partial.select(torch.tensor(chosen, dtype=torch.int64)).validate()
    expected = {key: [lists[row] for row in chosen] for key, lists in columns.items()}
    assert_same(selected.to_kjt(list(columns)), kjt(expected))
    assert selected.values_kept() <= partial.values_kept()
    joined = Partial.concat([partial, selected, partial]).validate()
    whole = {key: lists + expected[key] + lists for key, lists in columns.items()}
    assert_same(joined.to_kjt(list(columns)), kjt(whole))
    for one in (selected, joined):  # as unique samples, which an IKJT numbers as they appear
        assert_same(one.to_ikjt().validate().to_kjt(list(columns)), one.to_kjt(list(columns)))


def test_ids_without_weights_weigh_1_beside_others_as_those_of_an_ikjt_do() -> None:
    with_weights = kjt({"a": [[1, 2], [2]], "b": [[], [3]]}, weights=[0.5, 2.0, 2.0, 4.0])
    without = kjt({"a": [[7, 8, 9]], "b": [[6]]})
    groups = [["a"], ["b"]]
    for parts in ([with_weights, without], [without, with_weights]):
        joined = Partial.concat([Partial.from_kjt(part, groups) for part in parts]).validate()
        made = [InverseKeyedJaggedTensor.from_kjt(part, groups) for part in parts]
        assert_same(joined.to_kjt(), InverseKeyedJaggedTensor.concat(made).to_kjt())


def test_select_drops_what_no_sample_needs() -> None:
    partial = Partial.from_kjt(kjt({"a": [[1, 2], [2, 3], [9, 9, 9], []]}))
    assert partial.select(torch.tensor([1, 3, 1])).parts()["a"].values.tolist() == [2, 3]
    assert partial.select(torch.tensor([3])).values_kept() == 0


def test_the_papers_example() -> None:
    partial = Partial.from_kjt(kjt(PAPER))
    assert partial.parts()["b"].values.tolist() == [3, 4, 5, 6]
    assert partial.rows("b").tolist() == [[0, 3], [1, 3], [0, 3]]
    assert partial.values_kept() == 4
    assert partial.dedupe_factor() == 9 / 4


@given(tables())
def test_its_unique_samples_are_those_of_the_ikjt(drawn) -> None:
    columns, groups = drawn
    found = Partial.from_kjt(kjt(columns), groups).to_ikjt().validate()
    expected = InverseKeyedJaggedTensor.from_kjt(kjt(columns), groups)
    assert_same(found.kjt, expected.kjt)
    assert torch.equal(found.inverse_lookup, expected.inverse_lookup)
    assert found.unique_counts == expected.unique_counts


def test_a_group_keeps_one_lookup_and_shares_each_features_values_alone() -> None:
    columns = {"c": [[7, 8], [7, 8], [8, 9]], "x": [[1], [2], [1]], "d": [[9], [9], [9]]}
    partial = Partial.from_kjt(kjt(columns), [["d", "c"], ["x"]])
    assert partial.kjt.keys() == ["d", "c", "x"]
    assert partial.inverse_lookup.tolist() == [[0, 0, 1], [0, 1, 0]]
    assert partial.unique_counts == (2, 2)
    assert partial.parts()["c"].values.tolist() == [7, 8, 9]
    assert partial.parts()["d"].values.tolist() == [9]  # equal, though its group changed
    assert partial.rows("d").tolist() == [[0, 1]] * 3


@pytest.mark.parametrize("newest_first", [False, True])
def test_histories_that_grow_at_either_end_keep_each_id_once(newest_first: bool) -> None:
    tape = list(range(12))
    rows = [tape[max(0, n - 5) : n] for n in range(1, 13)]
    rows = [row[::-1] for row in rows] if newest_first else rows
    features = kjt({"history": rows})
    partial = Partial.from_kjt(features)
    assert sorted(partial.parts()["history"].values.tolist()) == tape
    assert_same(partial.to_kjt(), features)


@given(st.lists(st.lists(st.integers(0, 1), max_size=6), max_size=6))
def test_each_row_lies_on_the_longest_overlap(rows: list[list[int]]) -> None:
    def shared(rows: list[list[int]]) -> int:
        return sum(
            max(n for n in range(len(row) + 1) if before[len(before) - n :] == row[:n])
            for before, row in pairwise(rows)
        )

    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    values = np.array([value for row in rows for value in row], dtype=np.int64)
    found = overlap_rows(values, lengths.cumsum() - lengths, lengths)
    forward, total = shared(rows), len(values)
    most = forward if 2 * forward >= total else max(forward, shared(rows[::-1]))
    assert len(found.values) == total - most


def test_rows_that_begin_anew_share_nothing_with_those_before() -> None:
    values, starts = np.array([1, 2, 2, 3, 3, 4]), np.array([0, 2, 4])
    begins = np.array([False, True, False])
    found = overlap_rows(values, starts, np.full(3, 2), begins)
    assert found.values.tolist() == [1, 2, 2, 3, 4]
    assert found.rows.tolist() == [[0, 2], [2, 2], [3, 2]]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 4)), max_size=8))
def test_rows_are_gathered_alike_on_any_device(rows: list[tuple[int, int]]) -> None:
    starts, lengths = torch.tensor(rows, dtype=torch.int64).view(-1, 2).unbind(1)
    values = torch.arange(100, 114)
    expected = [
        value for start, length in rows for value in range(100 + start, 100 + start + length)
    ]
    assert spread_rows(values, starts, lengths).tolist() == expected
    assert values[spread_places(starts, lengths)].tolist() == expected


def test_many_equal_ids_take_linear_time() -> None:
    half = 1 << 19  # whose square would take minutes
    values = np.zeros(4 * half, dtype=np.int64)
    values[3 * half] = 1
    found = overlap_rows(values, np.array([0, 2 * half]), np.full(2, 2 * half))
    assert found.rows.tolist() == [[0, 2 * half], [half, 2 * half]]


def test_it_is_the_same_after_each_way_that_it_travels() -> None:
    features = kjt({**PAPER, "c": [[1], [], [1]]}, weights=[float(n) for n in range(11)])
    partial = Partial.from_kjt(features)
    leaves, spec = pytree.tree_flatten({"dedup": partial})
    assert all(isinstance(leaf, torch.Tensor) for leaf in leaves if leaf is not None)
    for travelled in (
        pytree.tree_unflatten(leaves, spec)["dedup"],
        pickle.loads(pickle.dumps(partial)),
        copy.deepcopy(partial),
        partial.to(torch.device("cpu"), non_blocking=True),
    ):
        assert travelled.groups == partial.groups
        assert_same(travelled.validate().to_kjt(), features)


@given(tables(), st.sampled_from([torch.int32, torch.int64]))
def test_it_travels_as_bytes(drawn, lengths: torch.dtype) -> None:
    columns, groups = drawn
    partial = Partial.from_kjt(kjt(columns, lengths=lengths), groups)
    travelled = Partial.from_bytes(partial.to_bytes())
    assert (travelled.groups, travelled.unique_counts) == (partial.groups, partial.unique_counts)
    assert torch.equal(travelled.spans, partial.spans)
    assert torch.equal(travelled.inverse_lookup, partial.inverse_lookup)
    assert_same(travelled.kjt, partial.kjt)


def test_weights_travel_as_bytes() -> None:
    features = kjt(PAPER, ids=torch.int32, weights=[float(n) for n in range(9)])
    assert_same(Partial.from_bytes(Partial.from_kjt(features).to_bytes()).to_kjt(), features)


def test_bytes_of_something_else_are_reported() -> None:
    partial = Partial.from_kjt(kjt(PAPER))
    with pytest.raises(DataError, match="is no partial IKJT"):
        Partial.from_bytes(partial.to_ikjt().to_bytes())
    with pytest.raises(DataError, match="no Arrow stream"):
        Partial.from_bytes(b"b: 3 4 5")
    broken = dataclasses.replace(partial, spans=torch.tensor([[0, 3], [2, 3]]))
    with pytest.raises(DataError, match="damaged"):
        Partial.from_bytes(broken.to_bytes())


def lists(values: list[object]) -> pa.Array:
    return pa.ListViewArray.from_arrays([0, 1], [1, 1], pa.array(values))


@pytest.mark.parametrize(
    ("column", "says"),
    [
        (None, "need at least one array"),
        (pa.array([0, 0, 0]), "column 0 is no dictionary"),
        ([lists([3, 4]), [None] * 3], "or has nulls"),
        ([pa.array([{}, {}], pa.struct([])), [0, 1, 0]], "not the lists of a group"),
        ([pa.array([3, 4]), [0, 1, 0]], "int64 in place of list views"),
        ([lists([1.5, 2.5]), [0, 1, 0]], "values are double, not signed integers"),
        ([lists([{"id": 3, "weight": 1}] * 2), [0, 1, 0]], "weights are int64, not floats"),
        ([lists([{"id": 3, "weight": None}] * 2), [0, 1, 0]], "nulls among its ids or weights"),
    ],
)
def test_columns_that_no_partial_ikjt_has_are_refused(column: Any, says: str) -> None:
    batch = from_bytes(Partial.from_kjt(kjt(PAPER)).to_bytes())
    if isinstance(column, list):
        unique, lookup = column
        if not pa.types.is_struct(unique.type):
            unique = pa.StructArray.from_arrays([unique], ["b"])
        column = pa.DictionaryArray.from_arrays(pa.array(lookup, pa.int8()), unique)
    columns = {} if column is None else {"0": column}
    other = pa.record_batch(columns).replace_schema_metadata(batch.schema.metadata)
    with pytest.raises(DataError, match=f"damaged partial IKJT .*{says}"):
        Partial.from_bytes(to_bytes(other))


def test_keys_with_weights_beside_keys_without_are_refused() -> None:
    columns = {**PAPER, "c": [[1], [2], [1]]}
    plain = from_bytes(Partial.from_kjt(kjt(columns), [["b"], ["c"]]).to_bytes())
    weighted = kjt(columns, weights=[0.5] * 12)
    other = from_bytes(Partial.from_kjt(weighted, [["b"], ["c"]]).to_bytes())
    mixed = pa.record_batch([plain.column(0), other.column(1)], ["0", "1"])
    mixed = mixed.replace_schema_metadata(plain.schema.metadata)
    with pytest.raises(DataError, match="some of its keys have weights"):
        Partial.from_bytes(to_bytes(mixed))


def test_a_batch_without_samples_is_one_too() -> None:
    features = kjt({"a": [], "b": []})
    partial = Partial.from_kjt(features).validate()
    assert (partial.batch_size, partial.values_kept(), partial.dedupe_factor()) == (0, 0, 1.0)
    assert_same(partial.to_kjt(), features)


def test_only_the_keys_of_groups_are_taken() -> None:
    features = kjt({**PAPER, "c": [[1], [1], [1]]})
    partial = Partial.from_kjt(features, [["c"]])
    assert partial.kjt.keys() == ["c"]
    assert_same(partial.to_kjt(), kjt({"c": [[1], [1], [1]]}))


def test_factors_are_by_key_and_of_all() -> None:
    partial = Partial.from_kjt(kjt({**PAPER, "c": [[1], [2], [3]]}))
    assert partial.dedupe_factor("b") == 9 / 4
    assert partial.dedupe_factor("c") == 1
    assert partial.dedupe_factor() == 12 / 7
    assert (partial.values_kept("b"), partial.values_kept()) == (4, 7)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"spans": torch.tensor([[0, 3], [2, 3]])}, r"of 'b' lie beyond its 4.*: \[\[2, 3\]\]"),
        ({"spans": torch.tensor([[-1, 3], [1, 3]])}, r"beyond its 4 shared values: \[\[-1, 3\]"),
        ({"spans": torch.tensor([[2, -1], [1, 3]])}, r"\[\[2, -1\]\]"),
        ({"spans": torch.tensor([[2**63 - 1, 3], [1, 3]])}, "beyond its 4 shared values"),
        ({"spans": torch.zeros(3, 2, dtype=torch.int64)}, r"make \[2, 2\]"),
        ({"inverse_lookup": torch.tensor([[0, 2, 0]])}, r"points to unique sample \[2\] of 2"),
        ({"inverse_lookup": torch.tensor([[0, -1, 0]])}, r"points to unique sample \[-1\]"),
        ({"inverse_lookup": torch.tensor([0])}, "must be .groups, batch size."),
        ({"inverse_lookup": torch.zeros(2, 3, dtype=torch.int64)}, r"of shape \[2, 3\]"),
        ({"unique_counts": (2, 1)}, "1 group, 2 unique counts"),
        ({"unique_counts": (3,)}, r"make \[3, 2\]"),
        ({"groups": (("b", "b"),)}, "named twice"),
        ({"groups": ()}, "or there is none"),
        ({"kjt": kjt(PAPER)}, "3 rows per key"),
        ({"kjt": kjt({"b": [[1]], "c": [[1]]})}, "those of its groups"),
    ],
)
def test_validate_tells_what_is_broken(change, says: str) -> None:
    partial = Partial.from_kjt(kjt(PAPER))
    with pytest.raises(DataError, match=says):
        dataclasses.replace(partial, **change).validate()


def test_what_it_refuses() -> None:
    ragged = KeyedJaggedTensor(
        keys=["a", "b"],
        values=torch.arange(3),
        lengths=torch.tensor([1, 1, 1]),
        stride_per_key_per_rank=[[2], [1]],
    )
    with pytest.raises(DataError, match="stride per key"):
        Partial.from_kjt(ragged)
    partial = Partial.from_kjt(kjt(PAPER))
    with pytest.raises(DataError, match="there is no key 'c'"):
        partial.rows("c")
    with pytest.raises(DataError, match="differ in their groups"):
        Partial.concat([partial, Partial.from_kjt(kjt({"c": [[1]]}))])

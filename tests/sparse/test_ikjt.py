"""Rung 1 and 2 (values, properties): IKJTs from batches and back, their operations and rules."""

from __future__ import annotations

import dataclasses
import pickle

import pytest
import torch
from drawn import at_most
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils import _pytree as pytree
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.data.batch import Batch
from recd_plugins.errors import DataError
from recd_plugins.sparse.ikjt import InverseKeyedJaggedTensor
from recd_plugins.sparse.jagged import Jagged, WeightedJagged, slice_rows
from recd_plugins.testing.batches import from_lists, to_lists

IKJT = InverseKeyedJaggedTensor
EXTREMES = [-(2**63), 2**63 - 1, -1, 0, 2**31, 2**32]
PAPER = {
    "b": [[3, 4, 5], [4, 5, 6], [3, 4, 5]],
    "c": [[7, 8], [7, 8], [10]],
    "d": [[9], [9], [11]],
}
ids = st.one_of(st.integers(0, 3), st.sampled_from(EXTREMES))
a_row = st.lists(ids, max_size=5)


@st.composite
def batches(draw, fewest=0):
    """B rows of up to four features (empty, repeated near and far), some of them grouped."""
    num_rows = draw(st.integers(fewest, 12))
    keys = draw(st.permutations("abcd"))[: draw(st.integers(1, 4))]
    lists = {}
    for key in keys:
        pool = draw(st.lists(a_row, min_size=1, max_size=4))
        lists[key] = [draw(st.sampled_from(pool)) for _ in range(num_rows)]
    marks = [draw(st.integers(0, 2)) for _ in keys]
    groups = [[k for k, m in zip(keys, marks, strict=True) if m == mark] for mark in set(marks)]
    return lists, groups


def kjt(lists, weighted=False, dtype=torch.int64):
    features = from_lists(lists)
    weights = None
    if weighted:
        weights = (features.values() % 2).float()
    return KeyedJaggedTensor(
        keys=features.keys(),
        values=features.values().to(dtype),
        lengths=features.lengths().long(),
        weights=weights,
        stride=len(next(iter(lists.values()))),
    )


def same(left, right):
    """Two KJTs, tensor for tensor."""
    assert left.keys() == right.keys()
    assert left.stride() == right.stride()
    for name in ("values", "lengths", "weights_or_none"):
        ours, theirs = getattr(left, name)(), getattr(right, name)()
        assert (ours is None) == (theirs is None)
        assert ours is None or torch.equal(ours, theirs)
        assert ours is None or ours.dtype == theirs.dtype
    return True


def combinations(lists, group):
    """How many different samples a group has, in the plainest way."""
    return len(
        {tuple(tuple(lists[key][row]) for key in group) for row in range(len(lists[group[0]]))}
    )


@settings(max_examples=at_most(200))
@given(batch=batches(), weighted=st.booleans(), dtype=st.sampled_from([torch.int64, torch.int32]))
def test_any_batch_in_any_groups_comes_back(batch, weighted, dtype):
    lists, groups = batch
    features = kjt(lists, weighted, dtype)
    ikjt = IKJT.from_kjt(features, groups, validate=True)
    assert same(ikjt.to_kjt(features.keys()), features)
    assert ikjt.batch_size == features.stride()
    kept = to_lists(features)  # of int32, what the extremes became
    assert ikjt.unique_counts == tuple(combinations(kept, group) for group in groups)


@given(batch=batches())
def test_features_not_yet_joined(batch):
    lists, groups = batch
    columns = {
        key: Jagged(features.values(), features.lengths())
        for key, features in ((key, kjt({key: rows})) for key, rows in lists.items())
    }
    ikjt = IKJT.from_jagged(columns, groups, validate=True)
    assert same(ikjt.kjt, IKJT.from_kjt(kjt(lists), groups).kjt)


def test_features_of_two_integer_types_meet_in_the_larger():
    small, large = torch.tensor([1, 1], dtype=torch.int32), torch.tensor([2**40, -1])
    lengths = torch.tensor([1, 1])
    ikjt = IKJT.from_jagged({"a": Jagged(small, lengths), "b": Jagged(large, lengths)})
    assert to_lists(ikjt.to_kjt()) == {"a": [[1], [1]], "b": [[2**40], [-1]]}


@pytest.mark.parametrize("dtype", [torch.int16, torch.uint8], ids=str)
def test_lengths_of_fewer_bytes(dtype):
    features = kjt(PAPER)
    narrow = {
        key: Jagged(features[key].values(), features[key].lengths().to(dtype)) for key in "bcd"
    }
    ikjt = IKJT.from_jagged(narrow)
    assert ikjt.unique_counts == (2, 2, 2)
    assert ikjt.kjt.values().tolist() == [3, 4, 5, 4, 5, 6, 7, 8, 10, 9, 11]
    assert ikjt.kjt.lengths().tolist() == [3, 3, 2, 1, 1, 1]


def test_numbers_that_do_not_lie_side_by_side():
    given = kjt({"a": [[1, 2], [], [1, 2]], "b": [[3], [3], [4]]})
    ids, lengths = (
        torch.stack([one, torch.full_like(one, 7)], dim=1)[:, 0]
        for one in (given.values(), given.lengths())
    )
    strided = KeyedJaggedTensor(keys=given.keys(), values=ids, lengths=lengths)
    ikjt = InverseKeyedJaggedTensor.from_kjt(strided, [["a", "b"]])
    same(ikjt.to_kjt(), given)
    same(slice_rows(strided, 1, 3), slice_rows(given, 1, 3))


def test_more_ids_than_lengths_say_are_refused():
    longer = KeyedJaggedTensor(keys=["a"], values=torch.arange(3), lengths=torch.tensor([1, 1]))
    with pytest.raises(DataError, match="add up to 2, but it has 3"):
        InverseKeyedJaggedTensor.from_kjt(longer, [["a"]])


def test_ids_of_one_byte_are_refused():
    ids = torch.tensor([1, 1], dtype=torch.uint8)
    with pytest.raises(DataError, match=r"cannot be torch.uint8 on cpu here. Make ids"):
        IKJT.from_jagged({"a": Jagged(ids, torch.tensor([1, 1]))})


def test_the_papers_example():
    ikjt = IKJT.from_kjt(from_lists(PAPER), [["b"], ["c", "d"]], validate=True)
    assert ikjt.inverse_lookup.tolist() == [[0, 1, 0], [0, 0, 1]]
    assert ikjt.dedupe_factor("b") == 1.5  # by the formula too: B = S = 3, l = 3, d = 0.5
    assert to_lists(ikjt.kjt) == {
        "b": [[3, 4, 5], [4, 5, 6]],
        "c": [[7, 8], [10]],
        "d": [[9], [11]],
    }
    pooled = torch.tensor(
        [float(sum(c + d)) for c, d in zip(*list(to_lists(ikjt.kjt).values())[1:], strict=True)]
    )
    assert pooled[ikjt.inverse_lookup[1]].tolist() == [24, 24, 21]


def test_a_group_is_merged_only_where_all_of_its_features_match():
    lists = {"a": [[1], [1], [2]], "b": [[5], [6], [6]]}
    assert IKJT.from_kjt(from_lists(lists), [["a", "b"]]).unique_counts == (3,)
    assert IKJT.from_kjt(from_lists(lists), [["a"], ["b"]]).unique_counts == (2, 2)


def test_ids_with_other_weights_are_not_merged():
    features = KeyedJaggedTensor.from_lengths_sync(
        keys=["a"],
        values=torch.tensor([1, 2] * 4),
        lengths=torch.tensor([2] * 4),
        weights=torch.tensor([0.0, 1, 0, 1, -0.0, 1, float("nan"), 1]),
    )
    ikjt = IKJT.from_kjt(features)
    assert ikjt.inverse_lookup.tolist() == [[0, 0, 1, 2]]
    assert torch.equal(
        ikjt.to_kjt().weights().view(torch.int32), features.weights().view(torch.int32)
    )


@pytest.mark.parametrize(
    ("rows", "unique"),
    [
        ([[1, 2]] * 9, 1),
        ([[n] for n in range(9)], 9),
        ([[]] * 9, 1),
        ([[5]], 1),
        ([[n % 500] * 3 for n in range(1000)], 500),
    ],
    ids=["all equal", "all different", "all empty", "one row", "far apart"],
)
def test_one_to_all_unique(rows, unique):
    ikjt = IKJT.from_kjt(kjt({"a": rows}), validate=True)
    assert ikjt.unique_counts == (unique,)
    assert to_lists(ikjt.to_kjt()) == {"a": rows}


def test_no_value_is_added_to_the_smaller_groups():
    ikjt = IKJT.from_kjt(kjt({"a": [[1], [2], [3]], "b": [[4, 4]] * 3}))
    assert ikjt.kjt.values().tolist() == [1, 2, 3, 4, 4]
    assert ikjt.kjt.lengths().tolist() == [1, 1, 1, 2, 0, 0]
    assert ikjt.kjt.stride() == 3


@given(batch=batches(fewest=1), weighted=st.booleans(), data=st.data())
def test_selected_samples_keep_what_they_use(batch, weighted, data):
    lists, groups = batch
    features = kjt(lists, weighted)
    rows = data.draw(st.lists(st.integers(0, features.stride() - 1), max_size=12))
    chosen = {key: [column[row] for row in rows] for key, column in lists.items()}
    expected = IKJT.from_kjt(kjt(chosen, weighted), groups)
    found = IKJT.from_kjt(features, groups).select(torch.tensor(rows, dtype=torch.int64)).validate()
    assert torch.equal(found.inverse_lookup, expected.inverse_lookup)
    assert same(found.kjt, expected.kjt)


@given(batch=batches(), weighted=st.booleans(), data=st.data())
def test_joined_parts_are_the_whole(batch, weighted, data):
    lists, groups = batch
    features = kjt(lists, weighted)
    cuts = sorted(data.draw(st.lists(st.integers(0, features.stride()), max_size=3)))
    bounds = zip([0, *cuts], [*cuts, features.stride()], strict=True)
    parts = [
        IKJT.from_kjt(kjt({key: rows[a:b] for key, rows in lists.items()}, weighted), groups)
        for a, b in bounds
    ]
    found, whole = IKJT.concat(parts).validate(), IKJT.from_kjt(features, groups)
    assert torch.equal(found.inverse_lookup, whole.inverse_lookup)
    assert same(found.kjt, whole.kjt)


def test_torchrec_takes_both_forms():
    from torchrec import EmbeddingCollection, EmbeddingConfig

    torch.manual_seed(0)
    tables = EmbeddingCollection(
        tables=[
            EmbeddingConfig(name="t", embedding_dim=4, num_embeddings=12, feature_names=list("bcd"))
        ]
    )
    features = from_lists(PAPER)
    ikjt = IKJT.from_kjt(features, [["b"], ["c", "d"]])
    whole, unique = tables(features), tables(ikjt.kjt)
    for key in "bcd":
        rows = unique[key].to_dense()
        lookup = ikjt.inverse_lookup[ikjt.group_of[key]]
        for row, embedded in zip(lookup.tolist(), whole[key].to_dense(), strict=True):
            assert torch.equal(rows[row], embedded)


def test_dedupe_factor():
    ikjt = IKJT.from_kjt(kjt({"a": [[1, 2, 3]] * 4, "b": [[n] for n in range(4)]}))
    assert ikjt.dedupe_factor("a") == 4
    assert ikjt.dedupe_factor("b") == 1
    assert ikjt.dedupe_factor() == 16 / 7
    assert IKJT.from_kjt(kjt({"a": [[], []]})).dedupe_factor() == 1


def test_it_rides_in_a_batch():
    ikjt = IKJT.from_kjt(from_lists(PAPER), [["b"], ["c", "d"]])
    nothing = kjt({"a": [[1]] * 3})
    batch = Batch(torch.zeros(3, 0), nothing, torch.zeros(3), torch.ones(3), ikjt)
    moved = batch.to(torch.device("cpu"), non_blocking=True).dedup
    assert same(moved.kjt, ikjt.kjt)
    assert batch.to(torch.device("meta")).dedup.inverse_lookup.device.type == "meta"
    assert same(
        pickle.loads(pickle.dumps(batch)).dedup.kjt, ikjt.kjt
    )  # what a reader's worker does


@given(batch=batches(), weighted=st.booleans())
def test_a_tree_of_tensors(batch, weighted):
    ikjt = IKJT.from_kjt(kjt(batch[0], weighted), batch[1])
    leaves, spec = pytree.tree_flatten({"dedup": [ikjt]})
    assert len(leaves) == 3 + weighted
    back = pytree.tree_unflatten([leaf.clone() for leaf in leaves], spec)["dedup"][0].validate()
    assert same(back.kjt, ikjt.kjt)


def broken(**changes):
    """Makes it when it is called: no kernel is compiled while tests are collected."""
    return lambda: dataclasses.replace(
        IKJT.from_kjt(from_lists(PAPER), [["b"], ["c", "d"]]), **changes
    )


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (
            broken(inverse_lookup=torch.tensor([[0, 1, 2], [0, 0, 1]])),
            r"from 0 to 2, outside of its 2",
        ),
        (broken(inverse_lookup=torch.tensor([[0, -1, 0], [0, 0, 1]])), r"from -1 to 0"),
        (broken(inverse_lookup=torch.tensor([[1, 0, 1], [0, 0, 1]])), r"order in which they first"),
        (broken(inverse_lookup=torch.tensor([[0, 0, 0], [0, 0, 1]])), r"number its 2 unique"),
        (broken(inverse_lookup=torch.tensor([[0, 1, 0]])), r"shape \[1, 3\]"),
        (broken(inverse_lookup=torch.zeros(2, 3, dtype=torch.int32)), r"int32, not int64"),
        (broken(groups=(("b",), ("d", "c"))), r"keys are \['b', 'c', 'd'\], but those of its gro"),
        (broken(groups=(("b",), ("c", "x"))), r"no feature 'x'; "),
        (broken(groups=(("b",), ("c", "c"))), r"'c' is named twice"),
        (broken(unique_counts=(3, 2)), r"stride 2, but 3 keys with 3 unique"),
        (
            broken(unique_counts=(2, 1), inverse_lookup=torch.tensor([[0, 1, 0], [0, 0, 0]])),
            r"'c' has ids after the 1",
        ),
        (
            broken(
                kjt=KeyedJaggedTensor(
                    keys=list("bcd"),
                    values=torch.ones(5, dtype=torch.int64),
                    lengths=torch.tensor([1] * 6),
                    stride=2,
                )
            ),
            r"add up to 6, but it has 5 values",
        ),
        (
            broken(
                kjt=KeyedJaggedTensor(
                    keys=list("bcd"),
                    values=torch.ones(4, dtype=torch.int64),
                    lengths=torch.tensor([1, 1, 1, 1, 1, -1]),
                    stride=2,
                )
            ),
            r"is negative",
        ),
    ],
)
def test_a_broken_rule_is_named(make, reason):
    ikjt = make()
    with pytest.raises(DataError, match=f"breaks its rules: .*{reason}|{reason}"):
        ikjt.validate()


@pytest.mark.parametrize(
    ("groups", "reason"),
    [
        ([["b"], ["C"]], "no feature 'C'; Known: b, c, d"),
        ([["b", "b"]], "twice"),
        ([[]], "empty"),
        ([], "none"),
    ],
)
def test_groups_must_name_features_once(groups, reason):
    with pytest.raises(DataError, match=reason):
        IKJT.from_kjt(from_lists(PAPER), groups)


def test_what_cannot_be_converted_says_what_to_do():
    ikjt = IKJT.from_kjt(from_lists(PAPER), [["b"], ["c", "d"]])
    vbe = KeyedJaggedTensor(
        keys=["b", "c"],
        values=torch.arange(3),
        lengths=torch.ones(3, dtype=torch.int64),
        stride_per_key_per_rank=[[1], [2]],
    )
    with pytest.raises(DataError, match="a VBE KJT"):
        IKJT.from_kjt(vbe)
    with pytest.raises(DataError, match="there is no key 'x'"):
        ikjt.to_kjt(["x"])
    one, two = torch.tensor([1]), torch.tensor([1, 1])
    with pytest.raises(DataError, match=r"\[1, 2\] rows"):
        IKJT.from_jagged({"a": Jagged(one, one), "b": Jagged(two, two)})
    with pytest.raises(DataError, match="differ in their groups"):
        IKJT.concat([ikjt, IKJT.from_kjt(from_lists(PAPER))])


def test_a_rule_of_ones_own_says_what_it_lacks():
    row, lookup = WeightedJagged(torch.tensor([5, 6]), torch.tensor([2])), torch.tensor([0, 0])
    made = IKJT.from_rows((("a",),), {"a": row}, [lookup])
    assert to_lists(made.to_kjt()) == {"a": [[5, 6], [5, 6]]}
    for groups, rows, lookups, says in (
        ((("a",),), [row], [lookup], "`rows` is a list, where it must be a mapping from each key"),
        ((("a", "b"),), {"a": row}, [lookup], "`rows` lacks b, which groups name"),
        ((("a",),), {"a": row}, [], "of 1 group it has 0 inverse lookups. Give one for each"),
        ((("a",),), {"a": row}, [lookup.int()], r"lookups are \[2\] of torch.int32, where each"),
        (
            (("a",), ("b",)),
            {"a": row, "b": row},
            [lookup, lookup[:1]],
            r"are \[1\] of torch.int64, \[2\] of torch.int64, where each must be \[batch size\]",
        ),
    ):
        with pytest.raises(DataError, match=says):
            IKJT.from_rows(groups, rows, lookups)

"""Ladder: transforms on small batches, then any choice of features against a row-by-row loop."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.data.batch import Batch
from recd_plugins.data.columns import Columns, JoinedColumns
from recd_plugins.data.preprocess.batch_transform import BatchTransform
from recd_plugins.data.schema import Schema
from recd_plugins.errors import PluginError
from recd_plugins.testing.batches import from_lists, random_batch, to_lists
from recd_plugins.testing.probe import SCHEMA
from recd_plugins.testing.resume import assert_same_batch

Lists = dict[str, list[list[int]]]


class Rows:
    """A `Preprocess` of a function from one row's ids to others, and of the keys it was given."""

    def __init__(self, function: Callable[[list[int]], list[int]]) -> None:
        self._function = function
        self.keys: list[list[str]] = []

    def __call__(self, features: KeyedJaggedTensor) -> KeyedJaggedTensor:
        self.keys.append(list(features.keys()))
        lists = to_lists(features)
        return from_lists({k: [self._function(row) for row in rows] for k, rows in lists.items()})

    def schema(self, schema: Schema) -> Schema:
        return schema


def plus(n: int) -> Rows:
    return Rows(lambda row: [value + n for value in row])


def twice(row: list[int]) -> list[int]:
    """Makes rows longer, so that offsets move."""
    return row + row


def first(row: list[int]) -> list[int]:
    return row[:1]


def batch_of(lists: Lists) -> Batch:
    rows = len(next(iter(lists.values())))
    return Batch(
        dense=torch.zeros(rows, 2),
        features=from_lists(lists),
        labels=torch.arange(float(rows)),
        weights=torch.ones(rows),
    )


LISTS: Lists = {"a": [[1], [], [2, 3]], "b": [[4, 5], [6], []], "c": [[], [7], [8]]}


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["a"], {**LISTS, "a": [[11], [], [12, 13]]}),
        (["b"], {**LISTS, "b": [[14, 15], [16], []]}),
        (["c", "a"], {**LISTS, "a": [[11], [], [12, 13]], "c": [[], [17], [18]]}),
        (["a", "b", "c"], {k: [[v + 10 for v in row] for row in r] for k, r in LISTS.items()}),
    ],
)
def test_a_transform_is_applied_to_its_features_alone(names: list[str], expected: Lists) -> None:
    step = plus(10)
    transform = BatchTransform([(names, step)])
    for _ in range(3):  # the first two are also checked, for which the step is called more often
        step.keys.clear()
        done = transform(batch_of(LISTS))
    assert to_lists(done.features) == expected
    assert list(done.features.keys()) == ["a", "b", "c"]  # to_lists would hide another order
    assert step.keys == [[key for key in LISTS if key in names]]


def test_rows_may_change_their_lengths() -> None:
    done = BatchTransform([(["b"], Rows(twice)), (["a"], Rows(first))])(batch_of(LISTS))
    assert to_lists(done.features) == {
        "a": [[1], [], [2]],
        "b": [[4, 5, 4, 5], [6, 6], []],
        "c": LISTS["c"],
    }
    assert done.features.stride() == 3


def test_steps_are_applied_in_their_order() -> None:
    steps = [(["a"], plus(1)), (["a", "c"], Rows(twice)), (["c"], plus(5)), (["a"], Rows(first))]
    done = BatchTransform(steps)(batch_of(LISTS))
    assert to_lists(done.features) == {
        "a": [[2], [], [3]],
        "b": LISTS["b"],
        "c": [[], [12, 12], [13, 13]],
    }


def test_the_rest_of_a_batch_and_the_batch_itself_stay() -> None:
    batch = random_batch(SCHEMA, 5, seed=0)
    before = random_batch(SCHEMA, 5, seed=0)
    done = BatchTransform([(["item", "history"], plus(1))])(batch)
    assert_same_batch(batch, before)
    assert_same_batch(dataclasses.replace(done, features=before.features), before)
    assert not torch.equal(done.features.values(), before.features.values())


def test_without_steps_a_batch_is_as_it_was() -> None:
    batch = random_batch(SCHEMA, 5, seed=0)
    assert_same_batch(BatchTransform([])(batch), batch)


def test_a_batch_of_empty_rows() -> None:
    lists: Lists = {"a": [[], []], "b": [[], []]}
    done = BatchTransform([(["a"], plus(1)), (["a", "b"], Rows(twice))])(batch_of(lists))
    assert to_lists(done.features) == lists


rows = st.lists(st.lists(st.integers(0, 99), max_size=4), min_size=3, max_size=3)
functions: Sequence[Callable[[list[int]], list[int]]] = (
    twice,
    first,
    sorted,
    lambda row: [value * 3 for value in row],
    lambda row: [],
)


@given(data=st.data())
def test_any_steps_on_any_features_equal_a_loop_over_rows(data: st.DataObject) -> None:
    keys = data.draw(st.lists(st.sampled_from("abcde"), min_size=1, unique=True), label="keys")
    lists = {key: data.draw(rows, label=key) for key in keys}
    chosen = st.tuples(
        st.lists(st.sampled_from(keys), min_size=1, unique=True), st.sampled_from(functions)
    )
    steps = data.draw(st.lists(chosen, max_size=3), label="steps")
    expected = dict(lists)
    for names, function in steps:
        for name in names:
            expected[name] = [list(function(row)) for row in expected[name]]
    transform = BatchTransform([(names, Rows(function)) for names, function in steps])
    done = transform(batch_of(lists)).features
    assert to_lists(done) == expected
    assert list(done.keys()) == keys


class Aside:
    """Takes one feature aside, as a dedup converter does; it notes how often."""

    def __init__(self, key: str) -> None:
        self.groups = ((key,),)
        self.calls = 0

    def convert(self, features: Columns) -> KeyedJaggedTensor:
        self.calls += 1
        assert features.keys == list(self.groups[0])
        return features.to_kjt()


def test_what_is_deduplicated_is_transformed_too() -> None:
    converter = Aside("b")
    done = BatchTransform([(["a", "b"], plus(10)), (["b"], Rows(twice))], converter)(
        batch_of(LISTS)
    )
    assert converter.calls == 1
    assert to_lists(done.features) == {"a": [[11], [], [12, 13]], "c": LISTS["c"]}
    assert to_lists(done.dedup) == {"b": [[14, 15, 14, 15], [16, 16], []]}


def test_what_a_reader_has_not_joined_is_deduplicated_too() -> None:
    lists = {key: LISTS[key] for key in "ac"}
    beside = JoinedColumns(from_lists({"b": LISTS["b"]}))
    done = BatchTransform([(["a", "b"], plus(10))], Aside("b"))(batch_of(lists), beside)
    assert to_lists(done.features) == {"a": [[11], [], [12, 13]], "c": LISTS["c"]}
    assert to_lists(done.dedup) == {"b": [[14, 15], [16], []]}


def test_a_converter_that_takes_what_there_is_not_is_named() -> None:
    with pytest.raises(PluginError, match=r"Aside takes feature 'bb', .*did you mean 'b'"):
        BatchTransform([], Aside("bb"))(batch_of(LISTS))


class Silent:
    """A converter that says nothing of what it takes."""

    def convert(self, features: Columns) -> KeyedJaggedTensor:
        return features.to_kjt()


def test_a_converter_must_say_what_it_takes() -> None:
    with pytest.raises(PluginError, match=r"Silent does not say which features .*`groups`"):
        BatchTransform([], Silent())


def test_unique_samples_that_break_their_rules_are_the_converters() -> None:
    class Faulty(Aside):
        def convert(self, features: Columns) -> Any:
            made = features.to_ikjt([["b"]])
            lookup = made.inverse_lookup.clone()
            lookup[0, 0] = 10**6
            return dataclasses.replace(made, inverse_lookup=lookup)

    class Raising(Aside):
        def convert(self, features: Columns) -> Any:
            raise KeyError("b")

    with pytest.raises(PluginError, match="`convert` of Faulty returned what breaks its rules: an"):
        BatchTransform([], Faulty("b"))(batch_of(LISTS))
    with pytest.raises(PluginError, match="`convert` of Raising raised KeyError when it was given"):
        BatchTransform([], Raising("b"))(batch_of(LISTS))


def test_what_a_converter_makes_wrongly_by_the_projects_own_classes_names_it() -> None:
    class Elsewhere(Aside):
        def convert(self, features: Columns) -> Any:
            return features.to_ikjt([["nobody"]])

    says = r"`convert` of Elsewhere failed when it was given columns: .*'nobody'"
    with pytest.raises(PluginError, match=says):
        BatchTransform([], Elsewhere("b"))(batch_of(LISTS))

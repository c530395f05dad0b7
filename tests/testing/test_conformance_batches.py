"""Ladder: pure values. Readers, transforms, dedup: each rule, broken once, is named."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from contract_records import broken, record
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.data.batch import Batch
from recd_plugins.data.columns import Columns
from recd_plugins.data.dataset import Split
from recd_plugins.data.reader.local_reader import LocalReaderConfig, build_local_reader
from recd_plugins.data.schema import Schema
from recd_plugins.data.table import Table
from recd_plugins.slots import Context, DedupRecord, Loader, PreprocessRecord, ReaderRecord
from recd_plugins.testing.batches import from_lists, to_lists
from recd_plugins.testing.conformance import check_record

# reader


@dataclass
class BentLoader:
    """The local reader's loader, bent as `break_` says."""

    straight: Loader
    break_: str

    def __len__(self) -> int:
        return len(self.straight) - (self.break_ in ("length", "rest"))

    def __iter__(self) -> Iterator[Batch]:
        count = len(self) if self.break_ == "rest" else None
        for batch in itertools.islice(self.straight, count):
            match self.break_:
                case "twice":
                    lists = to_lists(batch.features)
                    lists["row"] = [[0]] * len(batch)
                    batch = dataclasses.replace(batch, features=from_lists(lists))
                case "labels":
                    batch = dataclasses.replace(batch, labels=1 - batch.labels)
                case "dense":
                    batch = dataclasses.replace(batch, dense=batch.dense.flip(1))
                case "columns":
                    lists = to_lists(batch.features)
                    batch = dataclasses.replace(batch, features=from_lists({"row": lists["row"]}))
            yield batch

    def state_dict(self) -> dict[str, Any]:
        return self.straight.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.break_ != "state":
            self.straight.load_state_dict(state)


@dataclass
class Bent:
    break_: str

    def loader(self, table: Table, *, split: Split, **given: Any) -> BentLoader:
        reader = build_local_reader(LocalReaderConfig(prefetch=False), Context())
        if self.break_ == "transform":
            given["transform"] = None
        return BentLoader(reader.loader(table, split=split, **given), self.break_)


@pytest.mark.parametrize(
    ("break_", "rule"),
    [
        ("length", "all ranks must have as many batches as len(loader) says"),
        ("columns", "a batch must have up to 16 samples of the schema's columns"),
        ("twice", "a row must come once an epoch"),
        ("labels", "over 1 rank: a sample must have what its row has, but label of row"),
        ("dense", "over 1 rank: a sample must have what its row has, but dense of row"),
        ("transform", "each batch must go through `transform`, once"),
        ("rest", "split 'test' over 1 rank: every row must come"),
        ("state", "resumed after"),
    ],
)
def test_a_reader_that_breaks_a_rule_is_reported_with_the_rule(break_: str, rule: str) -> None:
    assert rule in broken(record(ReaderRecord, lambda: Bent(break_)))


# preprocess


@dataclass
class Modulo:
    """id -> id mod `modulo`; `break_` says how it is wrong."""

    modulo: int = 5
    break_: str = ""
    row_wise: bool = True
    elementwise: bool = True

    def __call__(self, features: KeyedJaggedTensor) -> KeyedJaggedTensor:
        lists = to_lists(features)
        if self.break_ == "rows" and "item" in lists:
            seen: set[int] = set()
            lists["item"] = [
                [i for i in row if not (i in seen or seen.add(i))]  # type: ignore[func-returns-value]
                for row in lists["item"]
            ]
        if self.break_ == "elementwise" and "item" in lists:
            lists["item"] = [row[::-1] for row in lists["item"]]
        if self.break_ == "keys":
            lists.pop("item")
        if self.break_ == "alone" and len(lists) == 1:
            raise KeyError("it takes several")
        if self.break_ == "in place":
            features.values().zero_()
        return from_lists(
            {key: [[i % self.modulo for i in row] for row in ids] for key, ids in lists.items()}
        )

    def schema(self, schema: Schema) -> Schema:
        modulo = 4 if self.break_ == "schema" else self.modulo
        return schema.replace(dataclasses.replace(f, num_ids=modulo) for f in schema.sparse)


def test_a_correct_transform_passes() -> None:
    check_record(record(PreprocessRecord, Modulo))


@pytest.mark.parametrize(
    ("break_", "rule"),
    [
        ("keys", "must return a KeyedJaggedTensor of the keys"),
        ("alone", "each is transformed by itself"),
        ("in place", "must leave its input as it is"),
        ("schema", "must be int64 in [0, 4)"),
        ("rows", "must not depend on the other rows, but that of 'item' does"),
        ("elementwise", "on the shared values of a partial IKJT it must give"),
    ],
)
def test_a_transform_that_breaks_a_rule_is_reported_with_the_rule(break_: str, rule: str) -> None:
    assert rule in broken(record(PreprocessRecord, lambda: Modulo(break_=break_)))


class OtherwiseOfRows(Modulo):
    """What its author changed it to do to a KJT, it does not do to mere rows."""

    def of_rows(self, ids: Tensor, lengths: Tensor, weights: Tensor | None) -> object:
        return ids + 1, lengths, weights


def test_a_transform_does_the_same_to_rows_without_a_kjt() -> None:
    rule = "`of_rows` must give the ids, lengths and weights that it makes of a KJT"
    assert rule in broken(record(PreprocessRecord, OtherwiseOfRows))


def test_a_transform_may_say_what_it_is() -> None:
    check_record(record(PreprocessRecord, lambda: Modulo(break_="rows", row_wise=False)))
    check_record(record(PreprocessRecord, lambda: Modulo(break_="elementwise", elementwise=False)))


# dedup


@dataclass
class Unique:
    """The unique rows of a feature and where they go; `off` shifts the inverse lookup."""

    rows: list[list[int]]
    inverse_lookup: list[int]

    def to_kjt(self) -> KeyedJaggedTensor:
        return from_lists({"history": [self.rows[index] for index in self.inverse_lookup]})


@dataclass
class OneGroup:
    off: int = 0
    groups: tuple[tuple[str, ...], ...] = (("history",),)

    def convert(self, features: Columns) -> Unique:
        history = to_lists(features.to_kjt())["history"]
        rows = [list(row) for row in dict.fromkeys(map(tuple, history))]
        inverse = [(rows.index(row) + self.off) % len(rows) for row in history]
        return Unique(rows, inverse)


def test_a_correct_dedup_passes_and_a_wrong_inverse_is_reported() -> None:
    check_record(record(DedupRecord, OneGroup))
    check_record(record(DedupRecord, OneGroup), expand=lambda batch: batch.dedup.to_kjt())
    assert "every row of 'history' must come back" in broken(
        record(DedupRecord, lambda: OneGroup(off=1))
    )


@pytest.mark.parametrize("groups", [(("absent",),), (("history",), ("item", "history"))])
def test_a_dedup_takes_features_of_the_schema_each_once(groups) -> None:
    message = broken(record(DedupRecord, lambda: OneGroup(groups=groups)))
    assert "its `groups` must name features of the schema, each in one group" in message
    assert repr(groups) in message


def test_a_dedup_without_groups_takes_nothing() -> None:
    check_record(record(DedupRecord, lambda: OneGroup(groups=())))


Rows = tuple[tuple[int, ...], ...]
"""A sample's row of each feature of a group."""


@dataclass
class SameByKey:
    """Takes samples for the same whose rows have the same key."""

    key: Callable[[Rows], object]
    groups: tuple[tuple[str, ...], ...] = (("item", "shop", "history"),)

    def convert(self, features: Columns) -> Kept:
        lists = to_lists(features.to_kjt())
        (group,) = self.groups
        samples = list(zip(*(map(tuple, lists[name]) for name in group), strict=True))
        firsts: dict[object, Rows] = {}
        kept = [firsts.setdefault(self.key(sample), sample) for sample in samples]
        rows = zip(*kept, strict=True)
        return Kept({name: list(of) for name, of in zip(group, rows, strict=True)})


@dataclass
class Kept:
    lists: dict[str, list[tuple[int, ...]]]

    def to_kjt(self) -> KeyedJaggedTensor:
        return from_lists(self.lists)


APPROXIMATE: dict[str, Callable[[Rows], object]] = {
    "sum": lambda rows: tuple(map(sum, rows)),
    "sum and length": lambda rows: tuple((sum(row), len(row)) for row in rows),
    "first and last id": lambda rows: tuple((row[:1], row[-1:]) for row in rows),
    "first and last id, length, sum": lambda rows: tuple(
        (row[:1], row[-1:], len(row), sum(row)) for row in rows
    ),
    "set": lambda rows: tuple(map(frozenset, rows)),
    "ids in any order": lambda rows: tuple(tuple(sorted(row)) for row in rows),
    "first ids": lambda rows: tuple(row[:64] for row in rows),
    "last ids": lambda rows: tuple(row[-64:] for row in rows),
    "length": lambda rows: tuple(map(len, rows)),
    "the first feature": lambda rows: rows[0],
    "all but the last feature": lambda rows: rows[:-1],
    "features end to end": lambda rows: tuple(itertools.chain(*rows)),
    "features in any order": lambda rows: tuple(sorted(rows)),
    "sum of all": lambda rows: sum(map(sum, rows)),
    "empty is 0": lambda rows: tuple(row or (0,) for row in rows),
}


def test_samples_distinguished_by_all_their_ids_come_back() -> None:
    check_record(record(DedupRecord, lambda: SameByKey(lambda rows: rows)))


@pytest.mark.parametrize("key", APPROXIMATE)
def test_a_dedup_that_takes_nearly_equal_samples_for_equal_is_caught(key: str) -> None:
    message = broken(record(DedupRecord, lambda: SameByKey(APPROXIMATE[key])))
    assert "must come back through expand, but they differ" in message
    assert "these rows are nearly equal" in message

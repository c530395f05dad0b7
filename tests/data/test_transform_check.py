"""Value tests: a job that deduplicates refuses a transform that looks at other rows, or draws; all
others pass, and so does everything where nothing is deduplicated."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.api.batch import (
    Batch,
    InverseKeyedJaggedTensor,
    PartialInverseKeyedJaggedTensor,
)
from recd_plugins.api.data import Schema, SparseFeature
from recd_plugins.api.rows import with_feature, with_ids
from recd_plugins.api.testing import random_batch
from recd_plugins.data.preprocess.batch_transform import BatchTransform, batch_steps
from recd_plugins.data.preprocess.steps import ChosenTransform, steps_of
from recd_plugins.errors import PluginError

SCHEMA = Schema(
    dense=("age", "price"),
    sparse=(
        SparseFeature(name="history", num_ids=1000, sequence=True),
        SparseFeature(name="item", num_ids=1000, scored=True),
    ),
)


class Alike:
    """A transform of ids by a function of them all; the schema stays."""

    def __init__(self, ids: Callable[[Tensor], Tensor], **says: object) -> None:
        self.ids = ids
        self.__dict__.update(says)

    def __call__(self, features: KeyedJaggedTensor) -> KeyedJaggedTensor:
        return with_ids(features, self.ids(features.values()))

    def schema(self, schema: Schema) -> Schema:
        return schema


class Exact:
    groups = (("history",),)

    def convert(self, features: Any) -> InverseKeyedJaggedTensor:
        made: InverseKeyedJaggedTensor = features.to_ikjt(self.groups)
        return made


class Partial:
    groups = (("history",),)

    def convert(self, features: Any) -> PartialInverseKeyedJaggedTensor:
        return PartialInverseKeyedJaggedTensor.from_kjt(features.to_kjt(), self.groups)


def job(transform: Any, *, features: str = "*", dedup: Any = None) -> BatchTransform:
    chosen = ChosenTransform(
        who="preprocess: 'mine'", where="", features=(features,), transform=transform
    )
    return BatchTransform(batch_steps(steps_of([chosen], SCHEMA)), dedup)


def batch(rows: int = 16, seed: int = 0) -> Batch:
    return random_batch(SCHEMA, rows, seed=seed)


def in_place(ids: Tensor) -> Tensor:
    return ids.remainder_(7)


def shuffled(ids: Tensor) -> Tensor:
    return ids[torch.randperm(len(ids))]


@pytest.mark.parametrize(
    ("ids", "says"),
    [
        (lambda ids: ids.roll(1), "makes of a row what depends on the other rows of its batch: '"),
        (
            lambda ids: (ids - ids[0]).abs(),
            "or say `row_wise = False` and leave these features out of dedup.groups.",
        ),
        (shuffled, "makes something else of the same batch each time: 'history' of sample 12 of a"),
        (shuffled, "seed it by the ids, or leave these features out of dedup.groups."),
    ],
)
def test_what_breaks_the_contract_is_named(ids: Callable[[Tensor], Tensor], says: str) -> None:
    with pytest.raises(PluginError, match=r"^preprocess: 'mine' ") as caught:
        job(Alike(ids), features="history", dedup=Exact())(batch())
    assert says in str(caught.value)
    job(Alike(ids), features="history")(batch())  # without dedup, all of it is right


def test_rows_in_reverse_are_named_though_those_of_a_session_are_alike() -> None:
    ids = torch.cat([torch.arange(16) // 4, torch.arange(16)])
    features = KeyedJaggedTensor(["history", "item"], ids, torch.ones(32), torch.ones(32).int())
    given = dataclasses.replace(batch(), features=features)
    with pytest.raises(PluginError, match="depends on the other rows"):
        job(Alike(lambda ids: ids.flip(0)), features="history", dedup=Exact())(given)


@pytest.mark.parametrize("dedup", [None, Exact()])
@pytest.mark.parametrize("rows", [0, 1, 2, 5])
@pytest.mark.parametrize("ids", [lambda ids: ids % 7, in_place])
def test_what_keeps_it_passes_on_batches_of_any_size(
    ids: Callable[[Tensor], Tensor], rows: int, dedup: Any
) -> None:
    given = batch(rows)
    expected = (given.features["history"].values() % 7).tolist()
    lengths = given.features["history"].lengths().tolist()
    made = job(Alike(ids), features="history", dedup=dedup)(given)
    features = made.features if dedup is None else made.dedup.to_kjt(["history"])
    assert features["history"].values().tolist() == expected
    assert features["history"].lengths().tolist() == lengths


def test_a_feature_that_is_made_of_several_is_held_to_it_too() -> None:
    """A new feature that is made of the lengths of others, and one that shifts these by a row."""

    class Counts(Alike):
        def __call__(self, features: KeyedJaggedTensor) -> KeyedJaggedTensor:
            counts = self.ids(features["history"].lengths().long())
            return with_feature(features, "count", counts, torch.ones_like(counts))

        def schema(self, schema: Schema) -> Schema:
            return schema.add([SparseFeature(name="count", num_ids=1000)])

    made = job(Counts(lambda counts: counts), features="history", dedup=Exact())(batch())
    count = made.dedup.to_kjt(["count"])["count"]
    assert count.values().equal(batch().features["history"].lengths().long())
    with pytest.raises(PluginError, match=r"'count' of sample \d+ of a batch became \["):
        job(Counts(lambda counts: counts.cumsum(0)), features="history", dedup=Exact())(batch())


def test_the_second_and_the_fourth_batch_are_looked_at_again() -> None:
    seen: list[int] = []

    def late(ids: Tensor) -> Tensor:
        return ids.roll(1) if len(seen) > 2 else ids

    run = job(Alike(late), features="history", dedup=Exact())
    for number in range(3):
        run(batch(seed=number))
        seen.append(number)
    with pytest.raises(PluginError, match="depends on the other rows"):
        run(batch(seed=3))


def test_one_id_in_hundreds_may_fall_into_the_next_bucket() -> None:
    """As where kernels round a logarithm otherwise at the end of a tensor."""

    def last_of_all(ids: Tensor) -> Tensor:
        made = ids % 7
        made[-1:] += len(ids) % 2 + len(ids)
        return made % 1000

    job(Alike(last_of_all), features="history", dedup=Exact())(batch(600))
    with pytest.raises(PluginError, match="depends on the other rows"):
        job(Alike(last_of_all), features="history", dedup=Exact())(batch(30))


class EachRow(Alike):
    """A transform of ids by a function of a row's."""

    def __call__(self, features: KeyedJaggedTensor) -> KeyedJaggedTensor:
        rows = torch.split(features.values(), features.lengths().tolist())
        return with_ids(features, torch.cat([self.ids(row) for row in rows]))


@pytest.mark.parametrize(
    "ids", [lambda row: row.sort()[0], lambda row: row * (torch.arange(len(row)) > 0)]
)
def test_a_transform_of_rows_that_says_it_is_one_of_ids_is_named(
    ids: Callable[[Tensor], Tensor],
) -> None:
    says = "^preprocess: 'mine' says `elementwise = True`, but makes of an id what depends on the"
    with pytest.raises(PluginError, match=says) as caught:
        job(EachRow(ids, elementwise=True), features="history", dedup=Partial())(batch())
    assert "take that attribute away" in str(caught.value)
    expected = job(EachRow(ids), features="history")(batch()).features["history"]
    for dedup, claims in ((Partial(), {}), (Exact(), {"elementwise": True})):
        made = job(EachRow(ids, **claims), features="history", dedup=dedup)(batch()).dedup
        found = made.to_kjt(["history"])["history"]
        assert found.values().equal(expected.values())
        assert found.lengths().equal(expected.lengths())


def test_a_transform_that_cuts_rows_and_says_it_is_one_of_ids_is_named() -> None:
    class First(Alike):
        def __call__(self, features: KeyedJaggedTensor) -> KeyedJaggedTensor:
            lengths = features.lengths()
            rows = torch.split(features.values(), lengths.tolist())
            ids = torch.cat([row[:1] for row in rows])
            return with_ids(features, ids, lengths=lengths.clamp(max=1))

    run = job(First(lambda ids: ids, elementwise=True), features="history", dedup=Partial())
    with pytest.raises(PluginError, match="says `elementwise = True`, but changes how many ids"):
        run(batch())


@pytest.mark.parametrize("rows", [0, 1, 2, 5, 40])
@pytest.mark.parametrize("ids", [lambda ids: ids % 7, in_place])
def test_a_transform_of_ids_passes_on_batches_of_any_size(
    ids: Callable[[Tensor], Tensor], rows: int
) -> None:
    given = batch(rows)
    expected = (given.features["history"].values() % 7).tolist()
    made = job(Alike(ids, elementwise=True), features="history", dedup=Partial())(given)
    assert made.dedup.to_kjt(["history"])["history"].values().tolist() == expected

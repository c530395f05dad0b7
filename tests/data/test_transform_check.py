"""Value tests: a job's batches show a transform that looks at other rows, draws, or works in place,
and let all others pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.api.batch import Batch, InverseKeyedJaggedTensor
from recd_plugins.api.data import Schema, SparseFeature
from recd_plugins.api.rows import with_feature, with_ids
from recd_plugins.api.testing import random_batch
from recd_plugins.data.preprocessing import ChosenTransform, steps_of
from recd_plugins.data.transform import BatchTransform, batch_steps
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


class Dense:
    dense = True

    def __init__(self, floats: Callable[[Tensor], Tensor], **says: object) -> None:
        self.floats = floats
        self.__dict__.update(says)

    def __call__(self, columns: Tensor, schema: Schema) -> Tensor:
        return self.floats(columns)

    def schema(self, schema: Schema) -> Schema:
        return schema


class Exact:
    groups = (("history",),)

    def convert(self, features: Any) -> InverseKeyedJaggedTensor:
        made: InverseKeyedJaggedTensor = features.to_ikjt(self.groups)
        return made


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


@pytest.mark.parametrize("dedup", [None, Exact()])
@pytest.mark.parametrize(
    ("ids", "says"),
    [
        (lambda ids: ids.roll(1), "makes of a row what depends on the other rows of its batch: '"),
        (
            lambda ids: (ids - ids[0]).abs(),
            "or say `row_wise = False` where it must look at others",
        ),
        (shuffled, "makes something else of the same batch each time: 'history' of sample 15 of a"),
        (shuffled, "draw nothing that it does not seed by the ids"),
        (in_place, "changes the features that it is given, which are the batch's own"),
    ],
)
def test_what_breaks_the_contract_is_named(
    ids: Callable[[Tensor], Tensor], says: str, dedup: Any
) -> None:
    with pytest.raises(PluginError, match=r"^preprocess: 'mine' ") as caught:
        job(Alike(ids), features="history", dedup=dedup)(batch())
    assert says in str(caught.value)


@pytest.mark.parametrize("dedup", [None, Exact()])
@pytest.mark.parametrize("rows", [0, 1, 2, 5])
def test_what_keeps_it_passes_on_batches_of_any_size(rows: int, dedup: Any) -> None:
    given = batch(rows)
    made = job(Alike(lambda ids: ids % 7), features="history", dedup=dedup)(given)
    features = made.features if dedup is None else made.dedup.to_kjt(["history"])
    expected = given.features["history"]
    assert features["history"].values().tolist() == (expected.values() % 7).tolist()
    assert features["history"].lengths().tolist() == expected.lengths().tolist()


def test_a_transform_that_says_so_may_look_at_other_rows() -> None:
    job(Alike(lambda ids: ids.roll(1), row_wise=False))(batch())
    job(Dense(lambda columns: columns - columns.mean(0), row_wise=False))(batch())


def test_rows_of_all_that_it_takes_are_held_alike() -> None:
    """A new feature that is made of the lengths of others, and one that shifts these by a row."""

    class Counts(Alike):
        def __call__(self, features: KeyedJaggedTensor) -> KeyedJaggedTensor:
            counts = self.ids(features["history"].lengths().long())
            return with_feature(features, "count", counts, torch.ones_like(counts))

        def schema(self, schema: Schema) -> Schema:
            return schema.add([SparseFeature(name="count", num_ids=1000)])

    made = job(Counts(lambda counts: counts))(batch())
    assert made.features["count"].values().equal(batch().features["history"].lengths().long())
    with pytest.raises(PluginError, match=r"'count' of sample \d+ of a batch became \["):
        job(Counts(lambda counts: counts.cumsum(0)))(batch())


@pytest.mark.parametrize(
    ("floats", "says"),
    [
        (lambda columns: columns - columns.mean(0), "its column 0 of sample 15 of a batch was "),
        (lambda columns: columns + torch.rand(()), "something else of the same batch each time"),
    ],
)
def test_dense_columns_are_held_to_it_too(floats: Callable[[Tensor], Tensor], says: str) -> None:
    with pytest.raises(PluginError, match=f"^preprocess: 'mine' .*{says}"):
        job(Dense(floats))(batch())


def test_dense_columns_may_be_rounded_otherwise() -> None:
    job(Dense(lambda columns: columns.abs().log1p() * (1 + 1e-6 * len(columns))))(batch())


def test_the_second_and_the_fourth_batch_are_looked_at_again() -> None:
    seen: list[int] = []

    def late(ids: Tensor) -> Tensor:
        return ids.roll(1) if len(seen) > 2 else ids

    run = job(Alike(late))
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

    job(Alike(last_of_all))(batch(300))
    with pytest.raises(PluginError, match="depends on the other rows"):
        job(Alike(last_of_all))(batch(30))

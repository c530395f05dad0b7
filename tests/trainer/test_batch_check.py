"""Value tests: a batch that does not fit the schema is told by what does not, and by its reader."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torchrec import KeyedJaggedTensor

from recd_plugins.data.batch import Batch
from recd_plugins.data.schema import Schema, SparseFeature
from recd_plugins.errors import DataError, PluginError
from recd_plugins.slots import Loader
from recd_plugins.slots.batch_check import BatchCheck, checked
from recd_plugins.sparse.ikjt import InverseKeyedJaggedTensor
from recd_plugins.trainer.checkpoints.positions import Positions

SCHEMA = Schema(
    sparse=(SparseFeature(name="a", num_ids=9), SparseFeature(name="b", num_ids=5)),
    dense=("d",),
    session_id=None,
    timestamp=None,
)
FEATURES = KeyedJaggedTensor(
    ["a"], torch.tensor([8, 0, 8]), lengths=torch.tensor([1, 1, 1, 0]), stride=4
)
SHARED = KeyedJaggedTensor(
    ["b"], torch.tensor([4, 4, 1]), lengths=torch.tensor([1, 1, 1, 0]), stride=4
)
RIGHT = Batch(
    dense=torch.zeros(4, 1),
    features=FEATURES,
    labels=torch.zeros(4),
    weights=torch.ones(4),
    dedup=InverseKeyedJaggedTensor.from_kjt(SHARED),
)


def kjt(**parts: Any) -> KeyedJaggedTensor:
    given = {"keys": ["a"], "values": FEATURES.values(), "lengths": FEATURES.lengths(), **parts}
    return KeyedJaggedTensor(stride=4, **given)


def with_lookup(place: int) -> InverseKeyedJaggedTensor:
    made = InverseKeyedJaggedTensor.from_kjt(SHARED)
    lookup = made.inverse_lookup.clone()
    lookup[0, 1] = place
    return dataclasses.replace(made, inverse_lookup=lookup)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "dense, short": ({"dense": torch.zeros(3, 1)}, "dense of shape [3, 1], where the schema asks"),
    "dense, wide": ({"dense": torch.zeros(4, 2)}, "for [4, 1] in a batch of 4 samples."),
    "dense, double": ({"dense": torch.zeros(4, 1).double()}, "dense of torch.float64, where"),
    "no samples": ({"labels": torch.zeros(0)}, "a batch of no samples, of which TorchRec"),
    "labels": ({"labels": torch.zeros(4, 1)}, "labels of shape [4, 1]"),
    "labels, whole": ({"labels": torch.zeros(4).long()}, "labels of torch.int64, where"),
    "weights": ({"weights": None}, "weights of NoneType, where they must be a tensor of float32."),
    "no features": ({"features": None}, "features that are a NoneType"),
    "unknown": ({"features": kjt(keys=["c"])}, "a feature 'c', which the schema does not have;"),
    "lacking": ({"dedup": None}, "a batch without feature b, which the schema has. Give each"),
    "floats": ({"features": kjt(values=torch.ones(3))}, "ids of torch.float32, where"),
    "lengths": ({"features": kjt(lengths=torch.tensor([2, 2, 0, 0]))}, "add up to 4 for 3 ids."),
    "weights of ids": ({"features": kjt(weights=torch.ones(4))}, "4 weights of 3 ids. Give each"),
    "negative": (
        {"features": kjt(lengths=torch.tensor([4, -1, 0, 0]))},
        "a row of -1 ids of feature 'a'.",
    ),
    "large": ({"features": kjt(values=torch.tensor([8, 0, 9]))}, "id 9 of feature 'a', outside [0"),
    "small": ({"features": kjt(values=torch.tensor([8, 0, -1]))}, "id -1 of feature 'a', outside"),
    "text": ({"dedup": "abc"}, "`dedup` of str, which has no to, but what a converter"),
    "lookup": ({"dedup": with_lookup(7)}, "reaches from 0 to 7, outside of its"),
    "converted": (
        {"dedup": kjt(keys=["b"], values=torch.tensor([4, 5, 1]))},
        "id 5 of feature 'b'",
    ),
}


def test_a_batch_of_the_schema_passes() -> None:
    check = BatchCheck(SCHEMA, "R")
    for _ in range(3):
        check(RIGHT)


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_is_named(name: str) -> None:
    parts, says = WRONG[name]
    batch = object.__new__(Batch)  # a reader may set parts after it is made
    vars(batch).update({**vars(RIGHT), **parts})
    with pytest.raises((PluginError, DataError)) as caught:
        BatchCheck(SCHEMA, "R: its loader yielded")(batch)
    assert says in str(caught.value)


def test_rows_are_as_many_as_labels() -> None:
    of_three = InverseKeyedJaggedTensor.from_kjt(
        KeyedJaggedTensor(["b"], torch.tensor([4]), lengths=torch.tensor([1, 0, 0]))
    )
    with pytest.raises(PluginError, match="a `dedup` of 3 samples for 4 labels"):
        BatchCheck(SCHEMA, "R: its loader yielded")(dataclasses.replace(RIGHT, dedup=of_three))
    small = {"dense": torch.zeros(2, 1), "labels": torch.zeros(2), "weights": torch.ones(2)}
    with pytest.raises(PluginError, match="features of 4 rows for 2 labels"):
        BatchCheck(SCHEMA, "R: its loader yielded")(dataclasses.replace(RIGHT, **small))


def test_a_batch_that_no_converter_has_seen_is_told() -> None:
    every = KeyedJaggedTensor(["a", "b"], torch.tensor([1]), lengths=torch.tensor([1] + [0] * 7))
    plain = dataclasses.replace(RIGHT, features=every, dedup=None)
    BatchCheck(SCHEMA, "R")(plain)
    with pytest.raises(PluginError, match="R a batch without the `dedup` that"):
        BatchCheck(SCHEMA, "R", converted=True)(plain)


def test_the_ids_of_each_batch_are_looked_at() -> None:
    check, seen = BatchCheck(SCHEMA, "R"), []
    wrong = dataclasses.replace(RIGHT, features=kjt(values=torch.tensor([8, 0, 9])))
    for number in range(1, 9):
        check(RIGHT)
        try:
            check(wrong)
        except DataError:
            seen.append(number)
    assert seen == [*range(1, 9)]


def test_ids_that_whoever_made_them_has_checked_are_not_looked_at() -> None:
    wrong = dataclasses.replace(RIGHT, features=kjt(values=torch.tensor([8, 0, 9])))
    BatchCheck(SCHEMA, "R", ids=False)(wrong)


class Odd(Loader):
    """A loader of no batches, with a state of its own."""

    def __init__(self, state: Any = None) -> None:
        self.state = {} if state is None else state

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Any:
        return iter(())

    def state_dict(self) -> dict[str, Any]:
        return self.state  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: next(Positions(Odd(), 3)), "says that an epoch has 3 batches, but yielded none"),
        (lambda: Positions(Odd({"x": torch.ones(1)}), 3), "`state_dict` of Odd returned {'x': ten"),
        (lambda: Positions(Odd({"x": {1}}), 3), "which a checkpoint cannot keep as JSON."),
        (lambda: Positions(Odd("abc"), 3), "`state_dict` of Odd returned 'abc'"),
    ],
)
def test_a_loader_that_cannot_be_gone_on_with_is_told(
    call: Callable[[], object], says: str
) -> None:
    with pytest.raises((PluginError, DataError)) as caught:
        call()
    assert says in str(caught.value)


class Ring(Odd):
    """A loader that has memory for some batches, and writes the next over the first of them."""

    def __init__(self, places: int, batches: int = 40) -> None:
        super().__init__()
        self.labels = [torch.zeros(4) for _ in range(places)]
        self.batches = batches

    def __len__(self) -> int:
        return self.batches

    def __iter__(self) -> Any:
        for number in range(self.batches):
            labels = self.labels[number % len(self.labels)]
            yield dataclasses.replace(RIGHT, labels=labels.fill_(number % 7))


def test_batches_that_are_written_over_while_a_pipeline_holds_them_are_their_readers() -> None:
    """It would train a step on the labels of the next."""
    check = BatchCheck(SCHEMA, "reader 'mine': its loader yielded")
    for places in (1, 2):
        loader = checked(Ring(places), check, lambda device: None)
        says = r"reader 'mine': its loader yielded batches that change afterwards: .*batch\.labels"
        with pytest.raises(PluginError, match=says):
            list(loader)
    assert len(list(checked(Ring(3), check, lambda device: None))) == 40
    same = checked([RIGHT] * 40, check, lambda device: None)  # type: ignore[arg-type]
    assert len(list(same)) == 40


class OfEpochs(Odd):
    """A loader that is told of its epoch."""

    epoch = 0


def test_what_a_checked_loader_is_given_is_its_loaders() -> None:
    loader = OfEpochs()
    of_checked: Any = checked(loader, BatchCheck(SCHEMA, "R"), lambda device: None)
    of_checked.epoch = 3
    assert loader.epoch == of_checked.epoch == 3
    del of_checked.epoch
    assert loader.epoch == of_checked.epoch == 0
    assert list(vars(loader)) == ["state"]

"""Rung 1: each batch of `stack.loader` is held to the schema, whoever made it."""

from __future__ import annotations

import multiprocessing
import pickle
from pathlib import Path
from typing import Any

import pytest

from recd_plugins.data.preprocess.batch_transform import BatchTransform
from recd_plugins.data.reader.local_loader import LocalLoader
from recd_plugins.errors import CapabilityError, DataError, PluginError
from recd_plugins.notices import NoticeWarning
from recd_plugins.planning.access.sample import SpreadsBatches
from recd_plugins.stack import Stack, load

PLUGIN = str(Path(__file__).with_name("reader_plugin.py"))


def stack_of(folder: Path, **changed: Any) -> Stack:
    return load(
        {
            "plugins": ["recd_dlrm", "recd_dedup", PLUGIN],
            "folder": str(folder),
            "dataset": {
                "use": "random",
                "samples": 160,
                "test_samples": 16,
                "num_ids": [50, 20],
                "lookups": 2,
            },
            "train": {"batch_size": 16, "device": "cpu"},
            **changed,
        }
    )


def test_one_rare_id_of_a_reader_is_told_at_its_batch(tmp_path: Path) -> None:
    loader = stack_of(tmp_path, reader={"use": "rare", "at": 2, "id": 20}).loader(0, 1)
    assert not isinstance(loader, SpreadsBatches)
    batches = iter(loader)
    assert len([next(batches), next(batches)]) == 2
    with pytest.raises(DataError, match=r"reader.*'rare'.* yielded id 20 of feature 'cat_1', out"):
        next(batches)


@pytest.mark.parametrize(
    ("reader", "says"),
    [
        ({"lasts": 3}, "3 batches in an epoch of 10"),
        ({"says": 11}, "10 batches in an epoch of 11"),
        ({"says": 9}, "a batch beyond the 9 of an epoch"),
    ],
)
def test_an_epoch_is_as_long_as_its_loader_says(
    tmp_path: Path, reader: dict[str, int], says: str
) -> None:
    loader = stack_of(tmp_path, reader={"use": "rare", "at": 99, **reader}).loader(0, 1)
    with pytest.raises(PluginError, match=rf"reader 'rare' of .* yielded {says}\. Let `__len__`"):
        list(loader)


def test_an_epoch_that_is_gone_on_with_may_be_shorter(tmp_path: Path) -> None:
    loader = stack_of(tmp_path, reader={"use": "rare", "at": 99}).loader(0, 1)
    first = iter(loader)
    next(first)
    state = loader.state_dict()
    assert len(list(loader)) == 9
    assert [len(list(loader)), len(list(loader))] == [10, 10]
    loader.load_state_dict(state)
    assert len(list(loader)) == 9


def test_whatever_else_a_loader_has_is_its_own(tmp_path: Path) -> None:
    stack = stack_of(tmp_path, reader={"use": "rare", "at": 99})
    loader, plain = stack.loader(0, 1), stack_of(tmp_path).loader(0, 1)
    assert loader.own == "its own"  # type: ignore[attr-defined]
    first = iter(loader)
    for _ in range(3):
        next(first)
    resumed = stack.loader(0, 1)
    resumed.load_state_dict(loader.state_dict())
    rest = [batch.features.values().tolist() for batch in plain][3:]
    assert [batch.features.values().tolist() for batch in resumed] == rest
    loader.close()


def test_batches_from_all_over_the_epoch_are_checked_too(tmp_path: Path) -> None:
    loader = stack_of(tmp_path, reader={"use": "rare", "at": 2, "spreads": True}).loader(0, 1)
    assert isinstance(loader, SpreadsBatches)
    assert loader.places > 1
    with pytest.raises(DataError, match="yielded id 99 of feature 'cat_1'"):
        list(loader.spread(range(5), 1))


@pytest.mark.parametrize("dedup", [None, {"use": "exact", "groups": [["cat_1"]]}])
@pytest.mark.parametrize("reader", [{"use": "local"}, {"use": "rare", "at": 99}])
def test_one_rare_id_of_a_transform_is_told(
    tmp_path: Path, dedup: dict[str, Any] | None, reader: dict[str, Any]
) -> None:
    steps = [{"use": "rare", "at": 2, "id": 20, "features": ["cat_1"]}]
    more = {} if dedup is None else {"dedup": dedup}
    loader = stack_of(tmp_path, reader=reader, preprocess=steps, **more).loader(0, 1)
    with pytest.raises(DataError, match=r"preprocess 'rare'.* made id 20 of feature 'cat_1'"):
        list(loader)


def test_ids_on_a_device_are_not_waited_for_and_that_is_said_once(tmp_path: Path) -> None:
    stack = stack_of(tmp_path, reader={"use": "rare", "device": "meta"})
    with pytest.warns(NoticeWarning, match="reader: rare is not checked: .* come on meta") as said:
        assert len([*stack.loader(0, 1), *stack.loader(0, 1)]) == 20
    assert len(said) == 1


def test_the_hosts_readers_check_as_they_read(tmp_path: Path) -> None:
    loader = stack_of(tmp_path).loader(0, 1)
    assert isinstance(loader, LocalLoader)
    assert loader.checks_ids


def test_a_reader_of_batches_of_another_size_is_told(tmp_path: Path) -> None:
    stack = stack_of(tmp_path, reader={"use": "rare", "at": 99, "smaller": 2})
    with pytest.warns(NoticeWarning) as found:
        assert len([*stack.loader(0, 1), *stack.loader(0, 1, "test")]) == 22
    assert [str(one.message) for one in found] == [
        "reader: rare may train otherwise: its first batch has 8 samples, where train.batch_size "
        "is 16. Have its loader yield batches of the `batch_size` that it is given."
    ]


@pytest.mark.parametrize("transforms", ["never", "never, bare", "never, wrapped"])
def test_a_reader_whose_batches_go_through_no_transform_is_told(
    tmp_path: Path, transforms: str
) -> None:
    plugins = ["recd_dlrm", "recd_dsi", PLUGIN]
    steps = [{"use": "first_x", "n": 1, "features": ["cat_1"]}]
    reader = {"use": "rare", "at": 99, "transforms": transforms}
    stack = stack_of(tmp_path, plugins=plugins, reader=reader, preprocess=steps)
    with pytest.warns(NoticeWarning) as found:
        assert len([*stack.loader(0, 1), *stack.loader(0, 1, "test")]) == 11
    assert [str(one.message) for one in found] == [
        "preprocess[0]: first_x is not used: the loader of reader: rare yields batches that did "
        "not go through the `transform` that it was given. Have it yield `transform(batch)`, or "
        "take another reader."
    ]
    strict = stack_of(tmp_path, plugins=plugins, reader=reader, preprocess=steps, strict=True)
    with pytest.raises(CapabilityError, match="first_x is not used"):
        list(strict.loader(0, 1))


@pytest.mark.parametrize("transforms", ["inside", "outside"])
@pytest.mark.parametrize("steps", [[], [{"use": "first_x", "n": 1, "features": ["cat_1"]}]])
@pytest.mark.filterwarnings("error::recd_plugins.notices.NoticeWarning")
def test_whoever_calls_the_transform_is_right(
    tmp_path: Path, transforms: str, steps: list[Any]
) -> None:
    reader = {"use": "rare", "at": 99, "transforms": transforms}
    plugins = ["recd_dlrm", "recd_dsi", PLUGIN]
    stack = stack_of(tmp_path, plugins=plugins, reader=reader, preprocess=steps)
    longest = max(int(batch.features["cat_1"].lengths().max()) for batch in stack.loader(0, 1))
    assert longest == (1 if steps else 2)


def test_a_transform_knows_of_batches_in_another_process(tmp_path: Path) -> None:
    (batch, *_) = stack_of(tmp_path).loader(0, 1)
    pickled, forked, here = BatchTransform([]), BatchTransform([]), BatchTransform([])
    assert not any(one.taken_up for one in (pickled, forked, here))
    assert not pickle.loads(pickle.dumps(pickled)).taken_up
    child = multiprocessing.get_context("fork").Process(target=forked, args=(batch,))
    child.start()
    child.join(60)
    here(batch)
    assert pickled.taken_up
    assert forked.taken_up
    assert here.taken_up

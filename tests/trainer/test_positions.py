"""Ladder: every way of reading ahead over a small loader, then TorchRec's pipeline on a rank."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from probe_plugin import probe_registry

from recd_plugins.errors import DataError, PluginError
from recd_plugins.stack import load
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.trainer.assemble import assemble
from recd_plugins.trainer.checkpoints.positions import Positions


class Numbers:
    """A `Loader` of (epoch, batch) pairs; its state is where it will go on."""

    def __init__(self, length: int, epoch: int = 0, batch: int = 0) -> None:
        self.length = length
        self.epoch = epoch
        self.batch = batch

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[Any]:
        while self.batch < self.length:
            self.batch += 1
            yield self.epoch, self.batch - 1
        self.epoch, self.batch = self.epoch + 1, 0

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "batch": self.batch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.batch = state["epoch"], state["batch"]


class Counts(Numbers):
    """The same; its state is the one mapping in which it counts."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.counts: dict[str, Any] = {}

    def state_dict(self) -> dict[str, Any]:
        self.counts |= super().state_dict()
        return self.counts


def batches(length: int, steps: int) -> list[tuple[int, int]]:
    """What a loader of `length` yields over as many epochs as it takes."""
    everything = ((epoch, batch) for epoch in itertools.count() for batch in range(length))
    return list(itertools.islice(everything, steps))


@given(
    length=st.integers(1, 5),
    steps=st.integers(1, 17),
    ahead=st.integers(0, 3),
    kind=st.sampled_from([Numbers, Counts]),
    data=st.data(),
)
def test_the_state_is_that_of_the_last_trained_batch(
    length: int, steps: int, ahead: int, kind: type[Numbers], data: st.DataObject
) -> None:
    """Read up to `ahead` batches more than are trained; resume anywhere, read ahead anew."""
    expected = batches(length, steps)
    stopped = data.draw(st.integers(0, steps), label="stopped")
    trained: list[object] = []
    positions = Positions(kind(length), steps)
    state = _train(positions, stopped, ahead, trained)
    resumed = kind(length)
    resumed.load_state_dict(state)
    positions = Positions(resumed, steps - stopped)
    assert positions.state == state
    _train(positions, steps - stopped, data.draw(st.integers(0, 3), label="later"), trained)
    assert trained == expected


def of_other_lengths() -> str:
    """On a rank: what is said of loaders whose epochs end apart."""
    Positions(Numbers(3), 3)
    with pytest.raises(PluginError) as caught:
        Positions(Numbers(3 - dist.get_rank()), 3)
    return str(caught.value)


def test_epochs_that_are_not_as_long_on_every_rank_are_told(gloo_pool: GlooPool) -> None:
    first, second = gloo_pool.run(of_other_lengths)
    assert first == second
    assert first == (
        "reader: the batches of the train split that Numbers says an epoch has differ on the "
        "ranks: rank 0 has 3, and rank 1 has 2. Let its `__len__` say the same on every rank."
    )


def _train(positions: Positions, steps: int, ahead: int, trained: list[object]) -> dict[str, Any]:
    """As a pipeline does: hold up to `ahead` batches that are read and not trained yet."""
    held: list[object] = []
    for _ in range(steps):
        while len(held) <= ahead:
            try:
                held.append(next(positions))
            except StopIteration:
                break
        trained.append(held.pop(0))
        positions.trained()
    return positions.state


def test_no_more_than_the_steps_are_read() -> None:
    loader = Numbers(2)
    positions = Positions(loader, 5)
    assert list(positions) == batches(2, 5)
    assert (loader.epoch, loader.batch) == (2, 1)
    with pytest.raises(StopIteration):
        next(positions)
    assert list(Positions(Numbers(2), 0)) == []


def test_nothing_trained_is_the_loaders_start() -> None:
    positions = Positions(Numbers(3, epoch=4, batch=2), 5)
    assert positions.state == {"epoch": 4, "batch": 2}
    next(positions)
    next(positions)
    assert positions.state == {"epoch": 4, "batch": 2}
    positions.trained()
    assert positions.state == {"epoch": 4, "batch": 3}
    positions.trained()
    assert positions.state == {"epoch": 5, "batch": 1}


def test_a_state_that_the_loader_changes_later_stays(tmp_path: Path) -> None:
    stack = load(probe_registry(tmp_path, rows=64))
    loader = stack.loader(0, 1)
    positions = Positions(loader, 12)
    states = []
    for _ in range(12):
        next(positions)
        states.append(loader.state_dict())
    for state in states:
        positions.trained()
        assert positions.state == state
    assert len({str(state) for state in states}) == 12


def test_a_loader_without_a_batch_is_refused() -> None:
    with pytest.raises(DataError, match=r"fewer rows than one step takes.*lower train.batch_size"):
        Positions(Numbers(0), 3)


def states_in_pipeline(registry: dict[str, Any], steps: int) -> list[dict[str, Any]]:
    """On a rank: the position after each step of TorchRec's own pipeline."""
    stack = load(registry)
    job = assemble(stack, torch.device("cpu"))
    positions = Positions(stack.loader(0, 1), steps)
    states = [positions.state]
    for _ in range(steps):
        job.pipeline.progress(positions)
        positions.trained()
        states.append(positions.state)
    return states


def test_torchrecs_pipeline_reads_ahead_and_leaves_no_trace(
    tmp_path: Path, gloo_pool: GlooPool
) -> None:
    registry = probe_registry(tmp_path, rows=24)  # three batches an epoch
    loader = load(registry).loader(0, 1)
    expected = [loader.state_dict()]
    while len(expected) <= 8:
        expected.extend(loader.state_dict() for _ in loader)
    (found,) = gloo_pool.run(states_in_pipeline, registry, 8, world_size=1)
    assert found == expected[:9]

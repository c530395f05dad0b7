"""Ladder: pure values. A loader that resumes exactly passes; each way not to is reported."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from recd_plugins.data.batch import Batch
from recd_plugins.slots import Loader
from recd_plugins.testing.batches import random_batch
from recd_plugins.testing.probe import SCHEMA
from recd_plugins.testing.resume import check_resume


@dataclass
class Counting:
    """Batch number `at` of an epoch is drawn from (epoch, at); `break_` says what is wrong."""

    break_: str = ""
    length: int = 5
    epoch: int = 0
    at: int = 0

    def __len__(self) -> int:
        return self.length + (self.break_ == "length")

    def __iter__(self) -> Iterator[Batch]:
        while self.at < self.length:
            self.at += 1
            yield self.draw(100 * self.epoch + self.at)
        self.epoch, self.at = self.epoch + 1, 0

    def draw(self, seed: int) -> Batch:
        batch = random_batch(SCHEMA, 4, seed=seed)
        if self.break_ == "random":
            batch.dense = torch.randn(4, 2)
        return batch

    def state_dict(self) -> dict[str, Any]:
        at: Any = torch.tensor(self.at) if self.break_ == "tensor" else self.at
        epoch = 0 if self.break_ == "epoch" else self.epoch
        return {"epoch": epoch, "at": at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.at = state["epoch"], state["at"]
        if self.break_ == "skip" and self.at == 3:
            self.at += 1
        if self.break_ == "edge" and self.at == self.length:
            self.at = 0  # the same epoch again


class Early(Counting):
    """Its state is that of the next epoch as soon as the last batch is out."""

    def __iter__(self) -> Iterator[Batch]:
        while True:
            self.at += 1
            batch = self.draw(100 * self.epoch + self.at)
            over = self.at == self.length
            if over:
                self.epoch, self.at = self.epoch + 1, 0
            yield batch
            if over:
                return


def test_loaders_that_resume_exactly_pass_either_way_at_the_edge() -> None:
    check_resume(Counting)
    check_resume(Early)
    check_resume(lambda: Counting(length=40))  # more positions than are tried
    check_resume(Counting, positions=[2])


@pytest.mark.parametrize(
    ("break_", "reason"),
    [
        ("length", r"len\(loader\) is 6, but it yields 5"),
        ("random", "a second loader, from the start: batch 0 differs: dense is"),
        ("tensor", "cannot be written as JSON"),
        ("skip", "resumed after 3 of 5 batches: batch 0 differs: dense is"),
        ("edge", "resumed after 5 of 5 batches, the next epoch: batch 0 differs"),
        ("epoch", "resumed after the epoch's loop had ended: batch 0 differs"),
    ],
)
def test_a_loader_that_does_not_is_reported_with_the_place(break_: str, reason: str) -> None:
    def make() -> Loader:
        return Counting(break_)

    with pytest.raises(AssertionError, match=reason):
        check_resume(make)


def test_an_empty_epoch_shows_nothing() -> None:
    with pytest.raises(AssertionError, match="yields no batch"):
        check_resume(lambda: Counting(length=0))

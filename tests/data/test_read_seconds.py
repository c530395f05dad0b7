"""Value tests: batches bring along what reading them took, part by part."""

from __future__ import annotations

import time
from typing import Any

import pytest
from known_rows import open_loader

from recd_plugins.data.preprocess.batch_transform import BatchTransform, batch_steps
from recd_plugins.data.preprocess.steps import ChosenTransform, steps_of
from recd_plugins.data.read_seconds import PARTS
from recd_plugins.data.schema import Schema

NAP = 0.004


class Naps:
    """A transform that takes its time, of its thread alone."""

    def schema(self, schema: Schema) -> Schema:
        return schema

    def __call__(self, features: Any) -> Any:
        ends = time.thread_time() + NAP
        while time.thread_time() < ends:
            pass
        return features


def naps(table: Any, *labels: str) -> BatchTransform:
    chosen = [
        ChosenTransform(who=label, where="", features=("*",), transform=Naps(), label=label)
        for label in labels
    ]
    return BatchTransform(batch_steps(steps_of(chosen, table.schema)))


@pytest.mark.parametrize("options", [{}, {"prefetch": False}])
def test_every_part_is_there_and_they_add_up(
    table: Any, options: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if options:  # one thread reads and trains: what others do on the machine is not on its clock
        monkeypatch.setattr(time, "perf_counter", time.thread_time)
    loader = open_loader(table, transform=naps(table, "nap", "doze", "nap"), **options)
    names = ["I/O", "decode", "gather", "nap 1", "doze", "nap 2", "hand over"]
    assert list(loader.read_seconds) == names
    assert set(loader.read_seconds.values()) == {0.0}
    began = time.perf_counter()
    count = sum(1 for _ in loader)
    took = time.perf_counter() - began
    found = dict(loader.read_seconds)
    assert list(found) == names
    for name in ("nap 1", "doze", "nap 2"):
        assert NAP * count <= found[name] < took
    assert found["decode"] > 0
    assert found["gather"] > 0
    assert 0 <= found["hand over"] < took
    if options:  # nothing goes on beside anything else
        assert 0.5 * took < sum(found.values()) < took
    list(loader)
    assert all(loader.read_seconds[name] > found[name] for name in ("nap 1", "decode", "gather"))


@pytest.mark.ranks
def test_workers_send_theirs_along(table: Any) -> None:
    loader = open_loader(table, transform=naps(table, "nap"), workers=2)
    began = time.perf_counter()
    count = sum(1 for _ in loader)
    took = time.perf_counter() - began
    assert NAP * count <= loader.read_seconds["nap"] < 2 * took  # of both
    assert loader.read_seconds["decode"] > 0
    assert loader.read_seconds["hand over"] >= 0
    loader.close()


def test_each_part_says_what_it_holds(table: Any) -> None:
    assert {*open_loader(table).read_seconds} <= {*PARTS}

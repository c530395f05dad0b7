"""Value tests: an option that does nothing in this job, on these data or on this machine, is named
by a notice."""

from __future__ import annotations

import datetime
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import recd_plugins as rp
from recd_plugins.notices import NoticeWarning
from recd_plugins.stack import Stack

NUMBERS = pa.array([1, 2], pa.int64())


@contextmanager
def named(found: list[str]) -> Iterator[None]:
    """What is not used, by the notices given inside."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    messages = [str(one.message) for one in caught if one.category is NoticeWarning]
    found += [one.split(" is not used")[0] for one in messages if " is not used" in one]


def loaded(folder: Path, **slots: Any) -> Stack:
    plugins = ["recd_dlrm", "recd_dsi", "recd_flexshard"]
    settings = {"plugins": plugins, "folder": str(folder / "data"), **slots}
    return rp.load({"dataset": SESSIONS, "train": {"batch_size": 16}, **settings})


SESSIONS: Mapping[str, Any] = {
    "use": "sessions",
    "samples": 256,
}


@pytest.mark.parametrize("pooling", ["sum", "transformer", "attention"])
def test_a_query_that_no_pooling_takes(tmp_path: Path, pooling: str) -> None:
    stack = loaded(
        tmp_path,
        model={"use": "sequence_dlrm", "query": {"history": "item"}},
        pooling={"history": {"use": pooling}},
    )
    found: list[str] = []
    with named(found):
        stack.model()
    assert found == ([] if pooling == "attention" else ["model: query.history"])


@pytest.mark.parametrize("reader", ["local", "service"])
@pytest.mark.parametrize("asked", [True, None])
def test_pinned_memory_without_a_device_to_copy_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: str, asked: bool | None
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    options = {} if asked is None else {"pin_memory": asked}
    stack = loaded(tmp_path, reader={"use": reader, **options})
    found: list[str] = []
    with named(found):
        loader = stack.loader(0, 1)
        if reader == "local":  # pinned memory would be an error
            next(iter(loader))
    assert found == (["reader: pin_memory"] if asked else [])


@pytest.mark.parametrize(
    ("times", "unit", "idle"),
    [
        (NUMBERS.cast(pa.timestamp("us")), "s", True),
        (pa.array([datetime.date(2024, 1, 2)] * 2), "yyyymmdd", True),
        (NUMBERS.cast(pa.timestamp("us")), "ms", False),  # the default: nobody knows
        (NUMBERS, "s", False),
    ],
)
def test_the_unit_of_times_that_say_theirs(
    tmp_path: Path, times: pa.Array, unit: str, idle: bool
) -> None:
    for split in ("train", "test"):
        columns = {"label": pa.array([0, 1]), "time": times, "ids": pa.array([[1], [2]])}
        (tmp_path / split).mkdir()
        pq.write_table(pa.table(columns), tmp_path / split / "a.parquet")
    schema = {
        "session_id": None,
        "timestamp": "time",
        "timestamp_unit": unit,
        "sparse": [{"name": "ids", "num_ids": 9}],
    }
    files = {split: str(tmp_path / split) for split in ("train", "test")}
    stack = loaded(tmp_path, dataset={"use": "parquet", **files, "schema": schema})
    found: list[str] = []
    with named(found):
        stack.prepare()
    assert found == (["dataset: schema.timestamp_unit"] if idle else [])


@pytest.mark.parametrize(
    ("tiers", "ranks_per_node", "idle"), [(2, 4, True), (2, 1, True), (2, 2, False), (3, 4, False)]
)
def test_tiers_that_are_two_anyway(
    tmp_path: Path, tiers: int, ranks_per_node: int, idle: bool
) -> None:
    stack = loaded(
        tmp_path,
        model={"use": "sequence_dlrm"},
        sharding={"use": "flexshard", "tiers": tiers, "goal": "min_communication"},
        topology={"ranks_per_node": ranks_per_node, "inter_node_gbps": 0.02, "intra_node_gbps": 2},
    )
    found: list[str] = []
    with named(found):
        stack.planned_for(stack.model(), 4)
    assert found == (["sharding: tiers"] if idle else [])

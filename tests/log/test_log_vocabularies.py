"""Rung 1 (values): ids of messages that are looked up are of one vocabulary, in all of a run."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from raw_messages import messages_of

from recd_dedup.log.growing_log import GrowingLogConfig, GrowingLogDataset, build_growing_log
from recd_dedup.log.join import JoinConfig
from recd_dedup.log.json_messages import JsonMessages
from recd_dedup.log.logged_dataset import LoggedConfig, LoggedSamples, build_logged
from recd_dedup.log.shards import ZstdShards, ZstdShardsConfig
from recd_plugins.config import parse
from recd_plugins.data.dataset import Dataset
from recd_plugins.data.growing import Period
from recd_plugins.errors import DataError
from recd_plugins.slots import Context

Written = Callable[..., None]


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """Writes the vocabulary's values, each time at another time."""
    times = count(1)

    def write(*values: str) -> None:
        path = tmp_path / "item.parquet"
        pq.write_table(pa.table({"value": values}), path)
        os.utime(path, (now := next(times), now))

    return write


@pytest.fixture
def context(tmp_path: Path) -> Context:
    """With a log of item "a" alone, in each of 20 sessions, ten messages a second."""
    text = b'{"item": "a", "label": 1}'
    config = ZstdShardsConfig(shards=2, fsync="never")
    with ZstdShards(config, tmp_path / "log") as log:
        log.append(messages_of((n % 20, 100 * n, text) for n in range(40)))
    log = ZstdShards(config, tmp_path / "log")
    return Context(folder=tmp_path / "data", neighbours={"log": log})


def messages(tmp_path: Path) -> JsonMessages:
    item = {"name": "item", "num_ids": 9, "ids": "vocabulary"}
    item["vocabulary"] = str(tmp_path / "item.parquet")
    columns = {"session_id": None, "timestamp": None, "sparse": [item]}
    return parse(JsonMessages, {"columns": columns}, "messages")


def items(rows: Dataset | Period) -> set[int]:
    each = (chunk["item"].to_pylist() for chunk in rows.chunks("train"))
    return {one for lists in each for ids in lists for one in ids}


def test_tables_of_a_log_are_others_by_another_vocabulary(
    tmp_path: Path, context: Context, written: Written
) -> None:
    def opened() -> LoggedSamples:
        return build_logged(LoggedConfig(messages=messages(tmp_path)), context)

    written("a", "b")
    first = opened()
    digest = first.fingerprint()
    assert items(first) == {1}
    written("b", "a")
    assert items(opened()) == {2}
    assert opened().fingerprint() != digest
    with pytest.raises(
        DataError, match=r"item\.parquet: this vocabulary has changed since the log"
    ):
        items(first)


def test_periods_of_a_log_have_one_vocabulary(
    tmp_path: Path, context: Context, written: Written
) -> None:
    config = GrowingLogConfig(
        messages=messages(tmp_path),
        join=JoinConfig(disorder_ms=0),
        origin=0,
        period_ms=1_000,
        ends_when_sealed=True,
    )

    def period(dataset: GrowingLogDataset, number: int) -> Period:
        found = dataset.period(number)
        assert found is not None
        return found

    written("a", "b")
    running = build_growing_log(config, context)
    digest = period(running, 0).fingerprint()
    assert items(period(running, 0)) == {1}
    written("b", "a")
    with pytest.raises(
        DataError, match=r"item\.parquet: this vocabulary has changed since the log"
    ):
        items(period(running, 1))
    assert period(running, 0).fingerprint() == digest
    resumed = build_growing_log(config, context)
    assert period(resumed, 0).fingerprint() != digest
    assert items(period(resumed, 1)) == {2}

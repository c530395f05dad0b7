"""Example runs: `recd train` on two real ranks, on a log that is written meanwhile."""

from __future__ import annotations

import json
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import yaml
from jobs import DEADLINE, below, gone, metrics, printed, start, train, until, wait_for_step

from recd_dedup.hashing import uniforms
from recd_dedup.log.replay import Replay, ReplayConfig
from recd_dedup.log.shards import ZstdShards, ZstdShardsConfig
from recd_dlrm.datasets.sessions.dataset import Sessions, SessionsConfig
from recd_plugins.stack import load
from recd_plugins.testing.resume import assert_same_batch

pytestmark = [pytest.mark.slow, pytest.mark.ranks]

SESSIONS = SessionsConfig(samples=2_400, concurrent_sessions=60)
JOIN = {"window_ms": 60_000, "disorder_ms": 5_000}
REPLAY = ReplayConfig(delay_ms=60_000, redelivery_ms=4_000, duplicate_requests=0.02)


def registry_of(rows: pa.Table, folder: str = "data") -> dict[str, Any]:
    """Five periods, the last of which end with the log."""
    times = rows["timestamp"].to_numpy()
    growing = {
        "use": "growing_log",
        "schema": json.loads(SESSIONS.schema.to_json()),
        "join": JOIN,
        "origin": int(times.min()),
        "period_ms": int(np.ptp(times)) // 5 + 1,
        "ends_when_sealed": True,
        "keep": 2,
    }
    return {
        "plugins": ["recd_dlrm", "recd_dedup", "recd_dsi"],
        "folder": folder,
        "log": {"use": "zstd_shards", "folder": "log", "shards": 2, "fsync": "never"},
        "dataset": growing,
        "etl": ["cluster_by_session"],
        "reader": {"use": "local", "tail": "pad", "streams": 2},
        "model": {"use": "sequence_dlrm", "embedding_dim": 8, "bottom": [16], "top": [16]},
        "sharding": {"use": "torchrec", "search": "greedy"},
        "train": {
            "ranks": 2,
            "batch_size": 32,
            "steps": 100_000,
            "log_every": 1,
            "eval_every": 10,
            "checkpoint_every": 4,
            "device": "cpu",
        },
    }


def test_a_run_on_a_log_that_is_written_is_killed_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = pa.concat_tables(Sessions(SESSIONS).chunks("train")).sort_by("timestamp")
    registry = registry_of(rows)
    (tmp_path / "registry.yaml").write_text(yaml.safe_dump(registry))
    chunks = (rows.slice(first, 200) for first in range(0, rows.num_rows, 200))
    sent = [*Replay(SESSIONS.schema, REPLAY).messages(chunks)]
    begins, length = registry["dataset"]["origin"], registry["dataset"]["period_ms"]
    times = rows["timestamp"].to_numpy()
    held_out = uniforms(0, "test", rows["session_id"].to_numpy()) < 0.1
    log = ZstdShards(ZstdShardsConfig(shards=2, fsync="never"), tmp_path / "log")

    def write(periods: int | None = None) -> None:
        """Until so many periods have closed, or to the log's end."""
        last = begins + (periods or 100) * length + sum(JOIN.values())
        while sent and log._latest < last:
            log.append(sent.pop(0))
            log.flush()

    def steps(periods: int) -> int:
        """The steps of so many periods, but for what the pipeline reads ahead."""
        each = np.bincount(((times - begins) // length)[~held_out])[:periods]
        return int(np.ceil(each / 64).sum()) - 3

    write(2)
    assert sent
    job = start(tmp_path, "train.run=runs/killed")
    wait_for_step(tmp_path, "runs/killed", steps(2) - 2, job)
    started = until(lambda: below(job.pid), lambda pids: len(pids) >= 2)
    job.send_signal(signal.SIGKILL)
    assert gone(started)
    printed(job.done(), code=-signal.SIGKILL)

    job = start(tmp_path, "--resume", "train.run=runs/killed")
    write(4)
    assert sent
    wait_for_step(tmp_path, "runs/killed", steps(4), job)
    job.send_signal(signal.SIGINT)  # while it waits for the last period
    out, _ = printed(job.done(DEADLINE))
    assert "stopped after step" in out

    job = start(tmp_path, "--resume", "train.run=runs/killed")
    write()
    log.close()
    out, _ = printed(job.done(DEADLINE))
    assert "the data have ended" in out
    train(tmp_path, "train.run=runs/whole", "folder=other")
    whole, lines = metrics(tmp_path, "runs/whole"), metrics(tmp_path, "runs/killed")
    assert lines == whole
    assert len(whole) > 30

    counts: Counter[str] = Counter()
    every = (tmp_path / "runs/killed/metrics.jsonl").read_text().splitlines()
    for line in (line for line in map(json.loads, every) if line["kind"] == "period"):
        counts.update({name: n for name, n in line.items() if isinstance(n, int)})
    assert counts["samples"] == rows.num_rows
    assert counts["late_requests"] == 0 < counts["duplicate_requests"]
    assert counts["positives"] == counts["events"] == rows["label"].to_numpy().sum()
    trained = sum(line["samples"] for line in lines if line["kind"] == "train")
    assert trained == rows.num_rows - held_out.sum()
    # Of the five, the second lies more than two behind the last.
    assert len([*(tmp_path / "data").glob("growing_log-*")]) == 4
    assert_workers_read_the_same()


def assert_workers_read_the_same() -> None:
    """The periods by the reader service are those of the local reader, and as many; a table that
    was removed is joined again."""
    service = ["reader={use: service, workers: 1, patience: 120, tail: pad, streams: 2}"]
    local, ours = (load("registry.yaml", changes).loader(0, 1) for changes in ((), service))
    periods = 0
    while batches := [*local]:
        for theirs, one in zip(batches, [*ours], strict=True):
            assert_same_batch(theirs, one)
        periods += 1
    assert periods == 5
    assert not [*ours]

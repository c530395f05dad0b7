"""Example runs: `recd train` on a Kafka topic that services write to meanwhile."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import yaml
from jobs import DEADLINE, below, gone, metrics, printed, start, train, until, wait_for_step

from recd_dedup.log.codec import MessageCodec
from recd_dedup.log.kafka import KafkaConfig, KafkaLog
from recd_dedup.log.replay import Replay, ReplayConfig
from recd_dedup.log.routing import session_shards
from recd_dlrm.datasets.sessions.dataset import Sessions, SessionsConfig

kafka = pytest.importorskip("confluent_kafka", reason="needs confluent-kafka (extra `kafka`)")
pytestmark = [pytest.mark.slow, pytest.mark.ranks]

PARTITIONS = 4
"""What librdkafka's brokers give a topic when somebody asks for it."""
SESSIONS = SessionsConfig(samples=900, concurrent_sessions=40)
JOIN = {"window_ms": 60_000, "disorder_ms": 5_000}
REPLAY = ReplayConfig(delay_ms=60_000, redelivery_ms=4_000, duplicate_requests=0.02)
PERIODS = 4


class Service:
    """Brokers that live as long as it does, and who writes to a topic of theirs."""

    def __init__(self, rows: pa.Table) -> None:
        self._brokers = kafka.Producer({"test.mock.num.brokers": 2, "bootstrap.servers": "none"})
        found = self._brokers.list_topics("samples", timeout=60).brokers.values()
        self.servers = ",".join(f"{broker.host}:{broker.port}" for broker in found)
        times = rows["timestamp"].to_numpy()
        self.begins, self.length = int(times.min()), int(np.ptp(times)) // (PERIODS + 1) + 1
        chunks = (rows.slice(first, 50) for first in range(0, rows.num_rows, 50))
        self._sent = [*Replay(SESSIONS.schema, REPLAY).messages(chunks)]
        self._log = KafkaLog(self._config(timeout_s=DEADLINE))

    def write(self, periods: int) -> None:
        """All that lies before the end of so many periods, and events of no request by which each
        partition comes past it."""
        end = self.begins + periods * self.length
        while self._sent and self._sent[0]["timestamp"].to_numpy().min() < end:
            self._log.append(self._sent.pop(0))
        sessions = np.arange(100)
        _, first = np.unique(session_shards(sessions, PARTITIONS), return_index=True)
        none, past = np.full(PARTITIONS, -1), end + sum(JOIN.values()) + 1
        codec = MessageCodec(SESSIONS.schema)
        self._log.append(codec.events(none, sessions[first], np.full(PARTITIONS, past)))
        self._log.flush()

    def registry(self, timeout_s: float) -> dict[str, Any]:
        """The first four fifths of the time, as periods."""
        growing = {
            "use": "growing_log",
            "schema": json.loads(SESSIONS.schema.to_json()),
            "join": JOIN,
            "origin": self.begins,
            "period_ms": self.length,
            "until": self.begins + PERIODS * self.length,
        }
        return {
            "plugins": ["recd_dlrm", "recd_dedup"],
            "log": {"use": "kafka", "servers": self.servers, "topic": "samples"}
            | {"shards": PARTITIONS, "timeout_s": timeout_s},
            "dataset": growing,
            "etl": ["cluster_by_session"],
            "reader": {"tail": "pad"},
            "model": {"use": "sequence_dlrm", "embedding_dim": 8, "bottom": [16], "top": [16]},
            "sharding": {"use": "torchrec", "search": "greedy"},
            "train": {
                "ranks": 1,
                "batch_size": 32,
                "steps": 100_000,
                "log_every": 1,
                "checkpoint_every": 2,
                "device": "cpu",
            },
        }

    def _config(self, timeout_s: float) -> KafkaConfig:
        options = {"topic": "samples", "shards": PARTITIONS, "timeout_s": timeout_s}
        return KafkaConfig(servers=self.servers, linger_ms=5, **options)


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Service:
    monkeypatch.chdir(tmp_path)
    rows = pa.concat_tables(Sessions(SESSIONS).chunks("train")).sort_by("timestamp")
    return Service(rows)


def test_a_run_on_a_topic_is_killed_and_loses_nothing(service: Service, tmp_path: Path) -> None:
    (tmp_path / "registry.yaml").write_text(yaml.safe_dump(service.registry(DEADLINE)))
    service.write(2)
    job = start(tmp_path, "train.run=runs/killed")
    wait_for_step(tmp_path, "runs/killed", 5, job)
    started = until(lambda: below(job.pid), bool)
    job.send_signal(signal.SIGKILL)
    assert gone(started)
    printed(job.done(), code=-signal.SIGKILL)

    job = start(tmp_path, "--resume", "train.run=runs/killed")
    service.write(PERIODS)
    out, _ = printed(job.done(DEADLINE))
    assert "the data have ended" in out
    train(tmp_path, "train.run=runs/whole", "folder=other")
    whole = metrics(tmp_path, "runs/whole")
    assert metrics(tmp_path, "runs/killed") == whole
    assert len(whole) > 15
    manifests = [
        {file.name: file.read_text() for file in (tmp_path / folder).glob("periods-*/*.json")}
        for folder in ("data", "other")
    ]
    assert manifests[0] == manifests[1]
    assert len(manifests[0]) == PERIODS

"""Rung 1 (values): both logs keep the contract of their slot, and the contract can be broken."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pytest

from recd_dedup.log.shards import ZstdShards, ZstdShardsConfig, build_zstd_shards
from recd_plugins.slots import LogRecord
from recd_plugins.testing.conformance import ContractBroken, check_record

SHARDS = LogRecord(
    name="zstd_shards",
    summary="Shard files of zstd blocks, one per writer; crash-safe, readable while written.",
    config=ZstdShardsConfig,
    build=build_zstd_shards,
)


@pytest.mark.parametrize("route", ["session", "message"])
@pytest.mark.parametrize("block_bytes", [1, 300, 4 << 20])
def test_shard_files(route, block_bytes):
    check_record(SHARDS, options={"route": route, "block_bytes": block_bytes, "shards": 5})


@pytest.mark.slow
def test_a_topic_keeps_the_contract_of_logs():
    kafka = pytest.importorskip("confluent_kafka", reason="needs confluent-kafka (extra `kafka`)")
    from recd_dedup.log.kafka import KafkaConfig, build_kafka

    brokers = kafka.Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "none"})
    (broker,) = brokers.list_topics("contract", timeout=60).brokers.values()
    record = LogRecord(
        name="kafka",
        summary="A Kafka topic; key = session id.",
        config=KafkaConfig,
        build=build_kafka,
        needs=("import:confluent_kafka",),
    )
    options = {"servers": f"{broker.host}:{broker.port}", "topic": "contract", "shards": 4}
    check_record(record, options={**options, "linger_ms": 1})


@dataclass(frozen=True, kw_only=True)
class Forgetful(ZstdShardsConfig):
    """Breaks one rule."""

    breaks: str = ""
    """Which."""


class ForgetfulShards(ZstdShards):
    def flush(self):
        if self.config.breaks != "flush":
            super().flush()

    def append(self, messages):
        super().append(messages)
        if self.config.breaks == "twice":
            super().append(messages)

    def read(self, shard):
        found = list(super().read(shard))
        if self.config.breaks == "order":
            found = [batch.take(pa.array(range(batch.num_rows)[::-1])) for batch in found]
        if self.config.breaks == "columns":
            found = [batch.drop_columns("timestamp") for batch in found]
        if self.config.breaks == "route":  # odd times move to the next shard
            mine = [_at(batch, 0) for batch in found]
            found = mine + [_at(batch, 1) for batch in super().read(shard - 1 & 63)]
        return iter(found)


def _at(batch, parity):
    return batch.filter(pa.array(batch["timestamp"].to_numpy() % 2 == parity))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"breaks": "flush"}, "flushed and opened anew must hold each message once"),
        ({"breaks": "twice"}, "must hold each message once: 102, but has 204"),
        ({"breaks": "order"}, "in the order that they came in"),
        ({"breaks": "columns"}, "must have the columns of MESSAGES"),
        ({"breaks": "route"}, "all messages of one must be in one shard"),
    ],
)
def test_a_log_that_breaks_a_rule_is_reported(options, reason):
    record = LogRecord(
        name="forgetful",
        summary="Breaks one rule.",
        config=Forgetful,
        build=lambda config, context: ForgetfulShards(config, context.folder / "log"),
    )
    with pytest.raises(ContractBroken, match=reason):
        check_record(record, options=options)

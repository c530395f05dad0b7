"""Brokers of Kafka for the tests that have topics."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def brokers() -> Iterator[str]:
    """Brokers of librdkafka that live as long as the client that they are part of."""
    kafka = pytest.importorskip("confluent_kafka", reason="needs confluent-kafka (extra `kafka`)")
    client = kafka.Producer({"test.mock.num.brokers": 2, "bootstrap.servers": "none"})
    brokers = client.list_topics(timeout=60).brokers.values()
    yield ",".join(f"{broker.host}:{broker.port}" for broker in brokers)
    del client

"""Kafka topics and the brokers that have them: clients, what partitions hold, errors that may pass.

No topic is made here: each must exist, with the requested number of partitions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from recd_plugins.api import CapabilityError, DataError, RecdError, RegistryError

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message, Producer

__all__ = ["KafkaTopics", "Partition"]

Client = TypeVar("Client", "Consumer", "Producer")

AT_ONCE = 1024
"""How many messages a client is asked for at a time."""
PATHS = (".location", ".keytab", ".file")
"""The ends of the names of librdkafka's options that are files or folders."""
GONE = ("_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION", "UNKNOWN_TOPIC_OR_PART")
"""librdkafka's names of its errors about a topic that does not exist."""
FINAL = ("TOPIC_AUTHORIZATION_FAILED", "SASL_AUTHENTICATION_FAILED", "_AUTHENTICATION")
"""Its names of errors that are permanent."""
AHEAD_KIB = 32 << 10
"""What the clients of all merged partitions together hold ahead of the reader, in KiB."""


class Partition(NamedTuple):
    """A partition of a topic, which is what is written in one order."""

    name: str
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}, partition {self.partition}"


class KafkaTopics:
    """Topics with equal numbers of partitions, at some brokers."""

    def __init__(
        self,
        names: Sequence[str],
        partitions: int,
        *,
        servers: str,
        timeout_s: float,
        client: Mapping[str, Any],
    ) -> None:
        """Brokers may take `timeout_s` to answer; `client` has more options of librdkafka."""
        self.names = names
        self.partitions = partitions
        self.servers = servers
        self.timeout_s = timeout_s
        self.options = {"bootstrap.servers": servers, **_at_home(client)}
        self.found = False
        """Whether all are known to have the requested number of partitions."""

    def __str__(self) -> str:
        return ", ".join(self.names)

    def consumer(self, merged: int) -> Consumer:
        """A client that reads; if several are `merged`, each holds its share ahead."""
        from confluent_kafka import Consumer

        options = {
            "queued.max.messages.kbytes": max(1, AHEAD_KIB // merged),
            "fetch.queue.backoff.ms": 5,  # by default it waits a second once this much is held
            **self.options,
            "group.id": "recd-log",  # never joined: partitions are assigned
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 20,  # the end is known, so there is nothing to wait for
        }
        return self._opened(Consumer, options)

    def producer(self, options: Mapping[str, Any]) -> Producer:
        """A client that writes, with these options of librdkafka."""
        from confluent_kafka import Producer

        timeout_ms = int(self.timeout_s * 1000)
        whole = {**self.options, **options, "delivery.timeout.ms": timeout_ms}
        return self._opened(Producer, whole)

    def check_added(self, client: Consumer) -> None:
        """Raises `DataError` if partitions were added to a topic since it was opened."""
        from confluent_kafka import KafkaException

        try:
            topics = self._there(client)
        except KafkaException:  # its brokers have just gone; reading waits for them
            return
        for topic in self.names:
            if (there := topics.get(topic, 0)) > self.partitions:
                raise DataError(
                    f"Kafka topic {topic!r} has {there} partitions now, but {self.partitions} are "
                    "read: messages of the others would be in no sample. Set `log.shards` to "
                    f"{there} and go on with `--resume`. If an event came to another partition "
                    "than its request, because the number changed between them, it is an orphan."
                )

    def watermarks(self, consumer: Consumer, part: Partition, place: int = 0) -> tuple[int, int]:
        """The first message that is there, and the end; raises an error if the end is before a
        place that has been read up to."""
        from confluent_kafka import KafkaException, TopicPartition

        where = TopicPartition(part.topic, part.partition)
        deadline = time.monotonic() + self.timeout_s
        while True:
            left = max(0.1, deadline - time.monotonic())
            try:
                low, high = consumer.get_watermark_offsets(where, timeout=left)
                break
            except KafkaException as error:
                self._wait_after(part, error.args[0], deadline)
        if high < place:
            raise DataError(
                f"{part}: ends at message {high:,}, but was read up to {place:,} before. The topic "
                "was made again, or its brokers lost messages. Begin with another folder (`folder` "
                "of registry.yaml)."
            )
        return low, high

    def fetched(
        self, consumer: Consumer, part: Partition, low: int, high: int
    ) -> Iterator[list[Message]]:
        """The messages from offset `low` up to `high`, some at a time. Some offsets have none:
        where transactions end, or where messages were compacted away."""
        from confluent_kafka import TopicPartition

        where = TopicPartition(part.topic, part.partition, low)
        consumer.assign([where])
        deadline = time.monotonic() + self.timeout_s
        while low < high:
            found = []
            for message in consumer.consume(min(high - low, AT_ONCE), timeout=0.1):
                if not message.error():
                    found.append(message)
                    low = max(low, message.offset() + 1)
                elif message.error().name() == "_PARTITION_EOF":
                    low = max(low, message.offset())
                elif message.error().name() == "_AUTO_OFFSET_RESET":
                    raise DataError(
                        f"{part}: message {low:,} was deleted while it was read (the topic's "
                        "retention), or the topic was made again. Keep messages longer, or begin "
                        "again."
                    )
                else:
                    self._wait_after(part, message.error(), deadline)
            kept = [message for message in found if message.offset() < high]
            if not found and low < high and time.monotonic() > deadline:
                raise self.error(
                    f"{part}: is silent at message {low:,} of {high:,} (a transaction that is "
                    "still open ends later)"
                )
            if kept:
                yield kept
            if found:  # the reader may take longer than brokers may
                deadline = time.monotonic() + self.timeout_s

    def error(self, what: str) -> CapabilityError:
        """What went wrong with the topics or their brokers, as an error to raise."""
        return CapabilityError(
            f"Kafka topic {str(self)!r} at {self.servers}: {what}. "
            "Check `log.servers`, and that the brokers run."
        )

    def _opened(self, kind: Callable[[dict[str, Any]], Client], options: dict[str, Any]) -> Client:
        """A client of the topics, once these are known to exist."""
        from confluent_kafka import KafkaException

        try:
            client = kind(options)
        except (KafkaException, TypeError) as error:
            why = str(error) if isinstance(error, TypeError) else error.args[0].str()
            raise RegistryError(
                f"librdkafka does not take these options: {why}. Correct `log.client`: options "
                "have the names in librdkafka's CONFIGURATION.md.",
                "client",
            ) from error
        self._check(client)
        return client

    def _check(self, client: Producer | Consumer) -> None:
        """Raises `DataError` unless each topic exists, with the requested number of partitions: if
        it had more, not all would be read."""
        from confluent_kafka import KafkaException

        if self.found:
            return
        try:
            topics = self._there(client)
        except KafkaException as error:
            raise self.error(str(error)) from error
        for topic in self.names:
            there = topics.get(topic, 0)
            if there != self.partitions:
                names = sorted(name for name in topics if not name.startswith("_"))
                others = "" if there else f" The brokers have {', '.join(names[:9]) or 'none'}."
                asked = self.partitions
                raise DataError(
                    f"Kafka topic {topic!r} has {there} partitions, but {asked} are asked for. Set "
                    "`log.topic` and `log.shards` to what there is, or make the topic with "
                    f"`kafka-topics --create --topic {topic} --partitions {asked}`.{others}"
                )
        self.found = True

    def _there(self, client: Producer | Consumer) -> dict[str, int]:
        """The number of partitions of every existing topic: asking for a single topic may create
        it."""
        topics = client.list_topics(timeout=self.timeout_s).topics
        return {name: len(topic.partitions) for name, topic in topics.items()}

    def _wait_after(self, part: Partition, error: KafkaError, deadline: float) -> None:
        """Raise what brokers answered about a partition, unless it may be temporary: a broker that
        comes back knows no topic for a moment, and is no longer the leader."""
        if error.fatal() or error.name() in FINAL or time.monotonic() >= deadline:
            raise self._failed_at(part, error)
        time.sleep(0.1)

    def _failed_at(self, part: Partition, error: KafkaError) -> RecdError:
        """What brokers answered about a partition, as an error; it existed when the log was
        opened."""
        if error.name() in GONE:
            return DataError(
                f"{part}: is no longer there ({error.str()}): the topic was deleted, or this "
                "client may no longer see it. Messages that were not read are lost. If the topic "
                "was made again, begin with another folder (`folder` of registry.yaml)."
            )
        return self.error(f"{part}: {error.str()} ({error.name()})")


def _at_home(client: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a client, with `~` in paths expanded; raises an error that names a path where
    nothing is, because librdkafka says only that something failed."""
    found = dict(client)
    for name, value in client.items():
        if isinstance(value, str) and name.endswith(PATHS) and value not in ("", "probe"):
            path = Path(value).expanduser()
            if not path.exists():
                raise RegistryError(
                    f"{name} names {value!r}, where nothing is. Relative paths start from the "
                    f"folder in which the command runs, {Path.cwd()}: write a whole path.",
                    "client",
                )
            found[name] = str(path)
    return found

"""The `kafka` log: a topic as log shards, one partition each; key = session id.

Partitions are chosen as the shard files' are, by the session's hash, and zstd packs what
the producer batches. Sending is idempotent: what is sent again after an error is kept once.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any

import pyarrow as pa

from recd_dedup.log.shards import check_messages, session_shards
from recd_plugins.api import CapabilityError, Config, Context, DataError, Range
from recd_plugins.api.data import MESSAGES, Cuts, LogRoute, Placed

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

__all__ = ["KafkaConfig", "KafkaLog", "build_kafka"]

KEY = struct.Struct("<q")


@dataclass(frozen=True, kw_only=True)
class KafkaConfig(Config):
    """Raw logs in a Kafka topic."""

    servers: str
    """Brokers: host:port, comma-separated."""
    topic: str = "recd-log"
    """One that is there, and keeps the producer's timestamps (CreateTime, Kafka's default)."""
    shards: Annotated[int, Range(ge=1, le=65_536)] = 64
    """The topic's partitions."""
    linger_ms: Annotated[int, Range(ge=0)] = 50
    """The time that messages wait for others to be packed with."""
    batch_bytes: Annotated[int, Range(ge=1)] = 1 << 20
    """The bytes that are packed at a time."""
    timeout_s: Annotated[float, Range(gt=0)] = 30.0
    """The time that brokers may take."""
    may_lack: bool = False
    """Read a partition of which the oldest messages were deleted; else that is an error."""
    client: Mapping[str, Any] = field(default_factory=dict)
    """More options of librdkafka: security and the like."""


class _Scan:
    """A partition on the way to two times."""

    def __init__(self, begin: int, first: int, second: int) -> None:
        self.place = begin
        self.before: int | None = None
        self.past: int | None = None
        self.latest: int | None = None
        self._first, self._second = first, second

    def take(self, found: Sequence[Message]) -> None:
        for message in found:
            time = message.timestamp()[1]
            self.latest = time if self.latest is None else max(self.latest, time)
            if self.before is None and time >= self._first:
                self.before = message.offset()
            if self.past is None and time >= self._second:
                self.past = message.offset()
        self.place = found[-1].offset() + 1

    def __str__(self) -> str:
        return "has no messages" if self.latest is None else f"is at {self.latest}"


class KafkaLog:
    """Opened for writing and reading."""

    route: LogRoute = "session"

    def __init__(self, config: KafkaConfig) -> None:
        self.config = config
        self._common = {"bootstrap.servers": config.servers, **config.client}
        self._made: Producer | None = None
        self._failed: list[KafkaError] = []
        self._scanned: tuple[int, int] | None = None
        self._scans: dict[int, _Scan] = {}
        """How far the partitions are known, by the two times that were asked for last."""

    @property
    def shards(self) -> int:
        return self.config.shards

    def append(self, messages: pa.RecordBatch) -> None:
        """Send messages; they wait for each other up to `linger_ms`."""
        check_messages(messages)
        producer = self._producer()
        sessions, timestamps = (column.to_numpy() for column in messages.columns[:2])
        if messages.num_rows and timestamps.min() < 0:
            raise DataError(f"Kafka has no timestamp {timestamps.min()}: they begin at 0.")
        shards = session_shards(sessions, self.shards).tolist()
        rows = zip(sessions.tolist(), timestamps.tolist(), messages["message"], shards, strict=True)
        for session, timestamp, message, shard in rows:
            arguments = {
                "key": KEY.pack(session),
                "value": message.as_buffer().to_pybytes(),
                "timestamp": timestamp,
                "partition": shard,
                "on_delivery": self._delivered,
            }
            self._send(producer, arguments)
        producer.poll(0)
        self._raise_failed()

    def flush(self) -> None:
        """Once it returns, all brokers that must have what was sent have it."""
        if self._made is not None:
            left = self._made.flush(self.config.timeout_s)
            self._raise_failed()
            if left:
                raise self._error(
                    f"{left:,} messages are not sent after {self.config.timeout_s:g} s"
                )

    def close(self) -> None:
        self.flush()
        self._made = None

    def read(self, shard: int) -> Iterator[pa.RecordBatch]:
        """The messages that the partition holds when reading begins, in its order."""
        if not 0 <= shard < self.shards:
            raise DataError(f"{self.config.topic}: has shards 0 to {self.shards - 1}, not {shard}.")
        from confluent_kafka import TopicPartition

        consumer = self._consumer()
        try:
            where = TopicPartition(self.config.topic, shard)
            low, high = self._watermarks(consumer, where)
            for found in self._fetched(consumer, shard, self._there(shard, 0, low), high):
                yield self._batch(found)
        finally:
            consumer.close()

    @property
    def name(self) -> str:
        """The topic."""
        return self.config.topic

    def cuts(self, begins: Mapping[str, int], first: int, second: int) -> Cuts:
        """By the times of messages: a part is a partition, a place the offset of a message.

        Each partition is read on from where the last call came to, up to the second time.
        """
        from confluent_kafka import TopicPartition

        if self._scanned != (first, second):
            self._scanned, self._scans = (first, second), {}
        consumer = self._consumer()
        try:
            for shard in range(self.shards):
                begin = begins.get(str(shard), 0)
                scan = self._scans.setdefault(shard, _Scan(begin, first, second))
                low, high = self._watermarks(consumer, TopicPartition(self.config.topic, shard))
                if scan.past is None and scan.place < high:
                    scan.place = self._there(shard, scan.place, low)
                    for found in self._fetched(consumer, shard, scan.place, high):
                        scan.take(found)
        finally:
            consumer.close()
        scans = sorted(self._scans.items())
        latest = [scan.latest for _, scan in scans if scan.latest is not None]
        return Cuts(
            before={str(shard): scan.before for shard, scan in scans if scan.before is not None},
            past={str(shard): scan.past for shard, scan in scans if scan.past is not None},
            behind=tuple(f"partition {n} {scan}" for n, scan in scans if scan.past is None),
            latest=max(latest, default=None),
            ended=False,
        )

    def between(self, shard: int, *places: Mapping[str, int]) -> Iterator[Placed]:
        """The messages of a partition, in its order."""
        from confluent_kafka import TopicPartition

        bounds = [one.get(str(shard), 0) for one in places]
        if bounds[0] >= bounds[-1]:
            return
        consumer = self._consumer()
        try:
            low, _ = self._watermarks(consumer, TopicPartition(self.config.topic, shard))
            first = self._there(shard, bounds[0], low)
            bounds = [max(first, bound) for bound in bounds]
            for begin, end in pairwise(bounds):
                for found in self._fetched(consumer, shard, begin, end):
                    yield Placed(str(shard), found[0].offset(), self._batch(found))
        finally:
            consumer.close()

    def fingerprint(self) -> str:
        from confluent_kafka import TopicPartition

        consumer = self._consumer()
        try:
            partitions = [TopicPartition(self.config.topic, shard) for shard in range(self.shards)]
            return repr([self._watermarks(consumer, where) for where in partitions])
        finally:
            consumer.close()

    def __enter__(self) -> KafkaLog:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _fetched(
        self, consumer: Consumer, shard: int, low: int, high: int
    ) -> Iterator[list[Message]]:
        """The messages from offset `low` up to `high`, some at a time."""
        from confluent_kafka import TopicPartition

        consumer.assign([TopicPartition(self.config.topic, shard, low)])
        deadline = time.monotonic() + self.config.timeout_s
        while low < high:
            found = consumer.consume(min(high - low, 4096), timeout=0.1)
            for message in found:
                if message.error():
                    raise self._error(f"reading partition {shard}: {message.error()}")
            kept = [message for message in found if message.offset() < high]
            if found:
                low = found[-1].offset() + 1
                deadline = time.monotonic() + self.config.timeout_s
            elif time.monotonic() > deadline:
                raise self._error(f"partition {shard} is silent at message {low:,} of {high:,}")
            if kept:
                yield kept

    def _batch(self, found: list[Message]) -> pa.RecordBatch:
        from confluent_kafka import TIMESTAMP_CREATE_TIME

        keys = [message.key() for message in found]
        kinds = {message.timestamp()[0] for message in found}
        if kinds != {TIMESTAMP_CREATE_TIME} or any(len(key or b"") != KEY.size for key in keys):
            raise DataError(
                f"{self.config.topic}: holds messages without an 8-byte key or their producer's "
                "timestamp, so they are not ours. Give the log a topic of its own (CreateTime)."
            )
        columns = [
            [KEY.unpack(key)[0] for key in keys],
            [message.timestamp()[1] for message in found],
            [message.value() or b"" for message in found],
        ]
        arrays = [pa.array(c, kind) for c, kind in zip(columns, MESSAGES.types, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=MESSAGES)

    def _consumer(self) -> Consumer:
        from confluent_kafka import Consumer

        return Consumer(
            {
                **self._common,
                "group.id": "recd-log",  # never joined: partitions are assigned
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 20,  # the end is known: there is nothing to wait for
            }
        )

    def _producer(self) -> Producer:
        if self._made is None:
            from confluent_kafka import Producer

            options = {
                **self._common,
                "enable.idempotence": True,
                "compression.type": "zstd",
                "linger.ms": self.config.linger_ms,
                "batch.size": self.config.batch_bytes,
                "delivery.timeout.ms": int(self.config.timeout_s * 1000),
            }
            producer = Producer(options)
            self._check_topic(producer)
            self._made = producer
        return self._made

    def _check_topic(self, producer: Producer) -> None:
        """There, with as many partitions as asked for."""
        from confluent_kafka import KafkaException

        config = self.config
        try:  # of all topics: to ask for one may make it
            topics = producer.list_topics(timeout=config.timeout_s).topics
        except KafkaException as error:
            raise self._error(str(error)) from error
        there = len(topics[config.topic].partitions) if config.topic in topics else 0
        if there != config.shards:
            raise DataError(
                f"Kafka topic {config.topic!r} has {there} partitions, asked for are "
                f"{config.shards}. Make it with `kafka-topics --create --topic {config.topic} "
                f"--partitions {config.shards}`, or set `log.topic` and `log.shards` to what is "
                "there."
            )

    def _send(self, producer: Producer, arguments: Mapping[str, Any]) -> None:
        from confluent_kafka import KafkaException

        try:
            try:
                producer.produce(self.config.topic, **arguments)
            except BufferError:  # librdkafka's queue is full: let it send
                self.flush()
                producer.produce(self.config.topic, **arguments)
        except KafkaException as error:
            raise DataError(
                f"Kafka topic {self.config.topic!r}: a message of {len(arguments['value']):,} "
                f"bytes is not taken: {error}. Raise `message.max.bytes` in `log.client` and on "
                "the brokers, or split it."
            ) from error

    def _watermarks(self, consumer: Consumer, where: TopicPartition) -> tuple[int, int]:
        """The first message that is there, and the end."""
        from confluent_kafka import KafkaException

        try:
            low, high = consumer.get_watermark_offsets(where, timeout=self.config.timeout_s)
        except KafkaException as error:
            raise self._error(f"partition {where.partition}: {error}") from error
        return low, high

    def _there(self, shard: int, place: int, low: int) -> int:
        """The first place from this one on at which a message is: `low`, where retention has
        deleted those before it."""
        if place >= low:
            return place
        if not self.config.may_lack:
            raise DataError(
                f"{self.config.topic}, partition {shard}: its first {low:,} messages are "
                "deleted (the topic's retention). Read sooner, keep longer, or set "
                "`may_lack: true`."
            )
        return low

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._failed.append(error)

    def _raise_failed(self) -> None:
        if self._failed:
            failed, self._failed = self._failed, []
            raise self._error(f"{len(failed):,} messages were not taken: {failed[0]}")

    def _error(self, what: str) -> CapabilityError:
        return CapabilityError(
            f"Kafka topic {self.config.topic!r} at {self.config.servers}: {what}. "
            "Check `log.servers`, and that the brokers run."
        )


def build_kafka(config: KafkaConfig, context: Context) -> KafkaLog:
    return KafkaLog(config)

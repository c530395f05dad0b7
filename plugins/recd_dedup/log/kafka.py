"""The `kafka` log: topics as log shards, with a partition of each topic per shard; key = session.

Any program may write the topics: `messages` of a dataset says how to read its messages. What this
log itself writes goes to the partition given by the session's hash, as in shard files, and zstd
packs what the producer batches. Sending is idempotent: what is sent again after an error is kept
once.
"""

from __future__ import annotations

import heapq
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from recd_dedup.log.codec import id_of_bytes, lying_at
from recd_dedup.log.deleted import ExpiredMessages
from recd_dedup.log.kafka_topics import KafkaTopics, Partition
from recd_dedup.log.routing import check_messages, session_shards
from recd_dedup.log.snapshot import End
from recd_plugins.api import (
    CapabilityError,
    Config,
    Context,
    DataError,
    Range,
    RegistryError,
)
from recd_plugins.api.data import MESSAGES, Cuts, LogRoute, Placed

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message, Producer

__all__ = ["KafkaConfig", "KafkaLog", "build_kafka"]

KEY = struct.Struct("<q")
"""The bytes of a key of this log's own messages; a key of other messages may be any bytes."""
BLOCK = 1024
"""How many offsets of a partition are read as one block, if several partitions are merged."""
BLOCK_BYTES = 16 << 20
"""How many bytes of messages are read as one block, which ends with the message that reaches
them."""


@dataclass(frozen=True, kw_only=True)
class KafkaConfig(Config):
    """Raw logs in a Kafka topic."""

    servers: str
    """The brokers, as host:port, separated by commas."""
    topic: str | tuple[str, ...] = "recd-log"
    """The topic, which must exist; or several, for example one of requests and one of events.
    Several need equal numbers of partitions, and a session's messages must be in partitions of the
    same number."""
    shards: Annotated[int, Range(ge=1, le=65_536)] = 64
    """The number of the topic's partitions."""
    route: LogRoute = "session"
    """What determines a message's partition: its key, which is the session (`session`), or anything
    else (`message`). With `message` all partitions are joined as one, and messages need no key."""
    times: Literal["created", "appended"] = "created"
    """Whose time a message has: `created` is its producer's (CreateTime, Kafka's default). Take
    `appended`, the broker's, if the topic keeps only that (LogAppendTime)."""
    linger_ms: Annotated[int, Range(ge=0)] = 50
    """The time in ms for which a written message waits for others, to be packed with them."""
    batch_bytes: Annotated[int, Range(ge=1)] = 1 << 20
    """The number of bytes that are packed together."""
    timeout_s: Annotated[float, Range(gt=0)] = 30.0
    """The seconds after which a broker that has not answered is an error."""
    quiet_ms: Annotated[int, Range(ge=0)] | None = None
    """The time in ms by which other partitions must be ahead of one without newer messages, so that
    a period of a growing log closes without it; what comes to it later is late. By default a period
    waits for every partition."""
    may_lack: bool = False
    """Whether a partition may be read although its oldest messages were deleted; by default that is
    an error. Messages that are deleted while they are still to be read are an error in any case."""
    client: Mapping[str, Any] = field(default_factory=dict)
    """More options of librdkafka, for example for security. Relative paths of certificates start at
    the folder in which the command runs, as those of tables do."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.topics:
            raise RegistryError("names no topic. Name one.", "topic")
        if len({*self.topics}) < len(self.topics):
            raise RegistryError("names a topic twice. Name each once.", "topic")

    @property
    def topics(self) -> tuple[str, ...]:
        return (self.topic,) if isinstance(self.topic, str) else self.topic


class KafkaLog:
    """Opened for writing and reading."""

    counts = "messages"
    """What places count."""

    def __init__(self, config: KafkaConfig) -> None:
        self.config = config
        self.route: LogRoute = config.route
        self._topics = KafkaTopics(
            config.topics,
            config.shards,
            servers=config.servers,
            timeout_s=config.timeout_s,
            client=config.client,
        )
        self._made: Producer | None = None
        self._failed: list[KafkaError] = []
        self._scanned: tuple[int, int] | None = None
        self._scans: dict[str, _Scan] = {}
        """The scans of the parts, by the two times that were requested last."""

    @property
    def shards(self) -> int:
        return self.config.shards

    def append(self, messages: pa.RecordBatch) -> None:
        """Send messages; they may wait for others up to `linger_ms`."""
        check_messages(messages)
        if len(self.config.topics) > 1 or self.route == "message":
            raise CapabilityError(
                f"{self.name}: several topics, or one that is not routed by session, can only be "
                "read. Give the log that you write a topic of its own."
            )
        producer = self._producer()
        sessions, timestamps = (column.to_numpy() for column in messages.columns[:2])
        if messages.num_rows and timestamps.min() < 1:
            raise DataError(
                f"Kafka has no timestamp {timestamps.min()}: timestamps begin at 1, and for 0 its "
                "client writes the time of sending. Give each message its time in ms since 1970."
            )
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
        """Returns once all brokers that must have what was sent have it."""
        if self._made is not None:
            left = self._made.flush(self.config.timeout_s)
            self._raise_failed()
            if left:
                raise self._topics.error(
                    f"{left:,} messages are not sent after {self.config.timeout_s:g} s"
                )

    def close(self) -> None:
        self.flush()
        self._made = None

    def read(self, shard: int, ends: Mapping[str, End] | None = None) -> Iterator[pa.RecordBatch]:
        """The messages that the shard holds when reading begins, or up to these ends: each
        partition's in order, those of several topics block by block, by their first times."""
        if not 0 <= shard < self.shards:
            raise DataError(f"{self.name}: has shards 0 to {self.shards - 1}, not {shard}.")
        bounds = {}
        with closing(self._consumer()) as consumer:
            for part in self._parts(shard):
                if ends is not None and part.name not in ends:  # a partition that was added later
                    continue
                low, high = self._topics.watermarks(consumer, part)
                end = End(high, "") if ends is None else ends[part.name]
                if end.begin is None or end.begin < end.place:
                    begin = end.begin if self.config.may_lack else None
                    bounds[part] = (self._there(part, begin, low), end.place)
        for placed in self._merged(bounds):
            yield placed.messages

    @property
    def name(self) -> str:
        """The topics."""
        return str(self._topics)

    @property
    def known_by(self) -> str:
        """The topics, and whose times their messages have."""
        return repr([self.config.topics, self.config.times])

    def cuts(self, begins: Mapping[str, int], first: int, second: int) -> Cuts:
        """The cuts by the times of messages: a part is a partition, a place the offset of a
        message.

        Each partition is read from where the last call stopped until it reaches the second time
        (and `quiet_ms` past it), but no further, however long its backlog.
        """
        if self._scanned != (first, second):
            self._scanned, self._scans = (first, second), {}
        with closing(self._consumer()) as consumer:
            scans = {
                part: self._read_on(consumer, part, begins.get(part.name))
                for part in self._all_parts()
            }
            found = _cuts_of(scans, second, self.config.quiet_ms)
            if not found.behind:
                self._topics.check_added(consumer)
        return found

    def between(self, shard: int, *places: Mapping[str, int]) -> Iterator[Placed]:
        """The messages of a partition, in order; those of several topics block by block, by their
        first times. Blocks are cut at places and at certain offsets, so always in the same way."""
        bounds_by_part: dict[Partition, Sequence[int]] = {}
        for part in self._parts(shard):
            bounds = [one.get(part.name, 0) for one in places]
            if bounds[0] < bounds[-1]:
                with closing(self._consumer()) as consumer:
                    low, _ = self._topics.watermarks(consumer, part, bounds[-1])
                first = self._there(part, places[0].get(part.name), low)
                bounds_by_part[part] = [max(first, bound) for bound in bounds]
        yield from self._merged(bounds_by_part)

    def fingerprint(self) -> str:
        """Depends on the topics' names, where partitions begin and end, and their last messages: a
        topic that was made again may have as many messages."""
        with closing(self._consumer()) as consumer:
            begins = [self._topics.watermarks(consumer, part)[0] for part in self._all_parts()]
        return repr([self.known_by, self.route, begins, sorted(self.ends().items())])

    def ends(self, at: Mapping[str, int] | None = None) -> dict[str, End]:
        """Where each partition ends, or each of these places, with a digest of the message before
        it; without one if that is deleted."""
        found = {}
        with closing(self._consumer()) as consumer:
            for part in self._all_parts():
                if at is not None and part.name not in at:  # it was added later
                    continue
                low, high = self._topics.watermarks(consumer, part)
                end = high if at is None else at[part.name]
                last = (
                    self._topics.fetched(consumer, part, end - 1, end) if low < end <= high else ()
                )
                held = [
                    repr(message.timestamp()).encode() + (message.value() or b"")
                    for message in chain.from_iterable(last)
                ]
                digests = [blake2b(one, digest_size=8).hexdigest() for one in held]
                found[part.name] = End(end, "".join(digests), low)
        return found

    def check_kept(self, noted: Mapping[str, End], now: Mapping[str, End]) -> None:
        """Does nothing: a topic that has less was made again."""

    def __enter__(self) -> KafkaLog:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _read_on(self, consumer: Consumer, part: Partition, begin: int | None) -> _Scan:
        """The scan of a partition, continued from where it was, or from `begin`."""
        assert self._scanned is not None  # set by `cuts`
        scan = self._scans.setdefault(part.name, _Scan(begin, *self._scanned))
        if scan.has_come(self.config.quiet_ms):
            return scan
        low, high = self._topics.watermarks(consumer, part, scan.place or 0)
        scan.place = self._there(part, scan.place, low)
        for found in self._topics.fetched(consumer, part, scan.place, high):
            scan.take(found)
            if scan.has_come(self.config.quiet_ms):
                break
        return scan

    def _all_parts(self) -> list[Partition]:
        return [part for shard in range(self.shards) for part in self._parts(shard)]

    def _parts(self, shard: int) -> list[Partition]:
        """The partitions of this number."""
        several = len(self.config.topics) > 1
        return [
            Partition(f"{topic}/{shard}" if several else str(shard), topic, shard)
            for topic in self.config.topics
        ]

    def _merged(self, bounds: Mapping[Partition, Sequence[int]]) -> Iterator[Placed]:
        streams = (self._blocks(part, *within) for part, within in bounds.items())
        return heapq.merge(*streams, key=lambda one: pc.min(one.messages["timestamp"]).as_py())

    def _blocks(self, part: Partition, *bounds: int) -> Iterator[Placed]:
        """The messages between the first bound and the last, cut at all of them and at multiples
        of `BLOCK`."""
        if bounds[0] >= bounds[-1]:
            return
        with closing(self._consumer()) as consumer:
            for begin, end in pairwise(bounds):
                block: list[Message] = []
                size = 0
                for found in self._topics.fetched(consumer, part, begin, end):
                    for message in found:
                        full = block and message.offset() // BLOCK != block[0].offset() // BLOCK
                        if full or size >= BLOCK_BYTES:
                            yield self._placed(part, block)
                            block, size = [], 0
                        block.append(message)
                        size += len(message)
                if block:
                    yield self._placed(part, block)

    def _placed(self, part: Partition, block: list[Message]) -> Placed:
        place = block[0].offset()
        where = f"{part}, from offset {place:,} on"
        return Placed(part.name, place, lying_at(where, self._batch(part, block)))

    def _batch(self, part: Partition, found: list[Message]) -> pa.RecordBatch:
        from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_NOT_AVAILABLE

        kinds = {message.timestamp()[0] for message in found}
        if TIMESTAMP_NOT_AVAILABLE in kinds or (
            kinds != {TIMESTAMP_CREATE_TIME} and self.config.times == "created"
        ):
            raise DataError(
                f"{part}: holds messages without their producer's time. Let the topic keep it "
                "(message.timestamp.type=CreateTime), or write `times: appended` to take the "
                "broker's."
            )
        columns = [
            [id_of_bytes(message.key() or b"") for message in found],
            [message.timestamp()[1] for message in found],
            [message.value() or b"" for message in found],
        ]
        arrays = [pa.array(c, kind) for c, kind in zip(columns, MESSAGES.types, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=MESSAGES)

    def _consumer(self) -> Consumer:
        shards = self.shards if self.route == "message" else 1
        return self._topics.consumer(merged=len(self.config.topics) * shards)

    def _producer(self) -> Producer:
        if self._made is None:
            self._made = self._topics.producer(
                {
                    "enable.idempotence": True,
                    "compression.type": "zstd",
                    "linger.ms": self.config.linger_ms,
                    "batch.size": self.config.batch_bytes,
                }
            )
        return self._made

    def _send(self, producer: Producer, arguments: Mapping[str, Any]) -> None:
        from confluent_kafka import KafkaException

        try:
            try:
                producer.produce(self.config.topics[0], **arguments)
            except BufferError:  # librdkafka's queue is full: let it send
                self.flush()
                producer.produce(self.config.topics[0], **arguments)
        except KafkaException as error:
            raise DataError(
                f"Kafka topic {self.name!r}: a message of {len(arguments['value']):,} bytes is not "
                f"taken: {error}. Raise `message.max.bytes` in `log.client` and on the brokers, or "
                "split it."
            ) from error

    def _there(self, part: Partition, place: int | None, low: int) -> int:
        """The place to read from: where reading the partition stopped, or its first message, at
        `low`, if nothing of it has been read. Raises an error if retention has deleted messages in
        between, which would be in no sample."""
        if place is not None and place < low:
            raise ExpiredMessages(
                f"{part}: messages {place:,} to {low - 1:,} are deleted (the topic's retention), "
                f"but are still to be read: it now begins at message {low:,}. Let the topic keep "
                "messages longer (`retention.ms`, `retention.bytes`), and begin with another "
                "folder (`folder` of registry.yaml)."
            )
        if place is None and low and not self.config.may_lack:
            raise DataError(
                f"{part}: its first {low:,} messages are deleted (the topic's retention). Read "
                "them sooner, keep them longer, or set `may_lack: true`."
            )
        return low if place is None else place

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._failed.append(error)

    def _raise_failed(self) -> None:
        if self._failed:
            failed, self._failed = self._failed, []
            raise self._topics.error(f"{len(failed):,} messages were not taken: {failed[0]}")


class _Scan:
    """How far a partition has been scanned for two times."""

    def __init__(self, begin: int | None, first: int, second: int) -> None:
        """`begin` is the place to read from; None if nothing of the partition has been read."""
        self.place = begin
        self.before: int | None = None
        self.past: int | None = None
        self.latest: int | None = None
        self._first, self._second = first, second

    def has_come(self, quiet_ms: int | None) -> bool:
        """Whether later messages can change nothing: of a backlog only this much is read."""
        if self.past is None or self.latest is None:
            return False
        return quiet_ms is None or self.latest >= self._second + quiet_ms

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


def _cuts_of(scans: Mapping[Partition, _Scan], second: int, quiet_ms: int | None) -> Cuts:
    """The cuts that the scans of all partitions found, up to the second time."""
    latest = max((one.latest for one in scans.values() if one.latest is not None), default=None)
    before = {part.name: one.before for part, one in scans.items() if one.before is not None}
    past = {part.name: one.past for part, one in scans.items() if one.past is not None}
    if quiet_ms is not None and latest is not None and latest >= second + quiet_ms:
        ends = {part.name: one.place or 0 for part, one in scans.items()}
        before, past = ends | before, ends | past
    behind = [f"{part} {one}" for part, one in scans.items() if part.name not in past]
    if behind and quiet_ms is None and latest is not None and latest >= second:
        behind[-1] += ", and others have come past it: `log.quiet_ms` says how long to wait"
    return Cuts(before=before, past=past, behind=tuple(behind), latest=latest, ended=False)


def build_kafka(config: KafkaConfig, context: Context) -> KafkaLog:
    return KafkaLog(config)

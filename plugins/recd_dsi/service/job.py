"""What a worker is asked for: a job, which names batches by digests, and a position in it.

All of it is small JSON, which the worker checks: `Request.from_bytes` refuses anything that is not
such JSON, too long, or out of range.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from recd_plugins.api import Config, DataError, RecdError
from recd_plugins.api.data import Split
from recd_plugins.api.reading import Order, SessionOrder, Tail, parse

__all__ = ["MOST_BATCHES", "MOST_RANGES", "ONE_VERSION", "BatchJob", "Request", "read_json"]

MOST_BYTES = 1 << 16
"""The largest size of a request."""
MOST = 1 << 40
"""The largest number in a request."""
LEAST_NUMBER, MOST_NUMBER = -(1 << 63), (1 << 64) - 1
"""The range of integers in a message; seeds are among them."""
DIGITS = 20
"""The most characters of a 64-bit integer."""
MOST_DIGEST = 64
"""The most characters of a digest."""
MOST_STREAMS = 1 << 16
"""The most streams of one consumer: each has its own window in a worker's memory."""
MOST_LEFT_OUT = 4096
"""How many stripes a job may leave out."""
MOST_BATCHES = 64
"""How many batches one request may ask for."""
MOST_RANGES = 64
"""How many ranges of positions a request may announce."""
ONE_VERSION = "Run one version of recd-plugins in all ranks and workers, and in the coordinator."
"""The cure where one end of a call says what the other does not know."""
ORDERED = [one.name for one in dataclasses.fields(Order) if one.name != "stripe_rows"]
"""The fields of an order that a job has: all except the table's own."""


@dataclass(frozen=True, kw_only=True)
class BatchJob(Config):
    """The batches of all consumers of a table, by epoch and position."""

    delivery: str
    """The digest of how rows become batches (`Delivery`)."""
    table: str
    """The digest of the table."""
    split: Split
    consumers: int
    """The number of ranks; each has its own streams."""
    streams: int
    rows_per_batch: int
    shuffle: bool
    window: int
    tail: Tail
    seed: int
    sessions: SessionOrder
    left_out: tuple[int, ...] = ()
    """Stripes that could not be read; their rows are empty and weigh 0."""

    def __post_init__(self) -> None:
        if len(self.left_out) > MOST_LEFT_OUT:
            raise DataError(
                f"a job leaves out {len(self.left_out)} stripes that could not be read, but at "
                f"most {MOST_LEFT_OUT} can be. Restore the damaged files of the table from a copy."
            )
        if any(not 0 <= number <= MOST for number in self.left_out):
            raise DataError(f"a job leaves out stripes that no table has. {ONE_VERSION}")
        if max(len(self.delivery), len(self.table)) > MOST_DIGEST:
            raise DataError(
                f"a job names its registry and its table, but not by digests. {ONE_VERSION}"
            )
        counts = (self.consumers, self.streams, self.rows_per_batch)
        if min(counts) < 1 or not 0 <= self.window <= MOST or max(counts) > MOST:
            raise DataError(
                f"a job has {self.consumers} consumers, {self.streams} streams, "
                f"{self.rows_per_batch} rows a batch and a window of {self.window} stripes, where "
                f"each must be 1 (the window 0) to {MOST}. {ONE_VERSION}"
            )
        if self.streams % self.consumers:
            raise DataError(
                f"a job has {self.streams} streams, which {self.consumers} consumers cannot share "
                f"equally. {ONE_VERSION}"
            )
        if self.streams // self.consumers > MOST_STREAMS:
            raise DataError(
                f"a job has {self.streams // self.consumers} streams for each consumer, but a "
                f"worker reads at most {MOST_STREAMS}. Have fewer (`reader.streams`)."
            )

    @classmethod
    def of(
        cls, order: Order, *, delivery: str, table: str, split: Split, consumers: int
    ) -> BatchJob:
        """A job that reads in this order."""
        ordered = {name: getattr(order, name) for name in ORDERED}
        return cls(delivery=delivery, table=table, split=split, consumers=consumers, **ordered)

    def order(self, stripe_rows: tuple[int, ...]) -> Order:
        """The order of the table's rows."""
        return Order(stripe_rows=stripe_rows, **{name: getattr(self, name) for name in ORDERED})

    @cached_property
    def digest(self) -> str:
        """Identifies the job's batches, wherever they are made."""
        text = json.dumps(dataclasses.asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:24]


@dataclass(frozen=True, kw_only=True)
class Request(Config):
    """Asks for batches of one consumer, and announces which it will ask the worker for next."""

    job: BatchJob
    consumer: int
    epoch: int
    batch: int
    """The first batch that is asked for."""
    stop: int
    """The position after the last batch."""
    client: str
    awaited: bool = True
    """Whether the trainer waits for the first batch; then it is sent as soon as it is made."""
    shared: bool = False
    """Whether bodies may come through shared memory (`SharedRing`)."""
    ahead: tuple[tuple[int, ...], ...] = ()
    """Ranges [first, stop) of positions, in the order in which they will be asked for."""
    afterwards: tuple[tuple[int, ...], ...] = ()
    """Ranges of the next epoch, once nothing else of this one will be asked for."""

    def __post_init__(self) -> None:
        announced = (*self.ahead, *self.afterwards)
        numbers = [self.epoch, self.batch, *(n for one in announced for n in one)]
        if not (0 <= self.consumer < self.job.consumers and min(numbers) >= 0):
            raise DataError(
                f"a request is for consumer {self.consumer} of {self.job.consumers} and position "
                f"{min(numbers)}, one of which does not exist. {ONE_VERSION}"
            )
        if not self.batch < self.stop <= self.batch + MOST_BATCHES:
            raise DataError(
                f"a request is for batches {self.batch} to {self.stop}, but must be for one to "
                f"{MOST_BATCHES} of them. {ONE_VERSION}"
            )
        ranges = max(len(self.ahead), len(self.afterwards))
        if max(numbers) > MOST or ranges > MOST_RANGES or len(self.client) > 64:
            raise DataError(
                f"a request has a position above {MOST}, more than {MOST_RANGES} ranges, or a "
                f"client of more than 64 letters. {ONE_VERSION}"
            )
        if any(len(one) != 2 or one[0] > one[1] for one in announced):
            raise DataError(
                f"a request announces positions that are not ranges [first, stop). {ONE_VERSION}"
            )

    @property
    def stream(self) -> tuple[str, int, int]:
        """Job, consumer and epoch; positions within a stream differ only in the batch."""
        return self.job.digest, self.consumer, self.epoch

    @property
    def of_next_epoch(self) -> Request | None:
        """What the client will announce as the next epoch begins, if it is known."""
        if not self.afterwards:
            return None
        first = self.afterwards[0][0]
        return replace(
            self,
            epoch=self.epoch + 1,
            batch=first,
            stop=first + 1,
            awaited=False,
            ahead=self.afterwards,
            afterwards=(),
        )

    def to_bytes(self) -> bytes:
        """The request as JSON."""
        return json.dumps(dataclasses.asdict(self)).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Request:
        """The request that `to_bytes` made; raises `DataError` for anything else."""
        found = read_json(data)
        try:
            return parse(cls, found, "request")
        except RecdError as error:
            raise DataError(f"a request is not one ({error}). {ONE_VERSION}") from None


def read_json(data: bytes, most_bytes: int = MOST_BYTES) -> dict[str, Any]:
    """The mapping in a message, whose numbers are finite, whose integers have 64 bits and whose
    texts are Unicode; raises `DataError` for anything else."""
    if len(data) > most_bytes:
        raise DataError(
            f"a message has {len(data)} bytes, but at most {most_bytes} are read. {ONE_VERSION}"
        )
    try:
        text = data.decode()
        found = json.loads(text, parse_int=_whole, parse_float=_finite, parse_constant=_finite)
        if "\\u" in text:  # may be half of a surrogate pair, which cannot be encoded
            json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise DataError(f"a message is not JSON ({error}). {ONE_VERSION}") from None
    if not isinstance(found, dict):
        raise DataError(f"a message is JSON, but no mapping. {ONE_VERSION}")
    return found


def _whole(text: str) -> int:
    found = int(text) if len(text) <= DIGITS else MOST_NUMBER + 1
    if not LEAST_NUMBER <= found <= MOST_NUMBER:
        raise ValueError(f"{text[:DIGITS]}... is no integer of 64 bits")
    return found


def _finite(text: str) -> float:
    found = float(text)
    if not math.isfinite(found):
        raise ValueError(f"{text[:DIGITS]} is no finite number")
    return found

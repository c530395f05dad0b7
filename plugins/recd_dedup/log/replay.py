"""Turns any table into logs that it could have come from: each row is a request, each positive an
event.

What goes wrong on the way is drawn per request from the seed, so it does not depend on how the rows
are chunked. If nothing is lost, joining the logs gives the table back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recd_dedup.hashing import F64, I64, mix, salt, uniforms
from recd_dedup.log.codec import MessageCodec
from recd_plugins.api import Config, DataError, Range
from recd_plugins.api.data import MESSAGES, Schema

__all__ = ["Replay", "ReplayConfig"]

Share = Annotated[float, Range(ge=0, le=1)]


@dataclass(frozen=True, kw_only=True)
class ReplayConfig(Config):
    """What happens to messages between service and log; by default events only come later."""

    seed: Annotated[int, Range(ge=0)] = 0
    """The seed of what is drawn here: the same seed yields the same messages."""
    delay_ms: Annotated[int, Range(ge=0)] = 5 * 60_000
    """The longest time in ms from a request to its events, by default 5 minutes; delays are evenly
    distributed."""
    redelivery_ms: Annotated[int, Range(ge=0)] = 10_000
    """The longest time in ms from a message to its duplicate, which has the same timestamp; delays
    are evenly distributed."""
    duplicate_requests: Share = 0.0
    """The share of requests that arrive twice."""
    duplicate_events: Share = 0.0
    """The share of events that arrive twice."""
    lost_requests: Share = 0.0
    """The share of requests that never arrive, although their events do."""
    lost_events: Share = 0.0
    """The share of events that never arrive."""
    missing: Share = 0.0
    """The share of a request's features that its message lacks."""


class Replay:
    """Turns rows, in order of time, into messages in order of arrival."""

    def __init__(self, schema: Schema, config: ReplayConfig | None = None) -> None:
        self.config = config or ReplayConfig()
        self.codec = MessageCodec(schema)
        self.schema = schema

    def messages(self, chunks: Iterable[pa.Table], first: int = 0) -> Iterator[pa.RecordBatch]:
        """The messages, about as many at a time as a chunk has rows; `first` is the first row's
        number."""
        held = pa.RecordBatch.from_pylist([], schema=MESSAGES)
        arrivals: I64 = np.empty(0, np.int64)
        for chunk in chunks:
            parts = [(held, arrivals), *self._sent(chunk, self.request_ids(first, chunk.num_rows))]
            first += chunk.num_rows
            batch = pa.concat_batches([messages for messages, _ in parts])
            arrivals = np.concatenate([times for _, times in parts])
            now = max(chunk[self.schema.timestamp].to_pylist(), default=-(2**63))
            order = np.argsort(arrivals, kind="stable")
            due = int(np.searchsorted(arrivals[order], now, side="right"))
            yield batch.take(pa.array(order[:due]))
            held, arrivals = batch.take(pa.array(order[due:])), arrivals[order[due:]]
        yield held

    def request_ids(self, first: int, rows: int) -> I64:
        """Ids of the rows from number `first` on: all different and unordered, as in production."""
        numbers = np.arange(first, first + rows).astype(np.uint64)
        return mix(numbers, salt(self.config.seed, "request")).view(np.int64)

    def drawn(self, purpose: str, ids: I64) -> F64:
        """The random draw for `purpose` (an option of the config) for each request; [N]."""
        return uniforms(self.config.seed, purpose, ids)

    def _sent(self, rows: pa.Table, ids: I64) -> Iterator[tuple[pa.RecordBatch, I64]]:
        """The messages of a chunk and when each arrives: requests, events, and their duplicates."""
        config, schema = self.config, self.schema
        labels = rows[schema.label].to_numpy()
        strange = labels[~np.isin(labels, (0, 1))]
        if strange.size:
            raise DataError(
                f"column {schema.label!r} holds {strange[0]}, but an event makes a label 1 and its "
                "absence 0. Map the labels to 0 and 1."
            )
        sessions, times = (
            rows[name].to_numpy().astype(np.int64) for name in (schema.session_id, schema.timestamp)
        )
        there = np.flatnonzero(self.drawn("lost_requests", ids) >= config.lost_requests)
        sent = self.codec.requests(ids[there], self._lacking(rows, ids).take(pa.array(there)))
        yield sent, times[there]
        yield self._again("duplicate_requests", sent, ids[there], times[there])
        kept = self.drawn("lost_events", ids) >= config.lost_events
        there = np.flatnonzero((labels == 1) & kept)
        after = times[there] + self._within("delay_ms", config.delay_ms, ids[there])
        sent = self.codec.events(ids[there], sessions[there], after)
        yield sent, after
        yield self._again("duplicate_events", sent, ids[there], after)

    def _again(
        self, option: str, sent: pa.RecordBatch, ids: I64, arrivals: I64
    ) -> tuple[pa.RecordBatch, I64]:
        twice = np.flatnonzero(self.drawn(option, ids) < getattr(self.config, option))
        wait = self._within(f"{option}/after", self.config.redelivery_ms, ids[twice])
        return sent.take(pa.array(twice)), arrivals[twice] + wait

    def _within(self, purpose: str, most: int, ids: I64) -> I64:
        return np.floor(self.drawn(purpose, ids) * (most + 1)).astype(np.int64)

    def _lacking(self, rows: pa.Table, ids: I64) -> pa.Table:
        if self.config.missing:
            for name in (*self.schema.dense, *self.schema.sparse_names):
                column = rows[name].combine_chunks()
                lost = pa.array(self.drawn(f"missing/{name}", ids) < self.config.missing)
                column = pc.if_else(lost, pa.scalar(None, column.type), column)
                rows = rows.set_column(rows.column_names.index(name), name, column)
        return rows

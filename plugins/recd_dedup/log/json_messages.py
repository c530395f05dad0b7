"""Messages that other programs wrote, each a JSON object: which are requests and which are events,
and the columns of requests, by a schema like that of foreign files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from recd_dedup.hashing import I64
from recd_dedup.log.codec import (
    NO_KEY,
    DecodedMessages,
    Events,
    MessageError,
    MessageHeads,
    Requests,
    id_of_bytes,
)
from recd_dedup.log.json_columns import JsonColumns, field_of, spelled_by
from recd_plugins.api import Config, RegistryError
from recd_plugins.api.data import ForeignSchema, LogRoute, Schema

__all__ = ["JsonDecoder", "JsonMessages"]

Kind = str | int | bool


@dataclass(frozen=True, kw_only=True)
class JsonMessages(Config):
    """Messages that are JSON objects."""

    columns: ForeignSchema
    """The fields of requests that become columns, as `recd data schema` writes them for such
    objects in lines; a dotted name is a field of a nested object. With `session_id: null` the
    message's key is the session, with `timestamp: null` the message's own time is the time."""
    request_id: str | None = None
    """The field that has the request's id, a text or a whole number, in requests and in events. By
    default there is none, and equal messages of the same time count as one."""
    kind: str | None = None
    """The field that says whether a message is a request or an event. By default all messages are
    requests, which carry their labels and wait for no event."""
    requests: tuple[Kind, ...] = ()
    """The values of `kind` that make a message a request. By default a message is one if its kind
    is missing or is not among `events`."""
    events: tuple[Kind, ...] = ()
    """The values of `kind` that make a message an event, which makes its request's label 1; by
    default all that are not among `requests`. Messages of other kinds are left out."""
    malformed: Literal["raise", "skip"] = "raise"
    """What happens to a message that is not a JSON object, lacks an id or does not fit the columns:
    it is an error (`raise`), or it is left out and counted (`skip`)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if drops := self.columns.drops:
            raise RegistryError(
                f"nulls of {', '.join(drops)} drop the row, and its events would have no request. "
                "Write `nulls: {value: ...}` or `nulls: empty`; `malformed: skip` leaves out "
                "messages that do not fit.",
                "columns",
            )
        if self.kind is None and (self.requests or self.events):
            raise RegistryError(
                "are values of `kind`, but `kind` names no field. Name it.",
                "requests" if self.requests else "events",
            )
        if self.kind is not None and self.request_id is None:
            raise RegistryError(
                "is missing, and events find their request by it. Name the field, or leave `kind` "
                "out if messages have their labels.",
                "request_id",
            )
        if both := {*self.requests} & {*self.events}:
            raise RegistryError(f"{both.pop()!r} is among `requests`, too.", "events")

    @cached_property
    def schema(self) -> Schema:
        """The schema of the samples, which always have a session and a time."""
        made = self.columns.conformed
        session, time = made.session_id or "session_id", made.timestamp or "timestamp"
        taken = {*made.columns}
        while made.session_id is None and session in taken:
            session += "_key"
        while made.timestamp is None and time in taken:
            time += "_key"
        return replace(made, session_id=session, timestamp=time)


class JsonDecoder:
    """Reads requests and events from JSON messages; each result depends only on its own message."""

    def __init__(self, config: JsonMessages, route: LogRoute = "message") -> None:
        """`route` is the log's: if it is by session, a message must have a key, which puts it in
        the same shard as its session's others."""
        self.config = config
        self._keyed = route == "session"
        self.schema = config.schema
        made_here = () if config.kind is None else (config.columns.label,)
        self._columns = JsonColumns(config.columns, made_here)

    def heads(self, messages: pa.RecordBatch) -> MessageHeads:
        """Which messages are requests, which are events, and the requests that they belong to."""
        found = self._objects(messages)
        if self.config.malformed == "skip":  # what does not fit the columns is not a request either
            at = _requests_of(found)
            fits = {*self._rows(messages, found, at)[0]}
            for i in at:
                found[i] = found[i] if i in fits else None
        ids = np.array([0 if one is None else one.id for one in found], np.int64)
        events = np.array([one is not None and one.event for one in found], np.bool_)
        requests = np.array([one is not None and not one.event for one in found], np.bool_)
        return MessageHeads(ids, events, requests)

    def decode(self, messages: pa.RecordBatch) -> DecodedMessages:
        """The requests and the events among messages, each in order."""
        found = self._objects(messages)
        sessions, times = (column.to_numpy() for column in messages.columns[:2])
        at, rows = self._rows(messages, found, _requests_of(found))
        columns = {name: rows[name] for name in rows.column_names}
        schema = self.schema
        assert schema.session_id is not None
        assert schema.timestamp is not None
        columns.setdefault(schema.session_id, pa.array(sessions[at]))
        columns.setdefault(schema.timestamp, pa.array(times[at]))
        ids = np.array([0 if one is None else one.id for one in found], np.int64)
        event = np.array([i for i, one in enumerate(found) if one is not None and one.event], int)
        return DecodedMessages(
            Requests(ids[at], times[at], pa.table(columns)), Events(ids[event], times[event])
        )

    def _objects(self, messages: pa.RecordBatch) -> list[_Message | None]:
        """Each message, or None for one that is left out."""
        sessions, times, texts = (column.to_pylist() for column in messages.columns)
        found: list[_Message | None] = []
        for session, time, text in zip(sessions, times, texts, strict=True):
            try:
                found.append(self._object(session, time, text))
            except (ValueError, RecursionError) as error:
                if self.config.malformed == "raise":
                    raise _misfit(session, time, text, f"{error}.") from None
                found.append(None)
        return found

    def _object(self, session: int, time: int, text: bytes) -> _Message | None:
        config = self.config
        if not text:  # a compacted topic has such messages
            return None
        made = json.loads(text)
        if not isinstance(made, dict):
            raise ValueError(f"is a JSON {type(made).__name__}, no object")
        event = False
        if config.kind is not None:
            kind = field_of(made, config.kind)
            event = _is_one(kind, config.events) if config.events else kind is not None
            named = _is_one(kind, config.requests)
            event &= not named
            if not event and config.requests and not named:
                return None
        if session == NO_KEY and self._keyed:
            raise ValueError(
                "with `log.route: session` a message's key is its session. Let producers use the "
                "session as the key, or write `route: message`, and let `messages.columns` name "
                "the session"
            )
        if session == NO_KEY and not event and config.columns.session_id is None:
            raise ValueError(
                "`columns` name no session either. Name its field as `messages.columns.session_id`"
            )
        if config.request_id is None:
            return _Message(id_of_bytes(b"%d %d " % (session, time) + text), event, made)
        return _Message(_id(field_of(made, config.request_id), config.request_id), event, made)

    def _rows(
        self, messages: pa.RecordBatch, found: Sequence[_Message | None], at: Sequence[int]
    ) -> tuple[I64, pa.Table]:
        """The places of the requests among these that fit the columns, and their columns."""
        objects = [one.fields for i in at if (one := found[i]) is not None]
        raises = self.config.malformed == "raise"
        fits, rows, misfits = self._columns.of(objects, until_misfit=raises)
        if misfits and raises:
            place = at[min(misfits)]
            session, time, text = (column[place].as_py() for column in messages.columns)
            raise _misfit(session, time, text, misfits[min(misfits)])
        return np.array([at[i] for i in fits], np.int64), rows


class _Message(NamedTuple):
    """A message that is a request or an event."""

    id: int
    """Its request's."""
    event: bool
    fields: Mapping[str, Any]


def _requests_of(found: Sequence[_Message | None]) -> Sequence[int]:
    return [i for i, one in enumerate(found) if one is not None and not one.event]


def _misfit(session: int, time: int, text: bytes, why: str) -> MessageError:
    whose = "that has no key" if session == NO_KEY else f"of session {session}"
    return MessageError(
        f"a message of time {time} {whose}: {why} It begins with {text[:60]!r}. Correct its "
        "writer, or leave out such messages with `malformed: skip`."
    )


def _is_one(kind: Any, named: Sequence[Kind]) -> bool:
    """Whether a kind is among the named ones; true is not the number 1."""
    return any(kind == one and isinstance(kind, bool) == isinstance(one, bool) for one in named)


def _id(value: Any, field: str) -> int:
    """The number of a request: a whole number of 64 bits, or a text that spells one, stands for
    itself."""
    match value:
        case str():
            spelled = spelled_by(value)
            return _hashed(value) if isinstance(spelled, str) else _id(spelled, field)
        case int() if not isinstance(value, bool):
            return value if -(2**63) <= value < 2**63 else _hashed(str(value))
    raise ValueError(f"its field {field!r} is {json.dumps(value)[:60]}, which is not an id")


def _hashed(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)

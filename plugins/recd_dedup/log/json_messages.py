"""Messages that others wrote, each a JSON object: which are requests and which are events, and the
columns of requests, by a schema like that of foreign files."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from recd_dedup.hashing import I64
from recd_dedup.log.codec import DecodedMessages, Events, MessageHeads, Requests
from recd_plugins.api import Config, DataError, RegistryError
from recd_plugins.api.data import ForeignSchema, Schema, conform

__all__ = ["JsonDecoder", "JsonMessages", "id_of_bytes"]

Kind = str | int | bool
Object = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class JsonMessages(Config):
    """Messages that are JSON objects."""

    columns: ForeignSchema
    """The fields of requests that become columns, as `recd data schema` writes it of such objects
    in lines; a dotted name is a field of an object. With `session_id: null` the session is the
    message's key, with `timestamp: null` the time is the message's own."""
    request_id: str | None = None
    """The field with a request's id, in the request and in its events: a text or a whole number.
    Without it messages that are alike, of one time, are one."""
    kind: str | None = None
    """The field that says whether a message is a request or an event. Without it all are requests,
    which have their labels with them, and wait for nothing."""
    requests: tuple[Kind, ...] = ()
    """The values of `kind` by which a message is a request; by default all that are none of
    `events`."""
    events: tuple[Kind, ...] = ()
    """The values of `kind` by which a message is an event, which makes its request's label 1; by
    default any, where the field is there. Messages of other kinds are left out."""
    malformed: Literal["raise", "skip"] = "raise"
    """What becomes of a message that is no JSON object, lacks an id or does not fit the columns:
    an error, or it is left out and counted."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if drops := self.columns.drops:
            raise RegistryError(
                f"nulls of {', '.join(drops)} drop the row, and its events would have no request. "
                "Say `nulls: {value: ...}` or `nulls: empty`; `malformed: skip` leaves out "
                "messages that do not fit.",
                "columns",
            )
        if self.kind is None and (self.requests or self.events):
            raise RegistryError(
                "are values of `kind`, which names no field. Name it.",
                "requests" if self.requests else "events",
            )
        if self.kind is not None and self.request_id is None:
            raise RegistryError(
                "is missing: events find their request by it. Name the field, or leave `kind` out, "
                "where messages have their labels.",
                "request_id",
            )
        if both := {*self.requests} & {*self.events}:
            raise RegistryError(f"{both.pop()!r} is among `requests`, too.", "events")

    @cached_property
    def schema(self) -> Schema:
        """The schema of the samples, which have a session and a time in any case."""
        made = self.columns.conformed
        return replace(
            made,
            session_id=made.session_id or "session_id",
            timestamp=made.timestamp or "timestamp",
        )


class JsonDecoder:
    """Reads requests and events out of JSON messages; what it makes depends on each alone."""

    def __init__(self, config: JsonMessages) -> None:
        self.config = config
        self.schema = config.schema
        own = config.columns.conformed
        made_here = () if config.kind is None else (own.label,)
        self._columns = [name for name in own.columns if name not in made_here]
        self._sources = [name for name in config.columns.columns if name not in made_here]

    def heads(self, messages: pa.RecordBatch) -> MessageHeads:
        """Which messages are requests, which are events, and the requests that they are of."""
        found = self._objects(messages)
        ids = np.array([0 if one is None else one[0] for one in found], np.int64)
        events = np.array([one is not None and one[1] for one in found], np.bool_)
        requests = np.array([one is not None and not one[1] for one in found], np.bool_)
        return MessageHeads(ids, events, requests)

    def decode(self, messages: pa.RecordBatch) -> DecodedMessages:
        """The requests and the events among messages, each in their order."""
        found = self._objects(messages)
        sessions, times = (column.to_numpy() for column in messages.columns[:2])
        at = [i for i, one in enumerate(found) if one is not None and not one[1]]
        rows, kept = self._rows([found[i][2] for i in at], _whose(times, at))
        at = [at[i] for i in kept]
        columns = {name: rows[name] for name in rows.column_names}
        schema = self.schema
        assert schema.session_id is not None
        assert schema.timestamp is not None
        columns.setdefault(schema.session_id, pa.array(sessions[at]))
        columns.setdefault(schema.timestamp, pa.array(times[at]))
        event = [i for i, one in enumerate(found) if one is not None and one[1]]
        ids = np.array([0 if one is None else one[0] for one in found], np.int64)
        return DecodedMessages(
            Requests(ids[at], times[at], pa.table(columns)), Events(ids[event], times[event])
        )

    def _objects(self, messages: pa.RecordBatch) -> list[Any]:
        """Of each message its request's id, whether it is an event, and the object; none for one
        that is left out."""
        sessions, times, texts = (column.to_pylist() for column in messages.columns)
        found: list[Any] = []
        for session, time, text in zip(sessions, times, texts, strict=True):
            try:
                found.append(self._object(session, time, text))
            except (ValueError, RecursionError) as error:
                if self.config.malformed == "raise":
                    raise DataError(
                        f"a message of time {time} and session {session}: {error}. It begins with "
                        f"{text[:60]!r}. Mend its writer, or leave such messages out by "
                        "`malformed: skip`."
                    ) from None
                found.append(None)
        return found

    def _object(self, session: int, time: int, text: bytes) -> tuple[int, bool, Object] | None:
        config = self.config
        if not text:  # a topic that is compacted has such
            return None
        made = json.loads(text)
        if not isinstance(made, dict):
            raise ValueError(f"is a JSON {type(made).__name__}, no object")
        event = False
        if config.kind is not None:
            kind = _field(made, config.kind)
            event = kind in config.events if config.events else kind is not None
            if not event and config.requests and kind not in config.requests:
                return None
        if config.request_id is None:
            return id_of_bytes(b"%d %d " % (session, time) + text), event, made
        return _id(_field(made, config.request_id), config.request_id), event, made

    def _rows(self, objects: Sequence[Object], whose: str) -> tuple[pa.Table, Sequence[int]]:
        """The columns of requests, and which of them they are of."""
        try:
            return self._conformed(objects, whose), range(len(objects))
        except DataError:
            if self.config.malformed == "raise":
                raise
        kept: list[int] = []
        for i, one in enumerate(objects):
            try:
                self._conformed([one], whose)
            except DataError:
                continue
            kept.append(i)
        return self._conformed([objects[i] for i in kept], whose), kept

    def _conformed(self, objects: Sequence[Object], whose: str) -> pa.Table:
        chunk = pa.table(
            {name: _array([_field(one, name) for one in objects]) for name in self._sources}
        )
        return conform(chunk, self.config.columns, whose, columns=self._columns)


def id_of_bytes(key: bytes) -> int:
    """The 64-bit number that stands for a key: of 8 bytes they themselves, else a hash of it."""
    if len(key) != 8:
        key = blake2b(key, digest_size=8).digest()
    return int.from_bytes(key, "little", signed=True)


def _id(value: Any, field: str) -> int:
    """The number of a request: a whole number, or what spells one, is itself."""
    match value:
        case bool() | None | float() | list() | dict():
            raise ValueError(f"its field {field!r} is {json.dumps(value)[:60]}, which is no id")
        case str():
            if value.isascii() and value.isdigit() and (value == "0" or value[0] != "0"):
                return _id(int(value), field)
            return int.from_bytes(blake2b(value.encode(), digest_size=8).digest(), "little") - 2**63
    return int((value + 2**63) % 2**64 - 2**63)


def _field(made: Mapping[str, Any], path: str) -> Any:
    """The value of a field, a dotted name being one of an object within; none where it is not."""
    if path in made:
        return made[path]
    found: Any = made
    for name in path.split("."):
        if not isinstance(found, Mapping):
            return None
        found = found.get(name)
    return found


def _array(values: Sequence[Any]) -> pa.Array:
    """The values as Arrow has them, which has one type in a column: each a list where any is, and
    all texts where some are."""
    if any(isinstance(value, list) for value in values):
        values = [
            value if value is None or isinstance(value, list) else [value] for value in values
        ]
    try:
        return pa.array([_each(_number, value) for value in values])
    except (pa.ArrowException, TypeError, OverflowError):
        return pa.array([_each(_text, value) for value in values])


def _each(do: Callable[[Any], Any], value: Any) -> Any:
    return [_each(do, one) for one in value] if isinstance(value, list) else do(value)


def _number(value: Any) -> Any:
    return int(value) if isinstance(value, bool) else value


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(_number(value))


def _whose(times: I64, at: Sequence[int]) -> str:
    if not at:
        return "messages"
    return f"requests of times {times[at].min()} to {times[at].max()}"

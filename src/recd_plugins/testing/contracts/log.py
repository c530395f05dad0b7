"""The `log` slot: messages in, the same messages out, by log shard."""

from __future__ import annotations

from collections.abc import Iterable
from typing import get_args

import pyarrow as pa

from recd_plugins.data.messages import MESSAGES, LogRoute
from recd_plugins.slots import LogStore
from recd_plugins.testing.contracts.subject import Subject

__all__ = ["check_log"]

Message = tuple[int, int, bytes]
EDGES: list[Message] = [(-(2**63), 1000, b""), (2**63 - 1, 1001, bytes(range(256)) * 40)]
FIRST: list[Message] = [(n % 7 - 3, 1002 + n, f"message {n}".encode()) for n in range(100)]
MORE: list[Message] = [(n % 5, 2000 + n, f"more {n}".encode()) for n in range(50)]
LAST: list[Message] = [(2, 3000, b"the last"), (2, 3000, b"the very last")]


def check_log(subject: Subject) -> None:
    store: LogStore = subject.build()
    subject.hold(
        isinstance(store.shards, int) and store.shards > 0 and store.route in get_args(LogRoute),
        f"it must have shards and a route, but says {store.shards!r} and {store.route!r}",
        "See recd_plugins.api.LogStore.",
    )
    _hold_messages(subject, store, [], "new")
    store.append(_batch([]))
    store.append(_batch(EDGES))
    store.append(_batch(FIRST))
    store.flush()
    flushed: LogStore = subject.build()
    _hold_messages(subject, flushed, EDGES + FIRST, "flushed and opened anew")
    before = store.fingerprint()
    subject.hold(
        before == flushed.fingerprint(),
        "its fingerprint must be the same for the same messages",
        "Derive it from names and sizes of files, or from offsets.",
    )
    store.append(_batch(MORE))
    store.close()
    store.close()
    again: LogStore = subject.build()
    subject.hold(
        again.fingerprint() != before,
        "its fingerprint must change when messages were added",
        "Derive it from names and sizes of files, or from offsets.",
    )
    _hold_messages(subject, again, EDGES + FIRST + MORE, "closed and opened anew")
    again.append(_batch(LAST))
    again.close()
    _hold_messages(subject, store, EDGES + FIRST + MORE + LAST, "appended to anew")


def _hold_messages(subject: Subject, store: LogStore, given: list[Message], when: str) -> None:
    shards = [_rows(subject, store.read(shard)) for shard in range(store.shards)]
    found = [row for shard in shards for row in shard]
    subject.hold(
        sorted(found) == sorted(given),
        f"a log that is {when} must hold each message once: {len(given)}, but has {len(found)}, "
        "or other ones",
        "Keep session id, timestamp and bytes as they are; flush and close leave nothing behind.",
    )
    if store.route == "session":
        homes = {(row[0], shard) for shard, rows in enumerate(shards) for row in rows}
        subject.hold(
            len(homes) == len({row[0] for row in given}),
            "by session, all messages of one must be in one shard",
            "Route by a hash of the session id that is the same in every process.",
        )
        ordered = all(rows == sorted(rows, key=lambda row: row[1]) for rows in shards)
        subject.hold(
            ordered,
            f"a log that is {when} must give a writer's messages in the order that they came in",
            "Read blocks in the order of their writing.",
        )


def _batch(rows: Iterable[Message]) -> pa.RecordBatch:
    named = [dict(zip(MESSAGES.names, row, strict=True)) for row in rows]
    return pa.RecordBatch.from_pylist(named, schema=MESSAGES)


def _rows(subject: Subject, batches: Iterable[pa.RecordBatch]) -> list[Message]:
    rows: list[Message] = []
    for batch in batches:
        subject.hold(
            batch.schema.equals(MESSAGES),
            f"what it reads must have the columns of MESSAGES, not {batch.schema.names}",
            "Take the schema MESSAGES from recd_plugins.api.data.",
        )
        rows += zip(*(column.to_pylist() for column in batch.columns), strict=True)
    return rows

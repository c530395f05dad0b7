"""A raw log message: whose session it is of, its time, and bytes that the log never looks into."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import pyarrow as pa

__all__ = ["MESSAGES", "Cuts", "LogRoute", "Placed"]

MESSAGES = pa.schema(
    [
        pa.field("session_id", pa.int64(), nullable=False),
        pa.field("timestamp", pa.int64(), nullable=False),
        pa.field("message", pa.binary(), nullable=False),
    ]
)
"""The columns of messages in Arrow; timestamps are in ms."""

LogRoute = Literal["session", "message"]
"""What decides a message's log shard: its session id, or a hash of the message itself."""


@dataclass(frozen=True, kw_only=True)
class Cuts:
    """Places in the parts of a log that grows, about two times.

    A part is what is written in one order: a writer's file, a partition. Its places are numbers
    that grow, by its name; a part that is not named is not begun.
    """

    before: Mapping[str, int]
    """All that comes before such a place is earlier than the first time."""
    past: Mapping[str, int]
    """At such a place a writer has come to the second time, or its part has ended."""
    behind: tuple[str, ...]
    """The writers that have not come so far, in words; they may still write what is earlier."""
    latest: int | None
    """The latest timestamp that was met, which is the latest written while somebody is behind; None
    where nothing was written."""
    ended: bool
    """Whether nobody writes any longer, and the writer that came furthest has closed."""


class Placed(NamedTuple):
    """Messages, and the place of the first of them."""

    part: str
    place: int
    messages: pa.RecordBatch

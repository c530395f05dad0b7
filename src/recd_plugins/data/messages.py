"""A raw log message: its session, its time, and bytes that the log never looks into."""

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
"""What determines a message's log shard: its session id, or a hash of the message itself."""


@dataclass(frozen=True, kw_only=True)
class Cuts:
    """Places in the parts of a log that grows, for two points in time.

    A part is what is written in one order: a writer's file, a partition. Places are increasing
    numbers, by the part's name; a part that is not named has not begun.
    """

    before: Mapping[str, int]
    """Everything before such a place is earlier than the first time."""
    past: Mapping[str, int]
    """At such a place a writer has reached the second time, or its part has ended."""
    behind: tuple[str, ...]
    """The writers that have not come that far, in words; they may still write earlier messages."""
    latest: int | None
    """The latest timestamp that was found. While a writer is behind, it is the latest one written.
    None if nothing was written."""
    ended: bool
    """Whether nobody writes any more, and the writer that came furthest has closed."""


class Placed(NamedTuple):
    """Messages, and the place of the first one."""

    part: str
    place: int
    messages: pa.RecordBatch

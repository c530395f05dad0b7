"""A raw log message: whose session it is of, its time, and bytes that the log never looks into."""

from __future__ import annotations

from typing import Literal

import pyarrow as pa

__all__ = ["MESSAGES", "LogRoute"]

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

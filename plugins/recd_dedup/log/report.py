"""What a join met: how many messages, and what became of each."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

__all__ = ["JoinReport"]


@dataclass(kw_only=True)
class JoinReport:
    """A request is a sample or a duplicate; an event makes one positive, or is one of the rest."""

    requests: int = 0
    """Inference messages."""
    samples: int = 0
    """Rows written."""
    duplicate_requests: int = 0
    """Requests whose id had come before; the first one counts."""
    events: int = 0
    """Event messages."""
    positives: int = 0
    """Samples that an event made positive."""
    duplicate_events: int = 0
    """Further events in the window of a positive sample."""
    late_events: int = 0
    """Events after their request's window, or after its sample was written."""
    orphan_events: int = 0
    """Events whose request did not come, or came longer ago than is remembered."""
    disordered: int = 0
    """Messages further behind the others than `disorder_ms`: where there are any, raise it."""
    most_waiting: int = 0
    """Samples that waited for events at a time, at most: what memory held."""
    missing: dict[str, int] = field(default_factory=dict)
    """Samples that lack a feature, by feature; they have 0, or no ids, there."""

    def to_dict(self) -> dict[str, int | dict[str, int]]:
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        text = (
            f"{self.requests:,} requests -> {self.samples:,} samples "
            f"({self.duplicate_requests:,} duplicates); {self.events:,} events -> "
            f"{self.positives:,} positives ({self.duplicate_events:,} duplicates, "
            f"{self.late_events:,} late, {self.orphan_events:,} orphans)"
        )
        if self.missing:
            parts = (f"{name} in {count:,}" for name, count in sorted(self.missing.items()))
            text += f"; missing: {', '.join(parts)}"
        if self.disordered:
            text += f"; {self.disordered:,} messages came further out of order than allowed"
        return text

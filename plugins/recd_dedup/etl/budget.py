"""What clustering may hold in memory, and what follows from it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PART_STRIPES", "STRIPE_ROWS", "Budget"]

STRIPE_ROWS = 16_384
PART_STRIPES = 16
"""Stripes of a part (a file), or a few more: it ends with a bucket."""


@dataclass(frozen=True)
class Budget:
    """How memory is shared out.

    At the worst, where one session is the whole table, a spill is held in four copies: as
    read (in buffers with room to spare), in one piece, as its only bucket and compressed.
    """

    bytes: int

    @classmethod
    def of(cls, memory_gb: float) -> Budget:
        return cls(int(memory_gb * 1e9))

    @property
    def run(self) -> int:
        """Of a spill, or of a run: what is sorted at once.

        Below 8 GiB a column of it has fewer than 2^31 ids, as 32-bit offsets ask.
        """
        return min(max(self.bytes // 6, 1), 8 << 30)

    @property
    def bucket(self) -> int:
        """The mean; half a run, for sessions are of unequal size."""
        return max(self.run // 2, 1)

    def stripe_rows(self, bytes_per_row: float) -> int:
        return max(1, min(STRIPE_ROWS, int(self.run / max(bytes_per_row, 1))))

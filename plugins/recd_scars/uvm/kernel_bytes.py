"""The bytes that TorchRec's kernels keep for a table on a rank, in device and in host memory.

This is the layout of fbgemm 1.8. A row-wise optimizer state is on the device with any kernel; any
other state is with its rows. A cache has room for rows and, in addition, a table index of 4 bytes
for each row of the table, an id of 8 bytes for each slot, and 8 more bytes for the choice of what
to evict: for each slot (LRU), or for each row of the table (LFU). Slots are as wide as the widest
row that the kernel serves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from recd_plugins.api.planning import CacheAlgorithm, state_bytes

__all__ = ["SLOTS_PER_SET", "KernelBytes", "row_wise_state"]

SLOTS_PER_SET = 32
"""fbgemm's `DEFAULT_ASSOC`: the least number of slots of a cache, and the step by which it
grows."""
TABLE_INDEX = 4
SLOT_ID = TO_EVICT = 8


@dataclass(frozen=True, kw_only=True)
class KernelBytes:
    """The bytes that one row-wise table takes."""

    num_rows: int
    """The number of rows on the rank with the most of them."""
    row: int
    """r: bytes of a row."""
    state: int
    """Bytes of optimizer state for a row."""
    state_on_device: bool
    """Whether that state is on the device with any kernel."""
    slot: int
    """Bytes of the cache for each row for which it has room."""
    index: int
    """Bytes of the cache for each row of the table."""

    @classmethod
    def of(
        cls,
        *,
        num_rows: int,
        dim: int,
        widest: int,
        element_bytes: int,
        fused: Mapping[str, Any],
        algorithm: CacheAlgorithm,
    ) -> KernelBytes:
        """`widest` is how many numbers a row of the widest table that shares the kernel has."""
        state = int(state_bytes(fused, dim))
        lru = algorithm == "lru"
        return cls(
            num_rows=num_rows,
            row=dim * element_bytes,
            state=state,
            state_on_device=row_wise_state(fused),
            slot=widest * element_bytes + SLOT_ID + (TO_EVICT if lru else 0),
            index=TABLE_INDEX + (0 if lru else TO_EVICT),
        )

    @property
    def whole(self) -> int:
        """Bytes on the device with the kernel `fused`: all of the table's bytes."""
        return self.num_rows * (self.row + self.state)

    @property
    def resident(self) -> int:
        """Bytes on the device with any kernel."""
        return self.num_rows * self.state if self.state_on_device else 0

    def cache(self, slots: int) -> int:
        """Bytes on the device with `fused_uvm_caching`, in addition to what is there anyway."""
        return self.num_rows * self.index + slots * self.slot

    @property
    def host(self) -> int:
        """Bytes in host memory with `fused_uvm` and `fused_uvm_caching`."""
        return self.whole - self.resident


def row_wise_state(fused: Mapping[str, Any]) -> bool:
    """Whether the optimizer keeps one number per row, which fbgemm keeps on the device."""
    return getattr(fused.get("optimizer"), "name", "") == "EXACT_ROWWISE_ADAGRAD"

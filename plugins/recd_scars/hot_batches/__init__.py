"""A stage behind the reader: batches all of whose ids are cached, and others, window by window."""

from recd_scars.hot_batches.stage import (
    HotBatches,
    HotBatchesWithoutState,
    PlansHotRows,
    YieldedCounts,
)

__all__ = ["HotBatches", "HotBatchesWithoutState", "PlansHotRows", "YieldedCounts"]

"""What a replicated row takes beside its own bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from recd_plugins.planning.ledger import SequenceTable

__all__ = ["replica_factor", "row_factor", "state_bytes"]

UNDER_WAY = 0.64
"""Of the bytes of replicas, what gradients take while chunks of them are reduced: the most that
`python -m benchmarks.flexshard` found, in most runs 0.55 to 0.62."""
STATE_BYTES: Mapping[str, Callable[[int], int]] = {
    "EXACT_ADAGRAD": lambda dim: 4 * dim,
    "EXACT_ROWWISE_ADAGRAD": lambda _: 4,
}
"""Optimizer state of a row of D elements; none for SGD."""


def state_bytes(fused: Mapping[str, Any], dim: int) -> int:
    """What the fused optimizer keeps for a row."""
    optimizer: str = getattr(fused.get("optimizer"), "name", "EXACT_SGD")
    return STATE_BYTES[optimizer](dim) if optimizer in STATE_BYTES else 0


def replica_factor(tables: Iterable[SequenceTable], fused: Mapping[str, Any]) -> float:
    """k: bytes that a replicated row takes with all that goes with it, over its own; that of the
    table whose replicas take the most."""
    return max(row_factor(fused, table.dim, table.element_bytes) for table in tables)


def row_factor(fused: Mapping[str, Any], dim: int, element_bytes: int = 4) -> float:
    """k of a row of D elements: 1, gradients under way, and its optimizer state."""
    return 1 + UNDER_WAY + state_bytes(fused, dim) / (dim * element_bytes)

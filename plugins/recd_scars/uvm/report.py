"""Why tables in host memory are served as they are, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from recd_plugins.api.planning import GB, CacheAlgorithm, SequenceTable, TableSizes, aligned
from recd_scars.uvm.choice import Choice

__all__ = ["lines"]

HEADER = (
    "table",
    "kernel",
    "load factor",
    "slots",
    "replicas hit",
    "cache hits",
    "device MB",
    "host MB",
)


def lines(
    choices: Mapping[str, Choice],
    tables: Mapping[str, SequenceTable],
    sizes: Mapping[str, TableSizes],
    *,
    capacity: float,
    algorithm: CacheAlgorithm,
) -> Iterator[str]:
    """A line per table: replicas hit lookups; caches the rows of a step that then are left."""
    yield (
        f"tables in host memory: {max(capacity, 0) / GB:.3g} GB of a rank's device are left for "
        f"them and their caches ({algorithm}), beside replicas and a batch"
    )
    shown: list[Sequence[str]] = [HEADER]
    for name, choice in choices.items():
        shown.append(
            (
                name,
                choice.kernel,
                f"{choice.load_factor:.4g}" if choice.load_factor else "-",
                f"{choice.slots:,}",
                f"{tables[name].rows.coverage(sizes[name].replicated):.1%}",
                f"{choice.hit_rate:.1%}" if choice.load_factor else "-",
                f"{choice.device_bytes / 1e6:.3g}",
                f"{choice.host_bytes / 1e6:.3g}",
            )
        )
    yield from aligned(shown)

"""What is to be measured, counted by hand from lists: slow, and plain to see."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from recd_plugins.data.schema import Schema, SparseFeature
from recd_plugins.data.table import Table
from recd_plugins.data.table_writer import TableWriter

Sample = tuple[int, dict[str, list[int]]]
"""A session, and the lists of its features."""

SCHEMA = Schema(
    dense=("age",),
    sparse=(
        SparseFeature(name="likes", kind="user", num_ids=50, sequence=True),
        SparseFeature(name="shares", kind="user", num_ids=50, sequence=True),
        SparseFeature(name="item", kind="item", num_ids=50),
    ),
)


def arrow_of(samples: Sequence[Sample], schema: Schema = SCHEMA) -> pa.Table:
    """The samples, one a second."""
    columns: dict[str, Any] = {
        "session_id": [session for session, _ in samples],
        "timestamp": [1_000 * at for at in range(len(samples))],
        "label": [0.0] * len(samples),
        **{name: [0.5] * len(samples) for name in schema.dense},
        **{name: [lists[name] for _, lists in samples] for name in schema.sparse_names},
    }
    arrow = schema.arrow()
    return pa.table({name: columns[name] for name in arrow.names}, schema=arrow)


def table_of(folder: Path, samples: Sequence[Sample], rows_per_stripe: int = 7) -> Table:
    with TableWriter(folder, SCHEMA, rows_per_stripe=rows_per_stripe) as writer:
        writer.write(arrow_of(samples))
    return Table.open(folder)


def by_session(samples: Sequence[Sample]) -> dict[int, list[dict[str, list[int]]]]:
    sessions = defaultdict(list)
    for session, lists in samples:
        sessions[session].append(lists)
    return sessions


def repeats(samples: Sequence[Sample], name: str) -> dict[str, int]:
    """A feature's counts, by the names that `FeatureRepeats` has for them."""
    counts: Counter[str] = Counter()
    for rows in by_session(samples).values():
        lists = [row[name] for row in rows]
        for at, ids in enumerate(lists):
            earlier = lists[:at]
            counts["rows"] += 1
            counts["ids"] += len(ids)
            if ids in earlier:
                counts["exact_rows"] += 1
                counts["exact_ids"] += len(ids)
            counts["partial_ids"] += sum(any(one in seen for seen in earlier) for one in ids)
            if earlier:
                counts["pairs"] += 1
                counts["unchanged"] += ids == earlier[-1]
    return dict(counts)


def change_together(samples: Sequence[Sample], left: str, right: str) -> int:
    return sum(
        rows[at][left] != rows[at - 1][left] and rows[at][right] != rows[at - 1][right]
        for rows in by_session(samples).values()
        for at in range(1, len(rows))
    )


def unique_ids(batch: Sequence[Sample], name: str) -> int:
    """Ids that an IKJT of the batch keeps."""
    return sum(len(ids) for ids in {tuple(lists[name]) for _, lists in batch})

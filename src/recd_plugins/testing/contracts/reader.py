"""The `reader` slot: every row once, the same every time, resumable anywhere."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from recd_plugins.data.batch import Batch
from recd_plugins.data.dataset import Split
from recd_plugins.data.schema import SparseFeature
from recd_plugins.data.table import Table
from recd_plugins.errors import listed, so_many
from recd_plugins.slots import Loader
from recd_plugins.testing.batches import random_table, shape_of_labels
from recd_plugins.testing.contracts.subject import Subject
from recd_plugins.testing.resume import check_resume

__all__ = ["check_reader"]

ROWS = 203
BATCH_SIZE = 16
ROW = SparseFeature(name="row", num_ids=ROWS)
"""A feature with one id in each sample: the number of the row."""
OTHER = 100.0
"""More than the weight of any sample in the table."""


def check_reader(subject: Subject) -> None:
    schema = subject.context.require_schema()
    schema = dataclasses.replace(schema, sparse=(*schema.sparse, ROW))
    table = random_table(subject.folder / "table", schema, ROWS, rows_per_stripe=32, row=ROW.name)
    rows = [row for stripe in table.stripes for row in table.read(stripe).to_pylist()]
    for world_size in (1, 2):
        for split in ("train", "test"):
            _check_epoch(subject, table, rows, world_size, split)
    _check_transforms(subject, table)
    try:
        check_resume(lambda: _loader(subject, table, 0, 1, "train"))
    except AssertionError as error:
        subject.hold(False, str(error), "See recd_plugins.api.Loader.")


def _loader(
    subject: Subject, table: Table, rank: int, world_size: int, split: Split, **given: Any
) -> Loader:
    loader: Loader = subject.build().loader(
        table, rank=rank, world_size=world_size, batch_size=BATCH_SIZE, split=split, **given
    )
    return loader


def with_other_weights(batch: Batch) -> Batch:
    """A transform, which can be sent to another process."""
    return dataclasses.replace(batch, weights=batch.weights + OTHER)


def _check_transforms(subject: Subject, table: Table) -> None:
    loader = _loader(subject, table, 0, 1, "test", transform=with_other_weights)
    weights = [batch.weights for batch in loader]
    subject.hold(
        all(bool((one >= OTHER).all() and (one < 2 * OTHER).all()) for one in weights),
        "each batch must go through `transform`, once",
        "Yield `transform(batch)` where there is one: it does what `dedup` and `preprocess` say.",
    )


def _check_epoch(
    subject: Subject,
    table: Table,
    rows: Sequence[Mapping[str, Any]],
    world_size: int,
    split: Split,
) -> None:
    where = f"split {split!r} over {so_many(world_size, 'rank')}"
    loaders = [_loader(subject, table, rank, world_size, split) for rank in range(world_size)]
    ranks = [list(loader) for loader in loaders]
    lengths = {len(loader) for loader in loaders} | {len(batches) for batches in ranks}
    subject.hold(
        len(lengths) == 1,
        f"{where}: all ranks must have as many batches as len(loader) says, but have {lengths}",
        "Drop or pad the tail alike on all ranks.",
    )
    batches = [batch for rank in ranks for batch in rank]
    for batch in batches:
        _check_batch(subject, batch, table, where)
    seen = Counter(row for batch in batches for row in _rows(batch))
    subject.hold(
        max(seen.values()) == 1,
        f"{where}: a row must come once an epoch, but some come {max(seen.values())} times",
        "Give ranks disjoint shares, and what pads a batch weight 0.",
    )
    for batch in batches:
        _check_samples(subject, batch, table, rows, where)
    if split == "test":
        subject.hold(
            len(seen) == ROWS,
            f"{where}: every row must come, but {ROWS - len(seen)} of {ROWS} do not",
            "Pad the tail of the test split, never drop it.",
        )
        again = [_rows(batch) for loader in loaders for batch in loader]
        subject.hold(
            again == [_rows(batch) for batch in batches],
            f"{where}: the order must be the same in every epoch",
            "Never shuffle the test split.",
        )


def _check_batch(subject: Subject, batch: Batch, table: Table, where: str) -> None:
    schema = table.schema
    size = len(batch.labels)
    subject.hold(
        isinstance(batch, Batch)
        and batch.features.keys() == list(schema.sparse_names)
        and batch.features.stride() == size
        and batch.dense.shape == (size, schema.dense_width)
        and batch.labels.shape == shape_of_labels(schema, size)
        and batch.weights.shape == (size,)
        and 0 < size <= BATCH_SIZE,
        f"{where}: a batch must have up to {BATCH_SIZE} samples of the schema's columns in their "
        "order",
        "See recd_plugins.api.batch.Batch.",
    )


def _check_samples(
    subject: Subject, batch: Batch, table: Table, rows: Sequence[Mapping[str, Any]], where: str
) -> None:
    schema = table.schema
    dense, labels = batch.dense.tolist(), batch.labels.reshape(len(batch), -1).tolist()
    ids = {name: batch.features[name].to_dense() for name in schema.sparse_names}
    for place, weight in enumerate(batch.weights.tolist()):
        if not weight:
            continue
        (number,) = ids[ROW.name][place].tolist()
        row = rows[number]
        found = {name: of[place].tolist() for name, of in ids.items()}
        found |= zip(schema.label_names, ([one] for one in labels[place]), strict=True)
        wanted = {name: row[name] if name in ids else [row[name]] for name in found}
        numbers = [row[name] for name in schema.dense]
        flat = [one for some in numbers for one in (some if isinstance(some, list) else [some])]
        wrong = [name for name, one in found.items() if one != wanted[name]]
        wrong += [] if dense[place] == flat else ["dense"]
        subject.hold(
            not wrong,
            f"{where}: a sample must have what its row has, but {listed(wrong)} of row {number} "
            "are another's",
            "Take all columns of a batch from the same rows, in one order.",
        )


def _rows(batch: Batch) -> list[int]:
    """The numbers of a batch's rows, without padding."""
    rows: list[int] = batch.features[ROW.name].values()[batch.weights > 0].tolist()
    return rows

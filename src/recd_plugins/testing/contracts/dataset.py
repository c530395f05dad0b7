"""The `dataset` slot: rows under a schema, the same ones every time."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from recd_plugins.data.dataset import SPLITS, Dataset, Split
from recd_plugins.data.growing import GrowingDataset
from recd_plugins.data.schema import Schema
from recd_plugins.data.table import check_columns
from recd_plugins.errors import DataError, so_many
from recd_plugins.slots import DatasetRecord
from recd_plugins.testing.contracts.subject import Subject

__all__ = ["check_dataset"]

MOST = 20_000
"""The number of rows of a split that are checked."""


def check_dataset(subject: Subject) -> None:
    dataset, again = subject.build(), subject.build()
    subject.hold(
        isinstance(dataset, Dataset),
        f"build must return a recd_plugins.api.data.Dataset, but returned {dataset!r}",
        "Inherit from it, and fill `schema` and `chunks`.",
    )
    grows = isinstance(subject.record, DatasetRecord) and subject.record.grows
    subject.hold(
        grows == isinstance(dataset, GrowingDataset),
        f"its record says grows={grows}, but build returned {dataset!r}",
        "Write `grows=True` for a GrowingDataset, and for no other.",
    )
    schema = dataset.schema
    subject.hold(
        isinstance(schema, Schema) and schema == dataset.schema == again.schema,
        "its schema must be a Schema, the same whenever it is asked for",
        "Let nothing but the config and the source decide it.",
    )
    splits = {split: _rows(subject, dataset, schema, split) for split in SPLITS}
    for split, (rows, whole) in splits.items():
        subject.hold(rows.num_rows > 0, f"split {split!r} must have a row", "Hold some rows out.")
        _check_rows(subject, rows, schema, split)
        announced = dataset.num_rows(split)
        subject.hold(
            announced is None
            or (announced == rows.num_rows if whole else announced >= rows.num_rows),
            f"num_rows({split!r}) is {announced}, but {rows.num_rows} rows came",
            "Count what `chunks` yields, or return None.",
        )
        subject.hold(
            _rows(subject, again, schema, split)[0].equals(rows),
            f"two builds must yield the same rows in split {split!r}",
            "Draw from generators that are seeded by the config or context.seed alone.",
        )
    subject.hold(
        not splits["train"][0].equals(splits["test"][0]),
        "the splits must not hold the same rows",
        "Give the test split rows, or a seed, of its own.",
    )
    subject.hold(
        dataset.fingerprint() == again.fingerprint(),
        "its fingerprint must be the same for the same source",
        "Derive it from names, sizes or times of files.",
    )
    tables = dataset.prepare(subject.folder / "dataset")
    subject.hold(
        all(tables[split].schema == schema and tables[split].num_rows for split in SPLITS),
        "`prepare` must write both splits as tables of its schema",
        "Leave `prepare` as it is inherited.",
    )


def _rows(
    subject: Subject, dataset: Dataset, schema: Schema, split: Split
) -> tuple[pa.Table, bool]:
    """The first `MOST` rows of a split, rounded up to a whole chunk, and whether these are all of
    its rows."""
    chunks: list[pa.Table] = []
    whole = True
    for chunk in _checked(subject, dataset.chunks(split), schema, split):
        chunks.append(chunk)
        if sum(chunk.num_rows for chunk in chunks) >= MOST:
            whole = False
            break
    arrow = schema.arrow()
    return pa.concat_tables([arrow.empty_table(), *chunks]), whole


def _checked(
    subject: Subject, chunks: Iterator[pa.Table], schema: Schema, split: Split
) -> Iterator[pa.Table]:
    arrow = schema.arrow()
    for index, chunk in enumerate(chunks):
        where = f"chunk {index} of split {split!r}"
        try:
            check_columns(chunk.schema, schema, where)
        except DataError as error:
            subject.hold(False, str(error).rstrip("."), "Yield the schema's columns.")
        for name in schema.columns:
            column = chunk.column(name)
            nulls = column.null_count
            if name in schema.sparse_names:
                nulls += pc.list_flatten(column).null_count
            subject.hold(
                nulls == 0,
                f"{where} has {so_many(nulls, 'null')} in column {name!r}",
                "Write an empty list, or a number, where a value is missing.",
            )
        yield chunk.select(arrow.names).cast(arrow)


def _check_rows(subject: Subject, rows: pa.Table, schema: Schema, split: Split) -> None:
    for feature in schema.sparse:
        ids = pc.list_flatten(rows.column(feature.name))
        ends = pc.min_max(ids).as_py()
        subject.hold(
            len(ids) == 0 or (ends["min"] >= 0 and ends["max"] < feature.num_ids),
            f"split {split!r}: feature {feature.name!r} has ids from {ends['min']} to "
            f"{ends['max']}, outside [0, {feature.num_ids})",
            "Raise num_ids in its schema, or map the ids.",
        )
    for label in schema.targets:
        labels = pc.unique(rows.column(label.name)).to_pylist()
        subject.hold(
            label.kind != "click" or set(labels) <= {0.0, 1.0},
            f"split {split!r}: labels must be 0 or 1, but there is {labels[:5]}",
            "Threshold them where the rows are made, or say their kind in the schema.",
        )
    for name in schema.dense:
        column = rows.column(name)
        numbers = column if schema.width(name) is None else pc.list_flatten(column)
        subject.hold(
            bool(pc.all(pc.is_finite(numbers)).as_py()),
            f"split {split!r}: dense column {name!r} holds a NaN or an infinity",
            "Replace it where the rows are made.",
        )

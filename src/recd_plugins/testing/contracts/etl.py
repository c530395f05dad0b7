"""The `etl` slot: from table to table."""

from __future__ import annotations

import pyarrow.parquet as pq

from recd_plugins.data.progress import silent
from recd_plugins.data.table import Table
from recd_plugins.testing.batches import random_table
from recd_plugins.testing.contracts.subject import Subject

__all__ = ["check_etl"]

ROWS = 300


def check_etl(subject: Subject) -> None:
    source = random_table(subject.folder / "source", subject.context.require_schema(), ROWS)
    before = _bytes(source)
    results = []
    for name in ("first", "second"):
        folder = subject.folder / name
        table = subject.build().run(source, folder, silent)
        subject.hold(
            isinstance(table, Table) and table.path == folder and table.num_rows > 0,
            f"run must write a table into the folder that it is given and return it, not {table!r}",
            "return recd_plugins.api.data.write_table(folder, schema, chunks).",
        )
        subject.hold(
            Table.open(folder).schema == table.schema,
            "the table opened anew must have the same schema",
            "Write it with write_table, which keeps the schema in the footers.",
        )
        results.append(pq.read_table(list(table.files)))
    subject.hold(_bytes(source) == before, "it must leave its source as it is", "Write elsewhere.")
    subject.hold(
        results[0].equals(results[1]),
        "two runs on the same table must write the same rows",
        "Seed what it draws by its config or context.seed.",
    )


def _bytes(table: Table) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in table.files}

"""`recd data show`: what a table's footers say of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from recd_plugins.cli.loaded import opened_table
from recd_plugins.cli.options import REGISTRY, AsJson, Debug, RegistryFile, TableFolder
from recd_plugins.cli.reported import reported
from recd_plugins.errors import so_many

if TYPE_CHECKING:
    from recd_plugins.data.table import Table
    from recd_plugins.storage.uri import Location

__all__ = ["show"]


def show(
    table: TableFolder,
    registry: RegistryFile = REGISTRY,
    debug: Debug = False,
    as_json: AsJson = False,
) -> None:
    """Show a table's schema, rows, files and bytes, read only from its footers.

    For a table of another program, the schema is the registry's `dataset.schema`.
    """
    with reported(debug):
        opened = opened_table(table, registry)
        size = sum(facts.size or 0 for facts in opened.facts.values())
        if as_json:
            schema = json.loads(opened.schema.to_json())
            print(
                json.dumps(
                    {
                        "rows": opened.num_rows,
                        "files": len(opened.files),
                        "stripes": len(opened.stripes),
                        "bytes": size,
                        "schema": schema,
                    }
                )
            )
            return
        _draw(table, opened, size)


def _draw(table: Location, opened: Table, size: int) -> None:
    from rich.table import Table as Drawn

    from recd_plugins.cli.printed_tables import print_table

    drawn = Drawn(
        title=f"{table}: {so_many(opened.num_rows, 'row')}, "
        f"{so_many(len(opened.files), 'file')}, {so_many(len(opened.stripes), 'stripe')}, "
        f"{size / 2**20:,.1f} MiB",
        title_justify="left",
    )
    for column in ("column", "what", "ids", "table"):
        drawn.add_column(column)
    schema = opened.schema
    for name, what in (
        (schema.session_id, "session"),
        (schema.timestamp, "timestamp, ms"),
        *((label.name, f"label, {label.kind}") for label in schema.targets),
        (schema.sample_weight, "sample weight"),
    ):
        if name:
            drawn.add_row(name, what, "", "")
    for name in schema.dense:
        width = schema.width(name)
        drawn.add_row(name, "dense" if width is None else f"dense, {width} floats", "", "")
    for feature in schema.sparse:
        what = f"{feature.kind} {'sequence' if feature.sequence else 'ids'}"
        what += " with weights" if feature.scored else ""
        drawn.add_row(feature.name, what, f"[0, {feature.num_ids:,})", feature.table_name)
    print_table(drawn)

"""`recd data`: tables on disk."""

from __future__ import annotations

import json
from typing import Any

from recd_plugins.cli.commands import Commands
from recd_plugins.cli.data_check import check
from recd_plugins.cli.data_import import import_
from recd_plugins.cli.data_layout import layout, rewrite
from recd_plugins.cli.data_schema import schema
from recd_plugins.cli.data_vocabulary import vocabulary
from recd_plugins.cli.loaded import opened_table
from recd_plugins.cli.options import REGISTRY, AsJson, Debug, Overrides, RegistryFile, TableFolder
from recd_plugins.cli.profile import profile
from recd_plugins.cli.progress import progress
from recd_plugins.cli.reported import reported
from recd_plugins.cli.stats import stats
from recd_plugins.errors import so_many

__all__ = ["data"]

data = Commands(help="Prepare and look at tables.", no_args_is_help=True)
data.command()(schema)
data.command()(check)
data.command("import")(import_)
data.command()(vocabulary)
data.command()(layout)
data.command()(rewrite)
data.command()(stats)
data.command()(profile)


@data.command()
def prepare(
    overrides: Overrides = None,
    registry: RegistryFile = REGISTRY,
    debug: Debug = False,
    as_json: AsJson = False,
) -> None:
    """Write the registry's dataset as tables, through its etl steps; later calls reuse them."""
    with reported(debug):
        from recd_plugins.stack import load

        stack = load(registry, overrides or ())
        stack.check_options()
        with progress() as show:
            tables = stack.prepare(show)
        found: dict[str, dict[str, Any]] = {
            "train": {"path": str(tables.train.path), "rows": tables.train.num_rows},
            "test": {"path": str(tables.test.path), "rows": tables.test.num_rows},
        }
        if as_json:
            print(json.dumps(found))
            return
        for split, table in found.items():
            print(f"{split}: {so_many(table['rows'], 'row')} in {table['path']}")


@data.command()
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
        from rich.console import Console
        from rich.table import Table as Drawn

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
        Console().print(drawn)

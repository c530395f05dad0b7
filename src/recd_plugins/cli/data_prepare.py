"""`recd data prepare`: a registry's dataset as tables."""

from __future__ import annotations

import json
from typing import Any

from recd_plugins.cli.options import REGISTRY, AsJson, Debug, Overrides, RegistryFile
from recd_plugins.cli.progress import progress
from recd_plugins.cli.reported import reported
from recd_plugins.errors import so_many

__all__ = ["prepare"]


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

"""What commands work on: a table, a registry's stack, and the server that forks ranks."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

from recd_plugins.cli.few_addresses import warn_of_few_addresses
from recd_plugins.cli.progress import progress
from recd_plugins.storage.uri import Location

if TYPE_CHECKING:
    from recd_plugins.data.foreign import ForeignSchema
    from recd_plugins.data.table import Table  # pyarrow, which `recd --help` does without
    from recd_plugins.launch.rank_server import RankServer
    from recd_plugins.stack import Stack

__all__ = ["loaded", "opened_table", "ready", "registry_schema", "server_of_ranks"]


def opened_table(path: Location, registry: Path) -> Table:
    """The table; if it does not say what its columns mean, with the schema of
    `dataset.schema`."""
    from recd_plugins.data.table import Table, carries_schema

    return Table.open(path, None if carries_schema(path) else registry_schema(registry))


def registry_schema(registry: Path) -> ForeignSchema | None:
    """`dataset.schema` of the registry, if there is one that has it."""
    if not registry.exists():
        return None
    from recd_plugins.data.foreign import ForeignSchema
    from recd_plugins.stack import load

    chosen = load(registry).registry.chosen("dataset")
    given = getattr(chosen[0].config, "schema", None) if chosen else None
    return given if isinstance(given, ForeignSchema) else None


def loaded(registry: Path, overrides: Sequence[str]) -> Stack:
    """The stack of a registry with a dataset and a model; an error says that one is missing
    before any work is done."""
    _check_readable(registry, overrides)
    from recd_plugins.stack import load

    stack = load(registry, overrides)
    for slot in ("dataset", "model"):
        stack.registry.one(slot)
    return stack


def ready(registry: Path, overrides: Sequence[str]) -> Stack:
    """The same, checked, with its tables made. What plugins print meanwhile does not go into the
    command's output."""
    stack = loaded(registry, overrides)
    with redirect_stdout(sys.stderr):
        with progress() as show:
            stack.prepare(show)
        stack.check()
    return stack


@contextmanager
def server_of_ranks(
    registry: Path | None = None, overrides: Sequence[str] | None = None
) -> Iterator[RankServer | None]:
    """Import what ranks need and, if possible, fork the server from which `launch` forks them:
    before anything is loaded or computed, since the server is a copy of this process. A registry
    that cannot be read is reported first."""
    from recd_plugins.compat.versions import check_versions, installed_versions
    from recd_plugins.launch.rank_server import rank_server

    def check() -> None:
        if registry is not None:
            _check_readable(registry, overrides or ())

    check_versions(installed_versions())
    warn_of_few_addresses()
    with rank_server(["recd_plugins.trainer.run"], check) as server:
        yield server


def _check_readable(registry: Path, overrides: Sequence[str]) -> None:
    """`RegistryError` for what can be seen before torch is imported, which takes seconds."""
    from recd_plugins.registry.source import Source

    Source.read(registry, overrides)

"""The dataset of a registry as tables on disk, and as periods where it grows."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from recd_plugins.data.dataset import SPLITS, Split, Tables
from recd_plugins.data.progress import Progress, silent
from recd_plugins.registry.contexts import Contexts
from recd_plugins.registry.periods import Periods
from recd_plugins.registry.prepare import absolute, prepared, prepared_at
from recd_plugins.registry.registry import Registry
from recd_plugins.stack.usage import Usage

if TYPE_CHECKING:
    from recd_plugins.data.growing import Waiting
    from recd_plugins.storage.uri import Location

__all__ = ["RegistryTables"]


class RegistryTables:
    """The tables of a registry's dataset, with all columns, through every `etl` step; made once."""

    def __init__(
        self, registry: Registry, contexts: Contexts, usage: Usage, waiting: Waiting
    ) -> None:
        """`waiting` is called several times a second with what is waited for, of a dataset that
        grows."""
        self._registry, self._contexts, self._usage = registry, contexts, usage
        self._waiting = waiting
        self._tables: Tables | None = None

    @cached_property
    def periods(self) -> Periods | None:
        """The periods of a dataset that grows; None for any other."""
        return Periods.of(self._registry, self._contexts.of, self._waiting, self._usage.found)

    def prepare(self, progress: Progress = silent) -> Tables:
        """The tables of the dataset; where it grows, those of the first period that has rows."""
        self._usage.asked("dataset", "etl", "log")
        if self._tables is None:
            if self.periods is not None:
                self._tables = self.periods.first(progress)[1]
            else:
                found = self._usage.found
                self._tables = prepared(self._registry, self._contexts.of, progress, found)
        return self._tables

    @property
    def made(self) -> Tables | None:
        """The tables that are made by now, which every rank makes alike; None where the dataset
        grows."""
        return None if self._tables is None or self.periods is not None else self._tables

    def split_at(self, path: Location) -> Split | None:
        """The split whose table lies there; None where that is another table, or where tables have
        to be written first."""
        path = absolute(path)
        tables = prepared_at(self._registry, self._contexts.of, path)
        if tables is None:
            return None
        for split in SPLITS:
            if absolute(tables[split].path) == path:
                self._tables = tables
                return split
        return None

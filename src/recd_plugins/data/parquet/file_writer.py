"""The writer of a Parquet file, on disk or on a store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import LocalFileSystem

from recd_plugins.storage.uri import Location
from recd_plugins.storage.whole_file import of_path

__all__ = ["FileWriter"]


class FileWriter(pq.ParquetWriter):
    """Writes a Parquet file; on a store it appears, whole, once it is closed."""

    def __init__(self, location: Location, schema: pa.Schema, **options: Any) -> None:
        self._location = location
        self._sink = None if isinstance(location, Path) else location.created()
        if self._sink is None:  # a name with a colon is a path here, not a URI
            options["filesystem"] = LocalFileSystem()
        place = location.absolute() if isinstance(location, Path) else self._sink
        with self._explained():
            super().__init__(place, schema, **options)

    def write_table(self, table: pa.Table, *args: Any, **options: Any) -> None:
        with self._explained():
            super().write_table(table, *args, **options)

    def close(self) -> None:
        with self._explained():
            super().close()
            if self._sink is not None:
                self._sink.close()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        if isinstance(self._location, Path):
            with of_path(self._location):
                yield
            return
        try:
            yield
        except OSError as error:
            raise self._location.explained(error) from None

"""The schema that a table carries in the footers of its files."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from recd_plugins.data.schema import METADATA_KEY, Schema
from recd_plugins.storage.uri import Location, input_file

__all__ = ["schema_in_footer"]


def schema_in_footer(path: Location) -> Schema | None:
    """The schema that a table carries; None if another program wrote it."""
    files: list[Location] = [*path.glob("*.parquet")] if path.is_dir() else [path]
    for file in sorted(files, key=str)[:1]:
        try:
            with input_file(file) as opened:
                text = (pq.read_metadata(opened).metadata or {}).get(METADATA_KEY)
        except (pa.ArrowException, OSError):
            return None
        return None if text is None else Schema.from_json(text, str(file))
    return None

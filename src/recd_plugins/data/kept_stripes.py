"""Stripes as they lie in their files, decoded once and kept for a while: comparing registries reads
the same stripes for each.

The stripes are kept as Arrow tables. Nobody writes to these: batches are copied from them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeAlias

import pyarrow as pa

from recd_plugins.data.parquet.opened_file import OpenedFile
from recd_plugins.data.stripes import Stripe, read_stripe
from recd_plugins.storage.uri import Location

__all__ = ["KeptStripes", "keeping_stripes", "kept_stripes"]

MOST = 1 << 29
"""Bytes that are kept; stripes beyond them are decoded each time."""

Key: TypeAlias = tuple[Location, str, int, bool]
"""A file, its footer's digest, a row group, and whether its lists are expanded."""


class KeptStripes:
    """The columns of stripes that have been read; any thread may read."""

    def __init__(self, most: int = MOST) -> None:
        self._left = most
        self._tables: dict[Key, pa.Table] = {}
        self._lock = threading.Lock()

    def read(
        self,
        file: OpenedFile,
        stripe: Stripe,
        columns: Sequence[str],
        *,
        threads: bool = True,
        expand: bool = True,
    ) -> pa.Table:
        """`read_stripe`, but only the columns that were not read before are decoded."""
        key = stripe.file, file.digest, stripe.group, expand
        with self._lock:
            found = self._tables.get(key)
        there = set() if found is None else {*found.column_names}
        missing = [name for name in columns if name not in there]
        if found is not None and not missing:
            return found.select(list(columns))
        rows = read_stripe(file, stripe, missing, threads=threads, expand=expand)
        if {*rows.column_names} != {*missing}:  # a field of a struct has another name
            if found is None:
                return rows
            return read_stripe(file, stripe, columns, threads=threads, expand=expand)
        whole = rows if found is None else _side_by_side(found, rows)
        with self._lock:
            if rows.nbytes <= self._left and self._tables.get(key) is found:
                self._left -= rows.nbytes
                self._tables[key] = whole
        return whole.select(list(columns))


def _side_by_side(left: pa.Table, right: pa.Table) -> pa.Table:
    for field, column in zip(right.schema, right.columns, strict=True):
        left = left.append_column(field, column)
    return left


_kept: ContextVar[KeptStripes | None] = ContextVar("the stripes that are kept", default=None)


@contextmanager
def keeping_stripes(most: int = MOST) -> Iterator[None]:
    """Readers that are made inside it decode a stripe once, as long as `most` bytes can hold it."""
    token = _kept.set(KeptStripes(most))
    try:
        yield
    finally:
        _kept.reset(token)


def kept_stripes() -> KeptStripes | None:
    """The stripes that are kept at present; None outside `keeping_stripes`."""
    return _kept.get()

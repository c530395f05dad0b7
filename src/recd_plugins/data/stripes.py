"""A stripe: a Parquet row group, the unit of reading."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa

from recd_plugins.data.parquet.opened_file import OpenedFile
from recd_plugins.errors import DataError, cure_of, so_many
from recd_plugins.storage.uri import Location

__all__ = ["DamagedStripe", "Stripe", "read_stripe"]


class Stripe(NamedTuple):
    """One row group of one file."""

    file: Location
    group: int
    num_rows: int
    """The number of its rows that the table has."""
    stored: int | None = None
    """The number of its rows in the file, if the table does not have all of them."""

    def __str__(self) -> str:
        return f"{self.file}, row group {self.group}"


class DamagedStripe(DataError):
    """A stripe that cannot be read, or whose rows break the schema."""

    def __init__(self, message: str, stripe: int = -1) -> None:
        super().__init__(message)
        self.stripe = stripe
        """The stripe's number in the table."""


def read_stripe(
    file: OpenedFile,
    stripe: Stripe,
    columns: Sequence[str],
    *,
    threads: bool = True,
    expand: bool = True,
) -> pa.Table:
    """Some columns of a stripe as they lie in its file; raises `DataError` if they do not
    decode."""
    try:
        rows = file.read_row_group(
            stripe.group, columns=list(columns), use_threads=threads, expand=expand
        )
    except (pa.ArrowException, OSError) as error:
        cure = cure_of(error) or (
            "The file was damaged or cut short: write it again, or take it out of the table."
        )
        raise DataError(f"{stripe}: cannot be read ({error}). {cure}") from error
    stored = stripe.num_rows if stripe.stored is None else stripe.stored
    if rows.num_rows != stored:
        raise DataError(
            f"{stripe}: has {so_many(rows.num_rows, 'row')}, but had {stored} when the table "
            "was opened. Do not write to a table while it is read."
        )
    return rows

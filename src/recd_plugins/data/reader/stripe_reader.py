"""Decodes stripes, each in up to a few tries."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence

from recd_plugins.data.conform.ids import id_error
from recd_plugins.data.decoded import DecodedRows, absent_rows, decode_rows
from recd_plugins.data.kept_stripes import kept_stripes
from recd_plugins.data.parquet.opened_file import OpenedFile
from recd_plugins.data.reader.order import Piece
from recd_plugins.data.stripes import DamagedStripe, Stripe
from recd_plugins.data.table import Table, id_ranges
from recd_plugins.errors import DataError
from recd_plugins.storage.uri import Location

__all__ = ["StripeReader"]

PAUSE = 0.1
"""Seconds before a stripe is tried a second time; each later pause is twice as long."""
OPEN_FILES = 16
"""How many files, the last used ones, stay open: an epoch reads a file's stripes in any order."""


class StripeReader:
    """Decodes pieces of stripes, and checks what the footers do not show.

    Only the columns that a batch holds are read. A page that does not decode or whose
    checksum differs (tables of ours have checksums), nulls, and ids out of range (where
    there are no statistics) raise `DamagedStripe`, naming file and row group.
    """

    def __init__(
        self,
        table: Table,
        *,
        threads: bool = True,
        keys: Sequence[str] = (),
        left_out: Collection[int] = (),
        tries: int = 1,
    ) -> None:
        self._table = table
        self._left_out, self._tries = frozenset(left_out), tries
        self._threads = threads
        self._keys = keys
        schema = table.schema
        self._columns = [
            *schema.float_columns,
            *schema.sparse_names,
            *schema.weights_names,
            *keys,
        ]
        self._file_columns = table.file_columns(self._columns)
        self._files: dict[Location, OpenedFile] = {}
        self._kept = kept_stripes()  # belongs to the thread that made it: other threads may decode
        self._io = 0.0

    def decode(self, piece: Piece) -> DecodedRows:
        """The rows; `DamagedStripe` if no try succeeds."""
        if piece.stripe in self._left_out:
            return absent_rows(self._table.schema, piece.num_rows, self._keys)
        for tried in range(1, self._tries + 1):
            try:
                return self._decode(piece)
            except DataError as error:
                self._forget(self._table.stripes[piece.stripe].file)
                if tried == self._tries:
                    raise DamagedStripe(str(error), piece.stripe) from error
                time.sleep(PAUSE * 2 ** (tried - 1))
        raise AssertionError("a stripe is tried at least once")

    def _decode(self, piece: Piece) -> DecodedRows:
        stripe = self._table.stripes[piece.stripe]
        file = self._open(stripe.file)
        rows = self._table.stored(
            file,
            stripe,
            self._file_columns,
            threads=self._threads,
            kept=self._kept,
            expand=self._table.source is not None,
        )
        self._io += file.io_seconds()
        rows = rows.slice(piece.start, piece.num_rows)
        known = id_ranges(file.metadata, stripe.group).keys()
        rows = self._table.conform(
            rows, str(stripe), self._columns, first_row=piece.start, in_range=known
        )
        decoded = decode_rows(rows, self._table.schema, str(stripe), self._keys, piece.start)
        if self._table.source is None:
            self._check_ids(stripe, decoded, known)
        return decoded

    def io_seconds(self) -> float:
        """The seconds spent reading bytes since the last call."""
        found, self._io = self._io, 0.0
        return found

    def _open(self, path: Location) -> OpenedFile:
        file = self._files.pop(path, None)
        if file is None:
            if len(self._files) == OPEN_FILES:
                self._files.pop(next(iter(self._files))).close()
            file = self._table.opened(path)
        self._files[path] = file
        return file

    def _forget(self, path: Location) -> None:
        """Close the file, so that the next try opens it again."""
        file = self._files.pop(path, None)
        if file is not None:
            file.close()

    def _check_ids(self, stripe: Stripe, decoded: DecodedRows, known: Collection[str]) -> None:
        """Check the ids of columns without statistics; `Table.open` has checked the others."""
        for feature in self._table.schema.sparse:
            for part in () if feature.name in known else decoded.features[feature.name]:
                low, high = part.values.aminmax() if len(part.values) else (0, 0)
                worst = int(low if low < 0 else high)
                if not 0 <= worst < feature.num_ids:
                    raise id_error(stripe, feature.name, worst, feature.num_ids)

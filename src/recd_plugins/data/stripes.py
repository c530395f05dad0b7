"""Stripes of a table → tensors: read, decode, check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from recd_plugins.data.order import Piece
from recd_plugins.data.table import Stripe, Table, id_error, id_ranges
from recd_plugins.errors import DataError
from recd_plugins.sparse.arrow import floats_from_arrow, jagged_chunks
from recd_plugins.sparse.jagged import Jagged

__all__ = ["Decoded", "StripeReader"]

OPEN_FILES = 16
"""Files that stay open, the last used: an epoch meets the stripes of a file in any order."""


@dataclass(frozen=True)
class Decoded:
    """N rows of a stripe as tensors."""

    dense: Tensor
    """[N, n_dense] float32."""
    labels: Tensor
    """[N] float32."""
    features: Mapping[str, Sequence[Jagged]]
    """Per sparse feature its rows, in parts."""
    sessions: pa.ChunkedArray | None = None
    """[N] the session of each, where it is asked for."""


class StripeReader:
    """Decodes pieces of stripes, and checks what the footers could not tell.

    Only the columns that a batch holds are read. A page that does not decode or whose
    checksum differs (tables of ours have checksums), nulls, and ids out of range (where
    there are no statistics) raise `DataError`, naming file and row group.
    """

    def __init__(self, table: Table, *, threads: bool = True, sessions: bool = False) -> None:
        self._table = table
        self._threads = threads
        self._session_id = table.schema.session_id if sessions else None
        self._files: dict[Path, pq.ParquetFile] = {}

    def decode(self, piece: Piece) -> Decoded:
        stripe, schema = self._table.stripes[piece.stripe], self._table.schema
        rows = self._read(stripe).slice(piece.start, piece.num_rows)
        dense = [floats_from_arrow(rows[name], f"{stripe}: {name!r}") for name in schema.dense]
        decoded = Decoded(
            dense=_columns(dense, piece.num_rows),
            labels=floats_from_arrow(rows[schema.label], f"{stripe}: {schema.label!r}"),
            features={
                name: jagged_chunks(rows[name], f"{stripe}: {name!r}")
                for name in schema.sparse_names
            },
            sessions=None if self._session_id is None else rows[self._session_id],
        )
        self._check_ids(stripe, decoded)
        return decoded

    def _read(self, stripe: Stripe) -> pa.Table:
        schema = self._table.schema
        columns = [schema.label, *schema.dense, *schema.sparse_names]
        if self._session_id is not None:
            columns.append(self._session_id)
        try:
            rows = self._open(stripe.file).read_row_group(
                stripe.group, columns=columns, use_threads=self._threads
            )
        except (pa.ArrowException, OSError) as error:
            raise DataError(
                f"{stripe}: cannot be read ({error}). The file was damaged or cut short: write "
                "it again, or take it out of the table."
            ) from error
        if rows.num_rows != stripe.num_rows:
            raise DataError(
                f"{stripe}: has {rows.num_rows} rows, but had {stripe.num_rows} when the table "
                "was opened. Do not write to a table while it is read."
            )
        return rows

    def _open(self, path: Path) -> pq.ParquetFile:
        file = self._files.pop(path, None)
        if file is None:
            if len(self._files) == OPEN_FILES:
                self._files.pop(next(iter(self._files))).close()
            file = pq.ParquetFile(path, page_checksum_verification=True)
        self._files[path] = file
        return file

    def _check_ids(self, stripe: Stripe, decoded: Decoded) -> None:
        """What `Table.open` has done for the columns that have statistics."""
        told = id_ranges(self._files[stripe.file].metadata, stripe.group)
        for feature in self._table.schema.sparse:
            for values, _ in () if feature.name in told else decoded.features[feature.name]:
                low, high = values.aminmax() if len(values) else (0, 0)
                worst = int(low if low < 0 else high)
                if not 0 <= worst < feature.num_ids:
                    raise id_error(stripe, feature.name, worst, feature.num_ids)


# torch's own stack would wake its threads. Those belong to the model, and to wait for them
# costs more than they save: numpy copies on the thread that calls it.


def _columns(columns: Sequence[Tensor], num_rows: int) -> Tensor:
    """[num_rows] each, as [num_rows, n]."""
    if not columns:
        return torch.empty(num_rows, 0)
    return torch.from_numpy(np.stack([column.numpy() for column in columns], axis=1))

"""A batch as a file to look at, or to train on again: an Arrow file with a row per sample.

    dense         fixed_size_list<float>
    labels        float, or a fixed_size_list of them
    weights       float
    id/NAME       list<integer>
    weight/NAME   list<float>, where the ids of a feature have weights

Deduplicated features are expanded: a model computes the same from them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.data.batch import Batch
from recd_plugins.errors import DataError
from recd_plugins.sparse.arrow import jagged_chunks, jagged_to_arrow
from recd_plugins.sparse.features import SparseFeatures
from recd_plugins.sparse.jagged import Jagged, WeightedJagged
from recd_plugins.storage.whole_file import whole_file

__all__ = ["read_batch", "write_batch"]

KEY = b"recd_plugins.batch"
MEANT = "A batch that a run kept is meant: such files are in the folder `diverged` of the run."


def write_batch(path: Path, batch: Batch) -> None:
    """Write a batch, replacing the file if it exists."""
    here = batch.to(torch.device("cpu"))
    columns = {
        name: _numbers(getattr(here, name).detach()) for name in ("dense", "labels", "weights")
    }
    features = SparseFeatures.of(here.features, here.dedup).to_kjt()
    for name, rows in WeightedJagged.by_key(features).items():
        columns[f"id/{name}"] = jagged_to_arrow(Jagged(rows.values, rows.lengths))
        if rows.weights is not None:
            columns[f"weight/{name}"] = jagged_to_arrow(Jagged(rows.weights, rows.lengths))
    table = pa.table(columns).replace_schema_metadata({KEY: b"1"})
    with (
        whole_file(path) as part,
        pa.OSFile(str(part), "wb") as file,
        pa.ipc.new_file(file, table.schema) as writer,
    ):
        writer.write_table(table)


def read_batch(path: Path) -> Batch:
    """The batch that a run kept in a file, its features in one KeyedJaggedTensor."""
    try:
        with pa.OSFile(str(path), "rb") as file:
            table = pa.ipc.open_file(file).read_all().combine_chunks()
        table.validate(full=True)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: is no Arrow file, or damaged ({error}). {MEANT}") from error
    if KEY not in (table.schema.metadata or {}):
        raise DataError(f"{path}: is an Arrow file, but not of a batch. {MEANT}")
    names = [name.removeprefix("id/") for name in table.column_names if name.startswith("id/")]
    parts = []
    for name in names:
        (ids,) = jagged_chunks(table[f"id/{name}"], name)
        weights = None
        if f"weight/{name}" in table.column_names:
            (numbers,) = jagged_chunks(table[f"weight/{name}"], name, weights=True)
            weights = numbers.values
        parts.append(WeightedJagged(ids.values, ids.lengths, weights))
    rows = WeightedJagged.joined(parts)
    features = KeyedJaggedTensor(
        keys=names,
        values=rows.values,
        lengths=rows.lengths,
        weights=rows.weights,
        stride=table.num_rows,
    )
    dense, labels, weights = (_tensor(table[name]) for name in ("dense", "labels", "weights"))
    return Batch(dense=dense, features=features, labels=labels, weights=weights)


def _numbers(values: Tensor) -> pa.Array:
    """[B] as a column of numbers, [B, n] as one of lists."""
    flat = pa.array(values.reshape(-1).numpy())
    if values.dim() == 1:
        return flat
    width = values.shape[1]
    if not width:
        return pa.array([[]] * len(values), pa.list_(flat.type, 0))
    return pa.FixedSizeListArray.from_arrays(flat, width)


def _tensor(column: pa.ChunkedArray) -> Tensor:
    kind = column.type
    chunk = column.combine_chunks()
    if pa.types.is_fixed_size_list(kind):
        flat = np.array(chunk.flatten().to_numpy(zero_copy_only=False))
        return torch.from_numpy(flat).view(len(column), kind.list_size)
    return torch.from_numpy(np.array(chunk.to_numpy(zero_copy_only=False)))

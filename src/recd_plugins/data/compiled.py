"""Compiles the kernels that read and deduplicate before anyone waits for them.

    python -m recd_plugins.data.compiled

A kernel is compiled when it is first called, and kept on disk: these take 20 s together. `make`
compiles them after it has installed; elsewhere the first program that needs them does.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.data.parquet.opened_file import opened
from recd_plugins.notices import hide_logs
from recd_plugins.sparse.id_bounds import IdBounds
from recd_plugins.sparse.ikjt import InverseKeyedJaggedTensor
from recd_plugins.sparse.jagged import Jagged
from recd_plugins.sparse.rows.blocks import gather_blocks
from recd_plugins.sparse.rows.pool import Picked, join_picked
from recd_plugins.sparse.rows.take import take_blocks
from recd_plugins.sparse.rows.unique_samples import unique_samples
from recd_plugins.storage.temporary_folder import temporary_folder

__all__ = ["compile_kernels"]

ROWS = 16_384
"""Enough that lists are not left to Arrow."""


def compile_kernels() -> None:
    """Call the kernels on a few samples, with the types that tables and KJTs have."""
    lengths = torch.ones(4, dtype=torch.int32, device="cpu")
    take_blocks([torch.ones(4, device="cpu")], np.arange(4), [2, 2])
    for ids in (torch.arange(4, dtype=torch.int32, device="cpu"), torch.arange(4, device="cpu")):
        columns = [[Jagged(ids, lengths)], [Jagged(ids, lengths)]]
        gather_blocks(columns, np.arange(4), [2, 2])
        picked = Picked.of(columns, np.arange(4))
        first, second = picked.cut([2, 2])
        for some in ([picked], [first], [first, second]):
            unique_samples(some[0].rows, [[0, 1]])
            join_picked(some)
        features = KeyedJaggedTensor(
            keys=["a", "b"], values=torch.cat([ids, ids]), lengths=torch.cat([lengths, lengths])
        )
        InverseKeyedJaggedTensor.from_kjt(features, [["a", "b"]])
        IdBounds({"a": 4, "b": 4}).check(features, "")
        _decode(ids)


def _decode(ids: Tensor) -> None:
    """Decode lists of ids, as our files and others have them."""
    rows = pa.table({"ids": pa.array([ids.numpy()] * ROWS)})
    with temporary_folder("recd-compiled-") as folder:
        for compression in ("zstd", "none"):
            file = folder / compression
            pq.write_table(rows, file, compression=compression, use_dictionary=False)
            opened(file).read_row_group(0, columns=["ids"], use_threads=False)


if __name__ == "__main__":
    hide_logs()
    compile_kernels()

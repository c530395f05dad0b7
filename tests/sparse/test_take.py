"""Rung 1 (values): rows of one width, taken into blocks."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from recd_plugins.sparse.rows.take import take_blocks


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 2), (0,)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_blocks_have_the_rows_and_memory_of_their_own(shape, dtype):
    parts = [torch.arange(n * 12, dtype=dtype)[: n * 12].view(n, 12)[:, :1] for n in (4, 0, 3)]
    wide = [(part.view(-1, *[1] * len(shape)) + torch.zeros(shape, dtype=dtype)) for part in parts]
    rows, sizes = np.array([6, 0, 0, 5, 2, 3]), [2, 0, 3, 1]
    blocks = take_blocks(wide, rows, sizes)
    expected = torch.cat(wide)[torch.from_numpy(rows)].split(sizes)
    assert all(map(torch.equal, blocks, expected))
    assert [block.dtype for block in blocks] == [dtype] * 4
    assert all(block.untyped_storage().nbytes() == block.nbytes for block in blocks)


def test_no_rows_are_no_blocks_rows():
    (block,) = take_blocks([torch.empty(0, 5)], np.array([], np.int64), [0])
    assert block.shape == (0, 5)

"""Rung 1 (values): rows of one width, taken into blocks."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from recd_plugins.sparse.rows.take import take_blocks


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 2), (0,)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_blocks_have_the_rows_and_memory_of_their_own(shape, dtype):
    whole = torch.arange(7 * math.prod(shape), dtype=dtype).view(7, *shape)
    rows, sizes = np.array([6, 0, 0, 5, 2, 3]), [2, 0, 3, 1]
    blocks = take_blocks(whole.split([4, 0, 3]), rows, sizes)
    expected = whole[torch.from_numpy(rows)].split(sizes)
    assert all(map(torch.equal, blocks, expected))
    assert [block.dtype for block in blocks] == [dtype] * 4
    assert all(block.untyped_storage().nbytes() == block.nbytes for block in blocks)


def test_of_no_rows_there_is_a_block_without_any():
    (block,) = take_blocks([torch.empty(0, 5)], np.array([], np.int64), [0])
    assert block.shape == (0, 5)

"""Property tests: ids of no row, against what fbgemm's own operators make of them."""

from __future__ import annotations

import fbgemm_gpu  # noqa: F401  # registers torch.ops.fbgemm
import torch
from fbgemm_gpu.split_table_batched_embeddings_ops_common import BoundsCheckMode
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from recd_plugins.tiers.home_tables import rows_looked_up


def looked_up(ids: Tensor, num_rows: int, world_size: int) -> list[int]:
    """The row of each id by fbgemm: dealt out to ranks, then checked on its rank."""
    block = -(-num_rows // world_size)
    found = []
    for each in ids.split(1):
        lengths, local, *_ = torch.ops.fbgemm.block_bucketize_sparse_features(
            torch.ones(1, dtype=ids.dtype),
            each.clone(),
            bucketize_pos=False,
            sequence=False,
            block_sizes=torch.tensor([block], dtype=ids.dtype),
            my_size=world_size,
        )
        rank = int(lengths.argmax())
        has = min(max(num_rows - rank * block, 0), block)
        torch.ops.fbgemm.bounds_check_indices(
            torch.tensor([has]),
            local,
            torch.tensor([0, 1], dtype=ids.dtype),
            BoundsCheckMode.IGNORE.value,
            torch.zeros(1, dtype=torch.int64),
        )
        stays = has == 0 or int(local) == -1
        found.append(int(each) if stays else rank * block + int(local))
    return found


@st.composite
def drawn(draw: st.DrawFn) -> tuple[Tensor, int, int]:
    """Ids in and out of range, rows of the table, ranks."""
    bits = draw(st.sampled_from([32, 64]))
    num_rows, world_size = draw(st.integers(1, 60)), draw(st.integers(1, 9))
    near = st.integers(-3, 2 * num_rows + world_size)
    far = st.integers(-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
    ids = draw(st.lists(near | far, min_size=1, max_size=20))
    return torch.tensor(ids, dtype={32: torch.int32, 64: torch.int64}[bits]), num_rows, world_size


@given(drawn())
def test_the_rows_are_those_of_fbgemm(drawn: tuple[Tensor, int, int]) -> None:
    ids, num_rows, world_size = drawn
    bits = 8 * ids.element_size()
    found = rows_looked_up(ids.to(torch.int64), num_rows, world_size, bits=bits)
    assert found.tolist() == looked_up(ids, num_rows, world_size)

"""Value and property tests of jagged rows as chunks of blocks, and of self-attention in them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from drawn import at_most
from hypothesis import given, settings
from hypothesis import strategies as st

from recd_dlrm.poolings.jagged_attention import (
    PADDING_BUDGET,
    SPARE_CELLS,
    Buckets,
    Shape,
    chunk_values,
    cut,
    self_attention,
)


@settings(max_examples=at_most(200), deadline=None)
@given(
    lengths=st.lists(st.integers(0, 2000), max_size=60),
    budget=st.floats(1.0, 3.0),
    max_values=st.none() | st.integers(1, 20_000),
)
def test_chunks_and_blocks_are_as_large_as_they_may_be(
    lengths: list[int], budget: float, max_values: int | None
) -> None:
    falling = np.sort(np.array(lengths, dtype=np.int64))[::-1]
    chunks = cut(falling, budget, max_values)

    def fits(shape: Shape, start: int) -> bool:
        values = falling[start : start + shape.rows].sum()
        return bool(shape.rows * shape.length <= budget * values + SPARE_CELLS)

    start = 0
    for shapes in chunks:
        begin = start
        for index, shape in enumerate(shapes):
            assert shape.length == falling[start]
            assert fits(shape, start)
            if index + 1 < len(shapes):
                assert not fits(shape._replace(rows=shape.rows + 1), start)
            start += shape.rows
        if max_values is not None:
            assert start == begin + 1 or falling[begin:start].sum() <= max_values
            if (falling[start : start + 1] > 0).any():
                assert falling[begin : start + 1].sum() > max_values
    assert start == np.count_nonzero(falling)
    assert max_values is not None or len(chunks) <= 1


@settings(deadline=None)
@given(
    lengths=st.lists(st.integers(0, 30), max_size=20),
    max_values=st.none() | st.integers(1, 100),
)
def test_rows_end_where_their_block_ends(lengths: list[int], max_values: int | None) -> None:
    values = torch.arange(1.0, sum(lengths) + 1).unsqueeze(1).requires_grad_()
    buckets = Buckets.of(torch.tensor(lengths).int(), 1.0, max_values)
    rows = [row for row in values.split(lengths) if len(row)] if lengths else []
    rows.sort(key=len, reverse=True)  # stable, as the buckets are
    sums, begin = [values.new_zeros(0, 1)], 0
    for chunk, of_chunk in zip(buckets.chunks, buckets.values(values), strict=True):
        ours = rows[begin : begin + len(chunk.lengths)]
        assert torch.equal(of_chunk, torch.cat(ours))
        assert chunk.lengths.tolist() == [len(row) for row in ours]
        assert chunk.rows.tolist() == [i for i, row in enumerate(ours) for _ in row]
        assert chunk.ages.tolist() == [age for row in ours for age in range(len(row))[::-1]]
        padded, at = of_chunk[chunk.cells], 0
        assert torch.equal(padded[chunk.places], of_chunk)
        assert chunk.mask.nonzero().view(-1).tolist() == chunk.places.tolist()
        for shape in chunk.shapes:
            for _ in range(shape.rows):
                row = ours.pop(0)
                cells = padded[at : at + shape.length]
                assert torch.equal(cells[-len(row) :], row)
                assert (cells[: -len(row)] == row[0]).all()
                at += shape.length
        assert at == len(padded)
        begin += len(chunk.lengths)
        sums.append(of_chunk.new_zeros(len(chunk.lengths), 1).index_add(0, chunk.rows, of_chunk))
    assert begin == len(rows)
    pooled = buckets.rows(sums)
    assert pooled.squeeze(1).tolist() == [row.sum().item() for row in values.split(lengths)]
    if rows:
        pooled.sum().backward()
        assert values.grad is not None
        assert (values.grad == 1).all()


@pytest.mark.parametrize("only_last", [False, True])
@settings(deadline=None, max_examples=at_most(15), derandomize=True)
@given(lengths=st.lists(st.integers(1, 40), min_size=1, max_size=8))
def test_self_attention_equals_a_loop(only_last: bool, lengths: list[int]) -> None:
    """Gradients too, to double's rounding; without a gradient it is the same."""
    torch.manual_seed(0)
    packed = torch.randn(sum(lengths), 3 * 8, dtype=torch.double, requires_grad=True)
    lengths.sort(reverse=True)
    (chunk,) = Buckets.of(torch.tensor(lengths)).chunks
    seen = self_attention(packed, 2, chunk, only_last)
    wanted = []
    for row in packed.split(lengths):
        q, k, v = row.view(len(row), 3, 2, 4).permute(1, 2, 0, 3)
        q = q[:, -1:] if only_last else q
        weights = F.softmax(q @ k.transpose(1, 2) / 2.0, dim=2)
        wanted.append((weights @ v).transpose(0, 1).flatten(1))
    torch.testing.assert_close(seen, torch.cat(wanted), rtol=1e-9, atol=1e-9)
    ours, theirs = (
        torch.autograd.grad(one.square().sum(), packed) for one in (seen, torch.cat(wanted))
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
    with torch.no_grad():
        assert torch.equal(self_attention(packed, 2, chunk, only_last), seen)


def test_heavy_tails_need_few_blocks() -> None:
    """One padded block would be 33 times the values, a loop 4,096 calls."""
    generator = np.random.default_rng(0)
    lengths = np.minimum(generator.pareto(1.5, 4096) * 5, 1000).astype(np.int64)
    (chunk,) = Buckets.of(torch.from_numpy(lengths)).chunks
    assert lengths.max() * 4096 > 30 * lengths.sum()
    assert len(chunk.shapes) < 40
    assert len(chunk.cells) <= PADDING_BUDGET * lengths.sum() + SPARE_CELLS * len(chunk.shapes)


def test_chunks_fit_the_cache_of_each_thread() -> None:
    values = torch.empty(1, 64)
    alone = 1 << 19  # bytes
    assert chunk_values(values) == torch.get_num_threads() * alone // (64 * 4)
    assert chunk_values(values.double()) == torch.get_num_threads() * alone // (64 * 8)
    assert chunk_values(values.to("meta")) is None

"""Value and property tests of jagged rows as padded blocks."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recd_plugins.embedding.buckets import PADDING_BUDGET, Buckets, block_cells, cut


@settings(max_examples=200)
@given(
    lengths=st.lists(st.integers(0, 2000), max_size=60),
    budget=st.floats(1.0, 3.0),
    max_cells=st.none() | st.integers(1, 20_000),
)
def test_blocks_are_as_large_as_they_may_be(
    lengths: list[int], budget: float, max_cells: int | None
) -> None:
    falling = np.sort(np.array(lengths, dtype=np.int64))[::-1]
    shapes = cut(falling, budget, max_cells)

    def fits(rows: int, start: int) -> bool:
        cells = rows * falling[start]
        within = rows == 1 or max_cells is None or cells <= max_cells
        return bool(cells <= budget * falling[start : start + rows].sum() and within)

    start = 0
    for rows, length, full in shapes:
        block = falling[start : start + rows]
        assert length == block.max()
        assert full == (block.min() == length)
        assert fits(rows, start)
        if (following := falling[start : start + rows + 1]).all() and len(following) > rows:
            assert not fits(rows + 1, start)
        start += rows
    assert start == np.count_nonzero(falling)


@given(
    lengths=st.lists(st.integers(0, 30), max_size=20),
    max_cells=st.none() | st.integers(1, 100),
)
def test_rows_end_where_their_block_ends(lengths: list[int], max_cells: int | None) -> None:
    values = torch.arange(1.0, sum(lengths) + 1).unsqueeze(1).requires_grad_()
    buckets = Buckets.of(torch.tensor(lengths).long(), max_cells=max_cells)
    rows = [row for row in values.split(lengths) if len(row)] if lengths else []
    rows.sort(key=len, reverse=True)  # stable, as the buckets are
    sums, begin = [values.new_zeros(0, 1)], 0
    for shape, block in zip(buckets.shapes, buckets.blocks(values), strict=True):
        assert block.values.shape == (shape.rows, shape.length, 1)
        assert (block.mask is None) == shape.full
        mask = torch.ones(shape[:2], dtype=torch.bool) if block.mask is None else block.mask
        for row, padded, seen in zip(rows[begin:], block.values, mask, strict=False):
            assert torch.equal(padded[-len(row) :], row)
            assert (padded[: -len(row)] == row[0]).all()
            assert seen.tolist() == [False] * (shape.length - len(row)) + [True] * len(row)
        assert block.lengths.tolist() == [len(row) for row in rows[begin : begin + shape.rows]]
        sums.append((block.values * mask.unsqueeze(2)).sum(1))
        begin += shape.rows
    assert begin == len(rows)
    pooled = buckets.rows(sums)
    assert pooled.squeeze(1).tolist() == [row.sum().item() for row in values.split(lengths)]
    if rows:
        pooled.sum().backward()
        assert values.grad is not None
        assert (values.grad == 1).all()


def test_heavy_tails_need_few_blocks() -> None:
    """One padded block would be 33 times the values, a loop 4,096 calls."""
    generator = np.random.default_rng(0)
    lengths = np.minimum(generator.pareto(1.5, 4096) * 5, 1000).astype(np.int64)
    buckets = Buckets.of(torch.from_numpy(lengths))
    assert lengths.max() * 4096 > 30 * lengths.sum()
    assert len(buckets.cells) <= PADDING_BUDGET * lengths.sum()
    assert len(buckets.shapes) < 40


def test_blocks_fit_the_cache_of_each_thread() -> None:
    values = torch.empty(1, 64)
    alone = 1 << 19  # bytes
    assert block_cells(values) == torch.get_num_threads() * alone // (64 * 4)
    assert block_cells(values.double()) == torch.get_num_threads() * alone // (64 * 8)
    assert block_cells(values.to("meta")) is None

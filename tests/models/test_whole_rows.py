"""Rows end to end for CUDA's attention: where values stand, and what it makes of them there."""

from __future__ import annotations

import pytest
import torch
from drawn import at_most
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from recd_dlrm.poolings.transformer import Transformer, TransformerConfig
from recd_dlrm.poolings.whole_rows import WholeRows

with_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here")
LENGTHS = [
    [3, 1, 200, 64, 65],
    [0, 5, 0, 0, 1, 33, 0],
    [1],
    [130] * 40,
    [1] * 70_000,  # more than one call launches
    [2_000, *[3] * 2_000],  # more than one call should keep
    [0, 0, 7],
]


@settings(deadline=None, max_examples=at_most(100))
@given(lengths=st.lists(st.integers(0, 30), min_size=1, max_size=20).filter(any))
def test_rows_stand_in_their_order_without_the_empty(lengths: list[int]) -> None:
    values = torch.arange(1.0, sum(lengths) + 1).unsqueeze(1)
    whole = WholeRows.of(torch.tensor(lengths).int(), len(values), most_blocks=20)
    ((chunk,), (of_chunk,)) = whole.chunks, whole.values(values)
    rows = [row for row in of_chunk.split(lengths) if len(row)]
    assert chunk.lengths.tolist() == [len(row) for row in rows]
    assert chunk.rows.tolist() == [i for i, row in enumerate(rows) for _ in row]
    assert chunk.ages.tolist() == [age for row in rows for age in range(len(row))[::-1]]
    (call,) = chunk.calls
    assert call.num_values == len(values)
    assert call.bounds.tolist() == [sum(map(len, rows[:i])) for i in range(len(rows) + 1)]
    assert call.bounds.dtype == torch.int32
    assert call.longest == max(lengths)
    sums = of_chunk.new_zeros(len(rows), 1).index_add(0, chunk.rows, of_chunk)
    assert whole.rows([sums]).squeeze(1).tolist() == [row.sum() for row in values.split(lengths)]


@settings(deadline=None, max_examples=at_most(100))
@given(
    lengths=st.lists(
        st.integers(0, 30) | st.sampled_from([0, 64, 65, 128, 700]), min_size=1, max_size=20
    ).filter(any),
    most_blocks=st.integers(1, 30),
)
def test_calls_have_the_blocks_that_they_may(lengths: list[int], most_blocks: int) -> None:
    """Or one row, or rows of which none is longer than twice another."""
    values = torch.arange(1.0, sum(lengths) + 1).unsqueeze(1)
    whole = WholeRows.of(torch.tensor(lengths).int(), len(values), most_blocks)
    ((chunk,), (of_chunk,)) = whole.chunks, whole.values(values)
    seen = []
    parts = of_chunk.split([call.num_values for call in chunk.calls])
    for call, part in zip(chunk.calls, parts, strict=True):
        here = call.bounds.diff().tolist()
        assert max(here) == call.longest
        assert len(here) == 1 or len(here) * -(-call.longest // 64) <= most_blocks
        seen += [row.flatten().tolist() for row in part.split(here)]
    given_rows = [row.flatten().tolist() for row in values.split(lengths)]
    assert sorted(seen) == sorted(row for row in given_rows if row)
    assert chunk.lengths.tolist() == [len(row) for row in seen]
    assert chunk.ages.tolist() == [age for row in seen for age in range(len(row))[::-1]]
    sums = of_chunk.new_zeros(len(seen), 1).index_add(0, chunk.rows, of_chunk)
    assert whole.rows([sums]).squeeze(1).tolist() == [sum(row) for row in given_rows]


@with_cuda
@pytest.mark.parametrize("output", ["mean", "last"])
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("dim", [32, 6])
def test_a_gpu_pools_as_the_cpu_does(lengths: list[int], dim: int, output: str) -> None:
    """To the rounding of float32, which sums in another order; gradients too."""
    config = TransformerConfig(heads=2, layers=2, positions=40, output=output)  # type: ignore[arg-type]
    torch.manual_seed(0)
    pooling = Transformer(dim, config)
    values, weights = torch.randn(sum(lengths), dim), torch.randn(len(lengths), dim)

    def pooled(device: str) -> list[Tensor]:
        ours = pooling.to(device)
        given_values = values.to(device).requires_grad_()
        found = ours(given_values, torch.tensor(lengths, device=device))
        wanted = [given_values, *ours.parameters()]
        gradients = torch.autograd.grad((found * weights.to(device)).sum(), wanted)
        return [one.cpu() for one in (found, *gradients)]

    on_cpu, on_gpu = pooled("cpu"), pooled("cuda")
    for ours, theirs in zip(on_gpu, on_cpu, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


@with_cuda
@pytest.mark.parametrize("dim", [32, 20, 6])
def test_a_gpu_pools_in_half_precision(dim: int) -> None:
    """Heads of 3 and 10 numbers too, of which its kernels take none as they are."""
    torch.manual_seed(0)
    pooling, lengths = Transformer(dim, TransformerConfig()).cuda(), torch.tensor([40, 0, 3]).cuda()
    values = torch.randn(43, dim, device="cuda", requires_grad=True)
    plain = pooling(values, lengths)
    with torch.autocast("cuda", torch.bfloat16):
        found = pooling(values, lengths)
    torch.testing.assert_close(found.float(), plain, rtol=0.05, atol=0.05)
    found.float().sum().backward()
    assert values.grad is not None
    assert values.grad.isfinite().all()

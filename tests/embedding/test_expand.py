"""Value and property tests of O6: unique samples copied to all, each against a plain loop."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from recd_plugins.embedding.expand import (
    cells_of,
    expand_columns,
    expand_rows,
    expand_values,
    sum_cells,
)


@st.composite
def samples(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Unique samples' lengths [U], and a lookup [B] into them; some may have no sample."""
    lengths = draw(st.lists(st.integers(0, 6), min_size=1, max_size=8))
    return lengths, draw(st.lists(st.integers(0, len(lengths) - 1), max_size=20))


def looped(values: Tensor, lengths: list[int], lookup: list[int]) -> Tensor:
    parts = values.split(lengths)
    return torch.cat([values[:0], *(parts[unique] for unique in lookup)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@given(drawn=samples())
def test_values_equal_a_loop(dtype: torch.dtype, drawn: tuple[list[int], list[int]]) -> None:
    lengths, lookup = drawn
    values = torch.randint(-8, 8, (sum(lengths), 3)).to(dtype).requires_grad_()
    expanded = expand_values(values, torch.tensor(lengths), torch.tensor(lookup).long())
    wanted = looped(values, lengths, lookup)
    assert torch.equal(expanded, wanted)
    # Sums of at most 20 small whole numbers: exact in each of the types.
    gradient = torch.randint(-4, 4, expanded.shape).to(dtype)
    ours, theirs = (torch.autograd.grad(each, values, gradient)[0] for each in (expanded, wanted))
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_sums_of_16_bits_lose_no_addend(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """One by one, ones of bfloat16 add up to 256 at most, and of float16 to 2,048."""
    sums = sum_cells(torch.ones(4096, *shape, dtype=dtype), torch.zeros(4096).long(), 1)
    assert sums.dtype == dtype
    assert sums.unique().tolist() == [4096.0]


@given(drawn=samples())
def test_rows_equal_a_loop(drawn: tuple[list[int], list[int]]) -> None:
    lengths, lookup = drawn
    for shape in [(), (4,), (2, 3)]:
        unique = torch.randint(-8, 8, (len(lengths), *shape)).double().requires_grad_()
        expanded = expand_rows(unique, torch.tensor(lookup).long())
        wanted = torch.cat([unique[:0], *(unique[i : i + 1] for i in lookup)])
        assert torch.equal(expanded, wanted)
        gradient = torch.randint(-4, 4, expanded.shape).double()
        ours, theirs = (
            torch.autograd.grad(each, unique, gradient)[0] for each in (expanded, wanted)
        )
        assert torch.equal(ours, theirs)


@given(
    counts=st.lists(st.integers(1, 6), min_size=1, max_size=6),
    num_rows=st.integers(0, 8),
    data=st.data(),
)
def test_columns_equal_a_loop(counts: list[int], num_rows: int, data: st.DataObject) -> None:
    uniques, lookups, wanted = [], [], []
    for index, count in enumerate(counts):
        lookup = None
        if index == 0 or data.draw(st.booleans()):
            row = st.integers(0, count - 1)
            drawn = data.draw(st.lists(row, min_size=num_rows, max_size=num_rows))
            lookup = torch.tensor(drawn).long()
        shape = (num_rows if lookup is None else count, 3)
        uniques.append(torch.randint(-8, 8, shape).double().requires_grad_())
        lookups.append(lookup)
        wanted.append(uniques[-1] if lookup is None else uniques[-1][lookup])
    columns = expand_columns(uniques, lookups)
    assert torch.equal(columns, torch.stack(wanted, dim=1))
    gradient = torch.randint(-4, 4, columns.shape).double()
    for ours, theirs in zip(
        torch.autograd.grad(columns, uniques, gradient),
        torch.autograd.grad(wanted, uniques, list(gradient.unbind(1))),
        strict=True,
    ):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("lengths_type", [torch.int32, torch.int64])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float32])
@given(drawn=samples())
def test_ids_equal_a_loop(
    dtype: torch.dtype, lengths_type: torch.dtype, drawn: tuple[list[int], list[int]]
) -> None:
    lengths, lookup = drawn
    ids = torch.arange(sum(lengths)).to(dtype)
    of_rows = torch.tensor(lengths, dtype=lengths_type)
    expanded = expand_values(ids, of_rows, torch.tensor(lookup).long())
    assert expanded.dtype == dtype
    assert torch.equal(expanded, looped(ids, lengths, lookup))
    cells = cells_of(of_rows, torch.tensor(lookup).long())
    assert torch.equal(cells, expanded.long())


def test_gradients_and_theirs() -> None:
    lengths, lookup = torch.tensor([2, 0, 3, 1]), torch.tensor([0, 0, 2, 3, 1, 2, 0])
    values = torch.randn(6, 2, dtype=torch.double, requires_grad=True)
    rows = torch.randn(4, 2, dtype=torch.double, requires_grad=True)
    cells = torch.tensor([1, 1, 0, 3, 3, 3])
    for function, given_ in [
        (lambda v: expand_values(v, lengths, lookup), values),
        (lambda v: expand_rows(v, lookup), rows),
        (lambda v: sum_cells(v, cells, 5), values),
    ]:
        assert gradcheck(function, given_)
        assert gradgradcheck(function, given_)


def test_a_gradient_that_is_not_contiguous() -> None:
    unique = torch.randn(3, 4, requires_grad=True)
    lookup = torch.tensor([0, 2, 2, 1])
    (ours,) = torch.autograd.grad(expand_rows(unique, lookup).sum(), unique)
    assert ours[:, 0].tolist() == [1, 1, 2]

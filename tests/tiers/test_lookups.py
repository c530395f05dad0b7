"""Property tests: rows summed over bags, and the gradients of rows, against a dense product."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from recd_plugins.errors import DataError
from recd_plugins.tiers.collections.group_bags import Lookups
from recd_plugins.tiers.gradients.entries import Entries, add_rows

DIM = 3


def lookups(which: list[tuple[int, int]], weighted: bool) -> Lookups:
    """Of pairs (bag, row)."""
    bags, rows = (torch.tensor(each, dtype=torch.int64) for each in zip(*which, strict=True))
    weights = torch.linspace(0.5, 2, len(which)) if weighted else None
    return Lookups(rows, bags, weights)


def shares(of: Lookups, num_bags: int, num_rows: int) -> Tensor:
    """[num_bags, num_rows]: how much of each row is in each bag."""
    weights = torch.ones(len(of.which)) if of.weights is None else of.weights
    return torch.zeros(num_bags, num_rows).index_put((of.bags, of.which), weights, accumulate=True)


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4)), min_size=1, max_size=40).map(sorted),
    st.booleans(),
)
def test_sums_and_gradients(which: list[tuple[int, int]], weighted: bool) -> None:
    of, num_bags, num_rows = lookups(which, weighted), 7, 6  # the last of each are in none
    dense = shares(of, num_bags, num_rows)
    rows, bags = torch.randn(num_rows, DIM), torch.randn(num_bags, DIM)
    # Sums of up to 40 products below 10, in another order.
    close = {"atol": 1e-5, "rtol": 0}
    torch.testing.assert_close(of.sums(rows, num_bags), dense @ rows, **close)
    torch.testing.assert_close(of.gradients(bags, num_rows), dense.T @ bags, **close)
    # As a GPU does it.
    torch.testing.assert_close(of.turned().sums(bags, num_rows), dense.T @ bags, **close)


@pytest.mark.parametrize("num_bags", [0, 3])
def test_no_lookups(num_bags: int) -> None:
    none = torch.empty(0, dtype=torch.int64)
    of = Lookups(none, none, None)
    assert torch.equal(of.sums(torch.empty(0, DIM), num_bags), torch.zeros(num_bags, DIM))
    assert torch.equal(of.gradients(torch.ones(num_bags, DIM), 2), torch.zeros(2, DIM))


def test_half_rows_are_summed_in_full_precision() -> None:
    rows = torch.tensor([[1.0], [2.0**-11]], dtype=torch.float16)
    of = Lookups(torch.tensor([0, 1, 1, 1]), torch.zeros(4, dtype=torch.int64), None)
    assert of.sums(rows, 1).item() == 1 + 3 * 2.0**-11


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("placed", [torch.int32, torch.int64])
def test_entries_add_up_to_the_bit_as_torch_adds(placed: torch.dtype, weighted: bool) -> None:
    draw = torch.Generator().manual_seed(0)
    gradients = torch.randn(30, DIM, generator=draw)
    sources = torch.randint(30, (200,), generator=draw)
    places = torch.randint(9, (200,), generator=draw).to(placed)
    weights = torch.rand(200, generator=draw) if weighted else None
    rows = gradients[sources]
    rows = rows if weights is None else rows * weights.unsqueeze(1)
    expected = torch.zeros(10, DIM).index_add_(0, places, rows)
    assert torch.equal(Entries(places, gradients, sources, weights).summed(10), expected)
    own = Entries(places, rows)  # row i is the i-th
    assert torch.equal(own.summed(10), expected)
    assert torch.equal(own.onto(places[:0]).summed(2), torch.zeros(2, DIM))


@pytest.mark.parametrize(
    ("places", "sources"),
    [([0, -1], None), ([0, 2], None), ([0, 1], [0, 3]), ([0, 1], [-1, 0]), ([0, 1, 1, 0], None)],
)
def test_gradients_of_no_row_are_refused(places: list[int], sources: list[int] | None) -> None:
    sums, rows = torch.zeros(2, DIM), torch.ones(3, DIM)
    which = None if sources is None else torch.tensor(sources)
    with pytest.raises(DataError, match="none of 2 rows, or is none of 3"):
        add_rows(sums, torch.tensor(places), rows, which)
    assert not sums.any()

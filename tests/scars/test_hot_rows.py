"""Rung 1 and 2 (values, properties): hot rows by bits and by slots, and the memory of them."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from drawn import at_most
from hypothesis import given, settings
from hypothesis import strategies as st
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.planning.access.parametric import uniform
from recd_plugins.planning.tables.profiled_table import ProfiledTable
from recd_plugins.planning.tier_plans.table_sizes import TableSizes
from recd_plugins.planning.tier_plans.tier_plan import TablePlan, TierPlan
from recd_plugins.sparse.features import SparseFeatures
from recd_plugins.sparse.rows.slot_sizes import SLOT_BYTES
from recd_scars.hot_batches import hot_rows
from recd_scars.hot_batches.hot_rows import (
    BELOW,
    BY_BIT,
    BY_SLOT,
    SMALL,
    HotRows,
    most_bytes,
    way_to,
)
from recd_scars.scars_planner import memory_of_hot_rows

HUGE = 10**11


def plan_of(**rows: np.ndarray) -> TierPlan:
    tables = {name: TablePlan(table=name, replicated=some) for name, some in rows.items()}
    return TierPlan(tables=tables, n_nodes=1, ranks_per_node=1)


def of_one_id(**ids: np.ndarray) -> SparseFeatures:
    every = [torch.from_numpy(some) for some in ids.values()]
    values = torch.cat(every)
    return SparseFeatures.of(
        KeyedJaggedTensor(keys=list(ids), values=values, lengths=torch.ones(len(values)).int())
    )


@pytest.mark.parametrize(
    ("hot", "end", "way"),
    [
        (0, 0, BELOW),
        (HUGE, HUGE, BELOW),
        (1, 8 * SMALL, BY_BIT),
        (1, 8 * SMALL + 8, BY_SLOT),
        (10**9, 8 * 20 * 10**9, BY_BIT),
        (10**9, 8 * 20 * 10**9 + 8, BY_SLOT),
        (2**30 + 1, 10**13, BY_BIT),
    ],
)
def test_slots_are_for_huge_tables_of_few_hot_rows(hot: int, end: int, way: int) -> None:
    assert SLOT_BYTES == 20
    assert way_to(hot, end) == way


def test_a_plan_tells_of_the_memory_that_finds_hot_samples() -> None:
    def told(**tables: tuple[int, int]) -> str:
        return memory_of_hot_rows(
            {
                name: ProfiledTable(name=name, rows=uniform(num_rows, 1), dim=16)
                for name, (num_rows, _) in tables.items()
            },
            {name: TableSizes(replicated=hot) for name, (_, hot) in tables.items()},
        )

    assert told(large=(2**29 - 1, 2**24)) == ""  # slots of fewer rows than 64 MiB has bits
    assert told(whole=(10**9, 10**9), none=(HUGE, 0), small=(1000, 9)) == ""
    assert "up to 191 MiB more" in told(large=(HUGE, 10**7), whole=(10**6, 10**6))
    assert "up to 119 MiB more" in told(large=(10**9, 10**8))  # of bits


def test_rows_of_tables_beyond_memory_are_classified_in_memory_for_the_hot_ones() -> None:
    draw = np.random.default_rng(0)
    hot = np.unique(draw.integers(0, HUGE, 100_000))
    small = draw.permutation(1000)[:700]
    rows = HotRows(
        plan_of(huge=draw.permutation(hot), small=small, whole=np.arange(50)),
        {"huge": ["a", "b"], "small": ["b", "c"], "whole": ["d"]},
    )
    assert rows.nbytes < 2.1e6  # 12 GB of bits
    most = most_bytes(len(hot), HUGE) + most_bytes(700, 1000) + most_bytes(50, 50)
    assert rows.nbytes == pytest.approx(most, rel=0.001)
    size = 20_000
    drawn = [np.concatenate([hot, hot + 1, [-1, 0, 2**63 - 1]]), hot, np.arange(-3, 1003)]
    ids = [*map(draw.choice, drawn, [size] * 3), draw.integers(-1, 51, size)]
    ids[1][: size // 2] = small[draw.integers(0, 700, size // 2)]
    a, b, c, d = ids
    expected = np.isin(a, hot) & np.isin(b, hot) & np.isin(b, small)
    expected &= np.isin(c, small) & (d >= 0) & (d < 50)
    np.testing.assert_array_equal(rows.samples(of_one_id(a=a, b=b, c=c, d=d)), expected)
    found = HotRows(plan_of(huge=hot), {"huge": ["a", "b"]}).samples(of_one_id(a=a, b=b))
    np.testing.assert_array_equal(found, np.isin(a, hot) & np.isin(b, hot))
    assert 0 < found.sum() < size


@settings(max_examples=at_most(60))
@given(data=st.data())
def test_slots_answer_as_bits_do(data: st.DataObject) -> None:
    """Rows that lie anywhere, of one id each or of several, of int32 or int64."""
    far = 2 ** data.draw(st.integers(3, 31))
    rows = data.draw(st.lists(st.integers(0, far - 1), max_size=40, unique=True))
    near = st.sampled_from(rows) if rows else st.integers(0, 3)
    ids = data.draw(st.lists(near | st.integers(-2, far - 1), max_size=40))
    lengths, left = [], len(ids)
    while left:
        lengths.append(data.draw(st.integers(0, min(left, 3))) if len(lengths) < 60 else left)
        left -= lengths[-1]
    if data.draw(st.booleans()):
        lengths = [1] * len(ids)
    kind = data.draw(st.sampled_from([torch.int32, torch.int64]))
    features = SparseFeatures.of(
        KeyedJaggedTensor(
            keys=["a"], values=torch.tensor(ids, dtype=kind), lengths=torch.tensor(lengths).int()
        )
    )
    plan = plan_of(table=np.array(rows, np.int64))
    found = []
    for small in (SMALL, -1.0):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(hot_rows, "SMALL", small)
            patch.setattr(hot_rows, "SLOT_BYTES", 20 if small > 0 else 0)
            found.append(HotRows(plan, {"table": ["a"]}).samples(features).tolist())
    assert found[0] == found[1]
    ends = np.cumsum([0, *lengths])
    assert found[0] == [set(rows).issuperset(ids[begin:end]) for begin, end in pairwise(ends)]

"""Property tests: ids that miss are coalesced table by table, and found again by their inverse."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from recd_plugins.sparse.rows.coalesce import CoalescedParts
from recd_plugins.tiers.exchange.home_ids import coalesce_by_table, of_keys, to_keys

# A negative id and one beyond any table miss too: TorchRec judges them.
IDS = st.lists(st.integers(0, 6) | st.sampled_from([-3, 2**31]), max_size=30)


TABLES = st.lists(IDS, min_size=1, max_size=5)


def joined(tables: list[list[int]]) -> torch.Tensor:
    return torch.tensor([one for table in tables for one in table], dtype=torch.int64)


@given(TABLES)
def test_each_id_once_for_its_table(tables: list[list[int]]) -> None:
    counts = list(map(len, tables))
    ids = joined(tables)
    found = coalesce_by_table(ids, counts)
    assert torch.equal(found.ids[found.inverse_lookup], ids)
    parts = zip(
        found.ids.split(found.counts), found.inverse_lookup.split(counts), tables, strict=True
    )
    first = 0
    for own, inverse, table in parts:
        assert own.sort().values.tolist() == sorted(set(table))
        assert all(first <= place < first + len(own) for place in inverse.tolist())
        first += len(own)


@given(TABLES)
def test_keys_tell_tables_apart(tables: list[list[int]]) -> None:
    ids = joined(tables)
    keys = to_keys(ids, list(map(len, tables)))
    same, owners = of_keys(keys)
    assert torch.equal(same, ids)
    assert owners.tolist() == [table for table, own in enumerate(tables) for _ in own]


def test_no_id_at_all() -> None:
    found = coalesce_by_table(torch.empty(0, dtype=torch.int64), [0, 0])
    assert (found.counts, len(found.ids), len(found.inverse_lookup)) == ([0, 0], 0, 0)
    assert isinstance(found, CoalescedParts)

"""Rung 1 to 3 (values, properties, worker processes): sessions stay together in the order."""

from __future__ import annotations

import dataclasses
from collections import Counter
from itertools import accumulate, chain, groupby, pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recd_plugins.data.reader.local_reader import LocalReaderConfig, build_local_reader
from recd_plugins.data.reader.order import Order, bands_of, pack, rows_of_spans
from recd_plugins.data.schema import Schema, SparseFeature
from recd_plugins.data.table import Table
from recd_plugins.data.table_writer import TableWriter
from recd_plugins.errors import DataError, RegistryError
from recd_plugins.slots import Context
from recd_plugins.testing.resume import check_resume

Row = tuple[int, int]
"""(session, row of the table)"""


def packed(sizes: list[int], rooms: list[int]) -> list[list[tuple[int, int]]]:
    """Per room the (begin, size) of what went there, with bands laid end to end."""
    begins = np.cumsum([0, *sizes[:-1]])
    spans = iter(zip(*map(np.ndarray.tolist, pack(begins, np.array(sizes), rooms)), strict=True))
    filled = []
    for room in rooms:
        filled.append([])
        while sum(size for _, size in filled[-1]) < room:
            filled[-1].append(next(spans))
    assert list(spans) == []
    return filled


def test_runs_are_consecutive_rows_of_one_session_across_stripes():
    first, second = pa.chunked_array([[7, 7], [7, 3]]), pa.chunked_array([[3, 7, 5, 5]])
    assert bands_of([first, second]).tolist() == [3, 2, 1, 2]
    assert bands_of([pa.chunked_array([["a", "a", "b"]])]).tolist() == [2, 1]
    assert bands_of([pa.chunked_array([[1, None, None, 2, 2]])]).tolist() == [1, 1, 1, 2]


def test_a_run_that_fits_not_lets_the_first_that_does_go_before():
    assert packed([3, 4, 2, 1], [5, 5]) == [[(0, 3), (7, 2)], [(3, 4), (9, 1)]]


def test_a_run_is_cut_where_none_fits_and_its_rest_is_the_next():
    assert packed([3, 4, 3], [5, 5]) == [[(0, 3), (3, 2)], [(5, 2), (7, 3)]]


def test_a_run_longer_than_a_batch_does_not_wait():
    assert packed([2, 9, 1], [4, 4, 4]) == [[(0, 2), (2, 2)], [(4, 4)], [(8, 3), (11, 1)]]


@st.composite
def runs_and_rooms(draw) -> tuple[list[int], list[int]]:
    sizes = draw(st.lists(st.integers(1, 9), min_size=1, max_size=30))
    batch, total = draw(st.integers(1, 12)), sum(sizes)
    first = min(draw(st.integers(1, batch)), total)
    borders = [0, *range(first, total, batch), total]
    return sizes, [right - left for left, right in pairwise(borders)]


@given(runs_and_rooms())
def test_packing_keeps_every_row_and_cuts_only_what_cannot_fit(case):
    sizes, rooms = case
    filled = packed(sizes, rooms)
    rows = rows_of_spans(tuple(np.array(part) for part in zip(*chain(*filled), strict=True)))
    assert sorted(rows.tolist()) == list(range(sum(sizes)))
    begins = dict(zip(accumulate([0, *sizes[:-1]]), sizes, strict=True))
    waiting = dict(begins)
    for room, spans in zip(rooms, filled, strict=True):
        assert sum(size for _, size in spans) == room
        for begin, size in spans:
            left = waiting.pop(begin)
            if size < left:  # cut, since it fits nowhere, or nothing that waits was short enough
                assert (begin, size) == spans[-1]
                assert left > max(rooms) or all(other > size for other in waiting.values())
                waiting[begin + size] = left - size
    assert not waiting


# The order of a table whose stripes hold sessions


@st.composite
def clustered(draw) -> tuple[Order, list[list[int]]]:
    """An order, and the session of each row of its stripes."""
    sizes = draw(st.lists(st.integers(1, 6), min_size=1, max_size=25))
    sessions = list(chain(*([session] * size for session, size in enumerate(sizes))))
    stripe = draw(st.integers(1, 20))
    stripes = [sessions[first : first + stripe] for first in range(0, len(sessions), stripe)]
    order = Order(
        stripe_rows=tuple(map(len, stripes)),
        streams=draw(st.sampled_from([1, 2, 3])),
        rows_per_batch=draw(st.integers(1, 8)),
        shuffle=draw(st.booleans()),
        window=draw(st.integers(0, 3)),
        tail=draw(st.sampled_from(["drop", "pad"])),
        seed=draw(st.integers(0, 3)),
        sessions=draw(st.sampled_from(["together", "whole"])),
    )
    return order, stripes


def windows(order: Order, stripes: list[list[int]], stream: int, batch: int = 0) -> list[list[Row]]:
    """What each window of the stream delivers, padding left out."""
    starts = [0, *accumulate(order.stripe_rows)]
    delivered = []
    for window in order.windows(1, stream, batch):
        laid = [
            (stripes[piece.stripe][row], starts[piece.stripe] + row)
            for piece in window.pieces
            for row in range(piece.start, piece.stop)
        ]
        bands = [len(list(band)) for _, band in groupby(laid, lambda row: row[0])]
        rows = order.rows(window, np.array(bands))
        assert len(rows) == window.num_rows
        delivered.append([laid[row] for row in rows[: len(rows) - window.padding]])
    return delivered


@given(clustered())
def test_every_row_once_and_equal_batches_on_all_streams(case):
    order, stripes = case
    rows = [row for stream in range(order.streams) for row in chain(*windows(*case, stream))]
    everyone = set(enumerate(chain(*stripes)))
    assert len(set(rows)) == len(rows)
    assert {(row, session) for session, row in rows} <= everyone
    if order.tail == "pad":
        assert len(rows) == order.num_rows
    else:
        assert len(rows) == order.streams * order.num_batches * order.rows_per_batch


@given(clustered())
def test_together_moves_bands_of_consecutive_rows(case):
    order, stripes = case
    order = dataclasses.replace(order, sessions="together", tail="pad")
    starts = {0, *accumulate(order.stripe_rows)}
    for stream in range(order.streams):
        for rows in windows(order, stripes, stream):
            bands = [list(band) for _, band in groupby(rows, lambda row: row[0])]
            for band in bands:  # in time, and without a gap, up to where another stripe begins
                for (_, before), (_, row) in pairwise(band):
                    assert row == before + 1 or row in starts
            # A session is in two bands only where its rows lay in two stripes that are apart.
            for session, count in Counter(band[0][0] for band in bands).items():
                assert count <= sum(session in stripe for stripe in stripes)


@given(clustered())
def test_reading_from_any_batch_on_is_the_rest(case):
    order, stripes = case
    whole = list(chain(*windows(order, stripes, 0)))
    for batch in range(order.num_batches + 1):
        rest = list(chain(*windows(order, stripes, 0, batch)))
        assert rest == whole[batch * order.rows_per_batch :]


def test_whole_is_a_shuffle_of_its_own_seed_and_epoch():
    order = Order(
        stripe_rows=(60, 60),
        streams=1,
        rows_per_batch=8,
        shuffle=True,
        window=2,
        tail="drop",
        seed=0,
        sessions="whole",
    )
    bands = np.full(40, 3)
    (first,), (later,) = order.windows(0, 0), order.windows(1, 0)
    assert order.rows(first, bands).tolist() == order.rows(first, bands).tolist()
    assert order.rows(first, bands).tolist() != order.rows(later, bands).tolist()


# The loader

SCHEMA = Schema(timestamp=None, sparse=(SparseFeature(name="row", num_ids=10_000),))
SIZES = [1, 4, 2, 9, 3, 1, 1, 6, 2, 5] * 12


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> Table:
    """Sessions of SIZES rows, one after another; the id of each row is its number."""
    folder: Path = tmp_path_factory.mktemp("data") / "table"
    sessions = list(chain(*([session] * size for session, size in enumerate(SIZES))))
    with TableWriter(folder, SCHEMA, rows_per_stripe=64) as writer:
        writer.write(
            pa.table(
                {
                    "session_id": sessions,
                    "label": [0.0] * len(sessions),
                    "row": [[row] for row in range(len(sessions))],
                }
            )
        )
    return Table.open(folder)


def open_loader(table, *, rank=0, world_size=1, split="train", **options):
    reader = build_local_reader(LocalReaderConfig(**options), Context())
    return reader.loader(table, rank=rank, world_size=world_size, batch_size=16, split=split)


def batches_of(loader) -> list[list[int]]:
    return [batch.features.values()[batch.weights > 0].tolist() for batch in loader]


SESSION_OF = list(chain(*([session] * size for session, size in enumerate(SIZES))))


def parts(batches: list[list[int]]) -> int:
    """Over how many batches each session is spread, summed up."""
    return sum(len({SESSION_OF[row] for row in batch}) for batch in batches)


@pytest.mark.parametrize("world_size", [1, 3])
@pytest.mark.parametrize("sessions", ["together", "whole"])
def test_ranks_have_equal_full_batches_of_every_row_once(table, sessions, world_size):
    ranks = [
        batches_of(
            open_loader(table, rank=rank, world_size=world_size, sessions=sessions, tail="pad")
        )
        for rank in range(world_size)
    ]
    assert len({len(rank) for rank in ranks}) == 1
    assert {len(batch) for rank in ranks for batch in rank[:-1]} == {16}
    assert sorted(chain(*chain(*ranks))) == list(range(len(SESSION_OF)))


def test_sessions_are_cut_less_and_less(table):
    """Cuts: by stripes at most one each; by batches one each if together, few if whole."""
    split, together, whole = (
        batches_of(open_loader(table, sessions=sessions, tail="pad"))
        for sessions in ("split", "together", "whole")
    )
    stripes = len(table.stripes)
    assert len(SIZES) <= parts(whole) <= len(SIZES) + 2 * stripes
    assert parts(whole) < parts(together) <= len(SIZES) + stripes + len(together)
    assert parts(together) < parts(split) / 2


@pytest.mark.parametrize("workers", [0, 2])
def test_resuming_is_exact(table, workers):
    positions = [0, 1, 7] if workers else None
    check_resume(
        lambda: open_loader(table, sessions="whole", workers=workers, window=3),
        positions=positions,
    )


def test_a_state_of_other_sessions_is_refused(table):
    state = open_loader(table, sessions="whole").state_dict()
    with pytest.raises(DataError, match="sessions whole, but here is sessions together"):
        open_loader(table, sessions="together").load_state_dict(state)
    with pytest.raises(DataError, match="sessions whole, but here is sessions None"):
        open_loader(table).load_state_dict(state)
    with pytest.raises(DataError, match="sessions None, but here is sessions whole"):
        open_loader(table, sessions="whole").load_state_dict(open_loader(table).state_dict())


def test_the_test_split_is_read_in_order(table):
    rows = list(chain(*batches_of(open_loader(table, split="test", sessions="whole"))))
    assert rows == list(range(len(SESSION_OF)))


def test_a_table_without_sessions(table):
    nameless = dataclasses.replace(table, schema=dataclasses.replace(table.schema, session_id=None))
    with pytest.raises(RegistryError, match=r"reader.sessions: is 'whole', .* has no session"):
        open_loader(nameless, sessions="whole")

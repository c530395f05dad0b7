"""Rung 1 and 2 (values, properties): which rows are read, by whom, in which order."""

from __future__ import annotations

import dataclasses
from collections import Counter
from itertools import accumulate, chain, groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recd_plugins.data.reader.order import Order, Shares
from recd_plugins.errors import RegistryError

Slot = tuple[int, int, int]
"""(stripe, row, weight)"""

PLAIN = Order(
    stripe_rows=(4, 3),
    streams=2,
    rows_per_batch=2,
    shuffle=False,
    window=1,
    tail="pad",
    seed=0,
)


@st.composite
def orders(draw) -> Order:
    return Order(
        stripe_rows=tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=7))),
        streams=draw(st.sampled_from([1, 2, 3, 4, 8])),
        rows_per_batch=draw(st.integers(1, 5)),
        shuffle=draw(st.booleans()),
        window=draw(st.integers(0, 3)),
        tail=draw(st.sampled_from(["drop", "pad"])),
        seed=draw(st.integers(-3, 3)),
    )


def read(order: Order, epoch: int, stream: int, batch: int = 0) -> list[Slot]:
    """What the stream delivers from `batch` on."""
    slots: list[Slot] = []
    for window in order.windows(epoch, stream, batch):
        laid = [(piece.stripe, row) for piece in window.pieces for row in range(*piece[1:])]
        rows = order.rows(window)
        weights = [1] * (len(rows) - window.padding) + [0] * window.padding
        slots += [(*laid[row], weight) for row, weight in zip(rows, weights, strict=True)]
    return slots


def batch_of(order: Order, epoch: int, batch: int, streams: range) -> list[Slot]:
    """A batch as a consumer of `streams` makes it."""
    start = batch * order.rows_per_batch
    stop = start + order.batch_rows(batch)
    return list(chain(*(read(order, epoch, stream)[start:stop] for stream in streams)))


def test_streams_are_equal_ranges_and_the_shorter_is_padded():
    assert read(PLAIN, 0, 0) == [(0, 0, 1), (0, 1, 1), (0, 2, 1), (0, 2, 0)]
    assert read(PLAIN, 0, 1) == [(0, 3, 1), (1, 0, 1), (1, 1, 1), (1, 2, 1)]
    assert PLAIN.num_batches == 2


def test_rows_that_are_not_shuffled_are_read_piece_by_piece():
    for order in (PLAIN, dataclasses.replace(PLAIN, window=2)):
        windows = list(order.windows(0, 1))
        assert [window.pieces for window in windows] == [((0, 3, 4),), ((1, 0, 3),)]


def test_drop_leaves_out_what_fills_no_batch_on_every_stream():
    order = dataclasses.replace(PLAIN, tail="drop")
    assert read(order, 0, 0) == [(0, 0, 1), (0, 1, 1)]
    assert read(order, 0, 1) == [(0, 3, 1), (1, 0, 1)]
    assert order.num_batches == 1


def test_the_last_padded_batch_is_shorter_on_every_stream():
    order = dataclasses.replace(PLAIN, rows_per_batch=3)
    assert [order.batch_rows(batch) for batch in range(order.num_batches)] == [3, 1]
    assert batch_of(order, 0, 1, range(2)) == [(0, 2, 0), (1, 2, 1)]


def test_more_streams_than_rows_pad_with_rows_of_others():
    order = dataclasses.replace(PLAIN, stripe_rows=(2,), streams=4)
    assert [read(order, 0, stream) for stream in range(4)] == [
        [(0, 0, 0)],
        [(0, 0, 1)],
        [(0, 1, 0)],
        [(0, 1, 1)],
    ]


def test_a_seeds_order_stays_what_it_is():
    """Whoever resumes a run with a later version reads the rows that are left, in their order."""
    order = dataclasses.replace(
        PLAIN, stripe_rows=(3, 2, 4), streams=1, rows_per_batch=3, shuffle=True, window=2, seed=7
    )

    def rows(order: Order, epoch: int, stream: int = 0) -> str:
        return " ".join(f"{stripe}.{row}" for stripe, row, _ in read(order, epoch, stream))

    assert rows(order, 0) == "0.2 2.0 2.2 2.3 0.1 2.1 0.0 1.1 1.0"
    assert rows(order, 1) == "0.2 2.2 0.0 2.0 0.1 2.1 2.3 1.1 1.0"
    assert rows(dataclasses.replace(order, streams=2), 0, 1) == "1.1 2.1 2.2 2.3 1.0"
    assert rows(dataclasses.replace(order, seed=-7), 0) == "0.2 0.1 1.0 1.1 0.0 2.2 2.0 2.3 2.1"


def test_streams_are_shared_out_in_turn():
    shares = Shares(world_size=2, workers=3, streams=12)
    assert shares.consumers == 6
    assert [list(shares.streams_of(rank, worker)) for rank in range(2) for worker in range(3)] == [
        [0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11],
    ]  # fmt: skip
    assert shares.rows_per_batch(8) == 4
    alone = Shares(world_size=2, streams=4)
    assert [list(alone.streams_of(rank)) for rank in range(2)] == [[0, 1], [2, 3]]
    with pytest.raises(RegistryError, match=r"train\.batch_size is 9, .* drawn from 2 streams"):
        shares.rows_per_batch(9)
    with pytest.raises(RegistryError, match=r"multiple of 6 \(2 ranks of 3 consumers each\)"):
        Shares(world_size=2, workers=3, streams=4)
    with pytest.raises(RegistryError, match=r"multiple of 2 \(2 ranks of 1 consumer each\)"):
        Shares(world_size=2, streams=3)


@pytest.mark.parametrize("tail", ["drop", "pad"])
def test_no_rows_make_no_batches(tail):
    order = dataclasses.replace(PLAIN, stripe_rows=(), tail=tail)
    assert order.num_batches == 0
    assert read(order, 0, 0) == []


@given(order=orders(), epoch=st.integers(0, 3))
def test_every_row_once_per_epoch(order, epoch):
    streams = [read(order, epoch, stream) for stream in range(order.streams)]
    assert {len(stream) for stream in streams} == {order.rows_per_stream}
    real = Counter((stripe, row) for stripe, row, weight in chain(*streams) if weight)
    table = [(stripe, row) for stripe, rows in enumerate(order.stripe_rows) for row in range(rows)]
    assert set(real.values()) <= {1}
    assert set(real) <= set(table)
    if order.tail == "pad":
        assert len(real) == len(table)
        assert all(sum(not weight for *_, weight in stream) <= 1 for stream in streams)
    else:
        assert len(real) == order.streams * order.rows_per_batch * order.num_batches
        assert len(table) - len(real) < order.streams * (order.rows_per_batch + 1)


@given(order=orders(), epoch=st.integers(0, 3), data=st.data())
def test_reading_from_any_batch_on_is_the_rest(order, epoch, data):
    stream = data.draw(st.integers(0, order.streams - 1))
    whole = read(order, epoch, stream)
    for batch in range(order.num_batches + 1):
        assert read(order, epoch, stream, batch) == whole[batch * order.rows_per_batch :]


@given(order=orders(), world_size=st.sampled_from([1, 2, 4, 8]), data=st.data())
def test_a_step_reads_the_same_rows_at_any_world_size(order, world_size, data):
    streams = data.draw(st.sampled_from([world_size, 8]))
    order = dataclasses.replace(order, streams=streams)
    shares = Shares(world_size=world_size, streams=streams)
    for batch in range(order.num_batches):
        ranks = [batch_of(order, 0, batch, shares.streams_of(rank)) for rank in range(world_size)]
        assert len({len(rank) for rank in ranks}) == 1
        assert list(chain(*ranks)) == batch_of(order, 0, batch, range(streams))


@given(order=orders(), epoch=st.integers(0, 2), batch=st.integers(0, 4))
def test_windows_are_cut_at_the_borders_of_batches(order, epoch, batch):
    for window in order.windows(epoch, 0, batch):
        cuts = window.cuts(order.rows_per_batch)
        assert sum(cuts) == window.num_rows == len(order.rows(window))
        assert all(cuts)
        inner = [window.position + end for end in accumulate(cuts)][:-1]
        assert all(border % order.rows_per_batch == 0 for border in inner)
        assert max(cuts) <= order.rows_per_batch


@given(order=orders())
def test_shuffling_stays_inside_a_window_of_pieces(order):
    order = dataclasses.replace(order, shuffle=True, window=max(order.window, 1), tail="pad")
    calm = dataclasses.replace(order, window=0)
    for stream in range(order.streams):
        runs = [list(run) for _, run in groupby(read(calm, 1, stream), key=lambda slot: slot[0])]
        slots = read(order, 1, stream)
        for first in range(0, len(runs), order.window):
            window = list(chain(*runs[first : first + order.window]))
            assert {slot[:2] for slot in slots[: len(window)]} == {slot[:2] for slot in window}
            slots = slots[len(window) :]


@given(order=orders())
def test_window_0_permutes_stripes_and_keeps_their_rows_in_order(order):
    order = dataclasses.replace(order, shuffle=True, window=0, tail="pad", streams=1)
    slots = read(order, 0, 0)
    runs = [(stripe, [row for _, row, _ in run]) for stripe, run in groupby(slots, lambda s: s[0])]
    assert sorted(stripe for stripe, _ in runs) == list(range(len(order.stripe_rows)))
    assert all(rows == list(range(order.stripe_rows[stripe])) for stripe, rows in runs)


def test_seed_and_epoch_change_the_order_and_nothing_else_does():
    order = dataclasses.replace(PLAIN, stripe_rows=(50,) * 8, shuffle=True, window=2)
    first = read(order, 0, 0)
    assert read(dataclasses.replace(order), 0, 0) == first
    assert read(order, 1, 0) != first
    assert read(dataclasses.replace(order, seed=1), 0, 0) != first
    assert read(dataclasses.replace(order, seed=-1), 0, 0) != first
    assert read(dataclasses.replace(order, rows_per_batch=3), 0, 0) == first
    rows = [[row for _, row, _ in read(order, 0, stream)] for stream in range(2)]
    assert rows[0] != rows[1]
    assert rows[0][:100] != rows[0][100:]


def test_workers_share_the_streams_of_their_rank():
    shares = Shares(world_size=2, workers=2, streams=8)
    owned = [shares.streams_of(rank, worker) for rank in range(2) for worker in range(2)]
    assert owned == [range(2), range(2, 4), range(4, 6), range(6, 8)]
    assert shares.rows_per_batch(6) == 3


def test_streams_that_do_not_divide_evenly():
    with pytest.raises(RegistryError, match=r"streams is 6, but must be a multiple of 4 \(2 ranks"):
        Shares(world_size=2, workers=2, streams=6)
    with pytest.raises(RegistryError, match=r"batch_size is 7, .* multiple of 4, or change"):
        Shares(world_size=1, streams=4).rows_per_batch(7)

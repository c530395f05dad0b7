"""Rung 1 to 3 (values, properties, worker processes): the local reader's batches and states."""

from __future__ import annotations

import gc
import multiprocessing
import os
import shutil
import sys
import threading
import time
from collections import Counter
from itertools import chain, islice
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from drawn import at_most
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from known_rows import ROWS, SCHEMA, epoch, ids, open_loader, saved, write

from recd_plugins.data.foreign import ForeignFeature, ForeignSchema
from recd_plugins.data.reader import batch_reader, rank_batches
from recd_plugins.data.reader.batch_reader import GENTLY, BatchReader
from recd_plugins.data.reader.order import Shares
from recd_plugins.data.reader.rank_batches import RankBatches
from recd_plugins.data.reader.stripe_reader import StripeReader
from recd_plugins.data.schema import Schema
from recd_plugins.data.table import Table
from recd_plugins.errors import DataError
from recd_plugins.planning.access.sample import SpreadsBatches
from recd_plugins.testing.resume import assert_same_batch, check_resume

# Batches


@settings(
    max_examples=at_most(25),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    num_rows=st.integers(1, 60),
    rows_per_stripe=st.integers(1, 20),
    world_size=st.sampled_from([1, 2, 4]),
    each=st.sampled_from([1, 2]),
    batch_size=st.sampled_from([2, 4, 6]),
    window=st.integers(0, 3),
    seed=st.integers(0, 9),
)
def test_padded_epochs_hold_every_row_once_on_ranks_of_equal_batches(
    tmp_path, num_rows, rows_per_stripe, world_size, each, batch_size, window, seed
):
    table = write(tmp_path / "table", num_rows, rows_per_stripe)
    ranks = [
        epoch(
            open_loader(
                table,
                rank=rank,
                world_size=world_size,
                batch_size=batch_size,
                streams=each * world_size,
                tail="pad",
                window=window,
                seed=seed,
            )
        )
        for rank in range(world_size)
    ]
    sizes = [[len(batch) for batch in rank] for rank in ranks]
    assert all(size == sizes[0] for size in sizes)
    assert all(sizes[0])
    assert max(sizes[0]) <= batch_size
    slots = list(chain(*chain(*ranks)))
    assert sorted(row for row, weight in slots if weight) == list(range(num_rows))


def test_dropped_tails_leave_full_batches_alone(table):
    ranks = [epoch(open_loader(table, rank=rank, world_size=4)) for rank in range(4)]
    assert {len(batch) for rank in ranks for batch in rank} == {10}
    assert {len(rank) for rank in ranks} == {2}
    rows = Counter(chain(*chain(*ranks)))
    assert set(rows.values()) == {1}
    assert {weight for _, weight in rows} == {1}


@pytest.mark.parametrize("options", [{}, {"shuffle": False}, {"window": 0}])
def test_epochs_differ_where_shuffled_and_seeds_give_the_same(table, options):
    loader = open_loader(table, **options)
    first, second = epoch(loader), epoch(loader)
    assert (first == second) == (options == {"shuffle": False})
    assert [first, second] == [epoch(again := open_loader(table, **options)), epoch(again)]
    assert epoch(open_loader(table, prefetch=False, **options)) == first


def test_threads_load_the_windows_that_none_does(table):
    order, shares = open_loader(table).source.order, Shares(world_size=1, streams=1)
    none, two = (
        RankBatches(table, order, shares, rank=0, prefetch=threads, transform=None)
        for threads in (0, 2)
    )
    before = {*threading.enumerate()}
    for theirs, ours in zip(none.batches(0, 1), two.batches(0, 1), strict=True):
        assert_same_batch(theirs.batch, ours.batch)
    begun = two.batches(0, 0)
    next(begun)
    assert {*threading.enumerate()} - before
    begun.close()
    assert not {*threading.enumerate()} - before


@pytest.mark.parametrize("gently", [False, True])
def test_gentle_threads_load_the_first_window_alone_and_are_less_urgent(table, monkeypatch, gently):
    order, shares = open_loader(table).source.order, Shares(world_size=1, streams=1)
    source = RankBatches(table, order, shares, rank=0, prefetch=2, transform=None, gently=gently)
    decode, gather = BatchReader._decode, BatchReader._gather
    seen, others = [], threading.Event()
    pieces = len(next(order.windows(0, 0, 0)).pieces)

    def decoded(reader, piece):
        seen.append(("decode", _urgency()))
        if len(seen) > pieces:
            others.set()
        return decode(reader, piece)

    def gathered(reader, window, decoded, each):
        decoded = [*decoded]
        if not gently:  # else nobody comes
            assert others.wait(60)
        seen.append(("gather", _urgency()))
        return gather(reader, window, decoded, each)

    monkeypatch.setattr(BatchReader, "_decode", decoded)
    monkeypatch.setattr(BatchReader, "_gather", gathered)
    assert len([*source.batches(0, 0)]) == order.num_batches
    then = "gather" if gently else "decode"
    assert [what for what, _ in seen[: pieces + 1]] == [*["decode"] * pieces, then]
    most = 19 - _urgency()  # a run that is as little urgent as can be has no threads that are less
    less = min(GENTLY, most) if gently and sys.platform == "linux" else 0
    assert {urgency - _urgency() for _, urgency in seen} == {less}


@pytest.mark.parametrize("waits", [True, False])
def test_stripes_are_decoded_two_at_a_time_only_if_a_window_is_waited_for(
    table, monkeypatch, waits
):
    order, shares = open_loader(table).source.order, Shares(world_size=1, streams=1)
    source = RankBatches(table, order, shares, rank=0, prefetch=2, transform=None)
    decode, busy, most, clock = StripeReader.decode, [], [], [0.0]

    def decoded(reader, piece):
        busy.append(piece)
        time.sleep(0.05)
        most.append(len(busy))
        busy.remove(piece)
        return decode(reader, piece)

    def result(window):
        clock[0] += waits
        return window.result()

    def waited(reader, window, used):
        return wait(reader, SimpleNamespace(result=lambda: result(window)), used)

    wait = BatchReader._waited
    monkeypatch.setattr(StripeReader, "decode", decoded)
    monkeypatch.setattr(BatchReader, "_waited", waited)
    # A clock that no load of the machine moves.
    monkeypatch.setattr(batch_reader, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    for _ in source.batches(0, 0):
        clock[0] += not waits
    pieces = len(next(order.windows(0, 0, 0)).pieces)
    later = most[3 * pieces :]  # three windows begin before the second is waited for
    assert max(later) == (min(2, pa.cpu_count()) if waits else 1)


def _urgency() -> int:
    linux = sys.platform == "linux"
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) if linux else 0


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("options", [{}, {"tail": "pad", "streams": 2}, {"window": 0}])
def test_ranges_of_batches_are_read_one_behind_the_other(table, threads, options):
    order = open_loader(table, batch_size=4, **options).source.order
    shares = Shares(world_size=1, streams=order.streams)
    source = RankBatches(table, order, shares, rank=0, prefetch=threads, transform=None)
    last = order.num_batches - 1
    ranges = [range(1, 2), range(3, 6), range(6, 7), range(last, last + 9)]
    wanted = [*chain(*ranges[:3]), last]
    whole = [handed.batch for handed in source.batches(0, 0)]
    found = [handed.batch for handed in source.batches(0, 1, 2, ranges[1:])]
    assert len(found) == len(wanted) < len(whole)
    for number, batch in zip(wanted, found, strict=True):
        assert_same_batch(whole[number], batch)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_test_split_is_whole_and_in_order_whatever_the_options(table, workers):
    options = {"split": "test", "tail": "drop", "shuffle": True, "workers": workers}
    loader = open_loader(table, **options)
    batches = epoch(loader)
    assert len(batches) == len(loader)
    consumers = [batches[first :: max(1, workers)] for first in range(max(1, workers))]
    slots = list(chain(*chain(*consumers)))
    assert [row for row, weight in slots if weight] == list(range(ROWS))


def test_a_step_holds_the_same_rows_at_any_world_size(table):
    def steps(world_size: int) -> list[list[tuple[int, int]]]:
        ranks = [
            epoch(
                open_loader(
                    table,
                    rank=rank,
                    world_size=world_size,
                    batch_size=16 // world_size,
                    streams=4,
                    tail="pad",
                )
            )
            for rank in range(world_size)
        ]
        return [list(chain(*step)) for step in zip(*ranks, strict=True)]

    assert steps(1) == steps(2) == steps(4)


@pytest.mark.ranks
def test_workers_read_their_streams_in_turn(table):
    loader = open_loader(table, workers=2, tail="pad")
    batches = epoch(loader)
    alone = [epoch(open_loader(table, rank=rank, world_size=2, tail="pad")) for rank in range(2)]
    assert batches == list(chain(*zip(*alone, strict=True)))
    assert len(loader) == len(batches)


def test_a_table_without_dense_columns_and_one_without_features(tmp_path):
    for name, schema in {
        "bare": Schema(session_id=None, timestamp=None),
        "sparse": Schema(session_id=None, timestamp=None, sparse=SCHEMA.sparse[:1]),
        "dense": Schema(session_id=None, timestamp=None, dense=("a",)),
    }.items():
        write(tmp_path / name, 20)
        batches = list(open_loader(Table.open(tmp_path / name, schema), batch_size=4))
        assert len(batches) == 5
        assert all(batch.dense.shape == (4, len(schema.dense)) for batch in batches)
        assert all(batch.features.keys() == list(schema.sparse_names) for batch in batches)
        assert all(batch.features.stride() == 4 for batch in batches if schema.sparse)


# States


@pytest.mark.parametrize("workers", [0, 2])
def test_the_kit_for_authors_finds_its_resuming_exact(table, workers):
    check_resume(
        lambda: open_loader(table, batch_size=6, tail="pad", workers=workers),
        positions=None if workers == 0 else (0, 3),
    )


def check_every_position(table, positions, **options) -> None:
    """Resumed anywhere in two epochs, the rest of three is the same."""
    whole = open_loader(table, **options)
    length = len(whole)
    batches, states = [], [saved(whole)]
    for batch in chain(whole, whole, whole):
        batches.append(ids(batch))
        states.append(saved(whole))
    assert len(batches) == 3 * length
    for position in positions(length):
        loader = open_loader(table, **options)
        loader.load_state_dict(states[position])
        assert loader.state_dict() == states[position]
        rest = epoch(loader)
        assert len(rest) == length - position % length
        rest += epoch(loader)
        assert rest == batches[position : position + len(rest)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{}, {"tail": "pad", "streams": 2}, {"shuffle": False, "prefetch": False}]
)
def test_resume_at_every_position(table, options):
    check_every_position(table, lambda length: range(2 * length), **options)


@pytest.mark.ranks
def test_resume_with_workers_mid_epoch_and_at_its_edge(table):
    check_every_position(
        table, lambda length: (0, 1, length - 1, length, length + 2), workers=2, batch_size=8
    )


@pytest.mark.parametrize("workers", [0, 2])
def test_iterating_again_goes_on_where_it_stopped(table, workers):
    options = {"workers": workers, "batch_size": 8, "tail": "pad"}
    whole = open_loader(table, **options)
    expected = [epoch(whole), epoch(whole)]
    loader = open_loader(table, **options)
    first = [ids(batch) for batch in islice(loader, 3)]
    assert first + epoch(loader) == expected[0]
    assert [ids(batch) for batch in islice(loader, len(loader))] == expected[1]
    assert saved(loader)["epoch"] == 2


def test_a_state_moves_to_another_world_size_where_streams_are_fixed(table):
    def at(rank: int, world_size: int):
        return open_loader(
            table, rank=rank, world_size=world_size, batch_size=16 // world_size, streams=4
        )

    alone = at(0, 1)
    next(iter(alone))
    ranks = [at(rank, 2) for rank in range(2)]
    for rank in ranks:
        rank.load_state_dict(saved(alone))
    assert epoch(alone) == [list(chain(*step)) for step in zip(*map(epoch, ranks), strict=True)]


def test_a_state_before_the_first_batch_starts_no_worker(table):
    before = multiprocessing.active_children()
    assert saved(open_loader(table, workers=2))["torchdata"] is None
    assert multiprocessing.active_children() == before


@pytest.mark.ranks
def test_a_closed_loader_leaves_no_worker_in_the_middle_of_an_epoch(table):
    before = set(multiprocessing.active_children())
    loader = open_loader(table, workers=2)
    batches = iter(loader)
    next(batches)
    assert set(multiprocessing.active_children()) > before
    loader.close()
    assert set(multiprocessing.active_children()) == before
    loader.close()  # once more, to no effect


@pytest.mark.ranks
def test_an_iterator_that_nobody_holds_ends_its_workers_at_once(table):
    before = set(multiprocessing.active_children())
    loader = open_loader(table, workers=2)
    gc.disable()  # no cycle may keep it
    try:
        next(iter(loader))
        assert set(multiprocessing.active_children()) == before
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"seed": 7}, "made for seed 0, but here is seed 7. Resume with"),
        ({"window": 3}, "window 2, but here is window 3"),
        ({"tail": "pad"}, "tail drop, but here is tail pad"),
        ({"streams": 2}, "streams 1, rows per stream and batch 10, but here is streams 2"),
        ({"batch_size": 5}, "batch 10, but here is rows per stream and batch 5"),
        ({"world_size": 2}, "streams 1, but here is streams 2"),
        ({"workers": 1}, "workers 0, ranks None, but here is workers 1, ranks 1"),
        ({"split": "test"}, "split train, .*but here is split test"),
    ],
)
def test_a_state_made_for_something_else_is_refused(table, options, reason):
    state = saved(open_loader(table))
    with pytest.raises(DataError, match=reason):
        open_loader(table, **options).load_state_dict(state)


def test_a_state_made_for_another_table_is_refused(table, tmp_path):
    state = saved(open_loader(write(tmp_path / "table", ROWS - 1)))
    with pytest.raises(DataError, match=r"made for table [0-9a-f]{16}, but here is table"):
        open_loader(table).load_state_dict(state)


def test_a_state_made_with_another_vocabulary_is_refused(tmp_path):
    known, copy, rows = (tmp_path / f"{name}.parquet" for name in ("known", "copy", "rows"))
    pq.write_table(pa.table({"value": ["a", "b"]}), known)
    pq.write_table(pa.table({"label": [0.0, 1.0] * 10, "brand": ["a", "b"] * 10}), rows)

    def opened(vocabulary):
        brand = ForeignFeature(name="brand", num_ids=9, ids="vocabulary", vocabulary=vocabulary)
        schema = ForeignSchema(session_id=None, timestamp=None, sparse=(brand,))
        return open_loader(Table.open(rows, schema))

    state = saved(opened(known))
    shutil.copy(known, copy)
    opened(copy).load_state_dict(state)
    pq.write_table(pa.table({"value": ["b", "a", "c"]}), known)
    with pytest.raises(DataError, match="made for table"):
        opened(known).load_state_dict(state)


def test_what_is_no_state_is_refused(table):
    with pytest.raises(DataError, match="not one of the local reader: it has batches, loader, win"):
        open_loader(table).load_state_dict({"loader": {}, "batches": 1, "window": None})


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("whole", [True, False])
def test_blocks_from_all_over_an_epoch_are_its_batches(tmp_path, monkeypatch, workers, whole):
    """Read whole or jumped to, each block holds batches of the epoch, as they would come."""
    if not whole:
        monkeypatch.setattr(rank_batches, "WINDOW_ROWS", 1)
    table = write(tmp_path / "table", 2048, 64)
    loader = open_loader(table, rank=1, world_size=2, batch_size=16, workers=workers)
    assert isinstance(loader, SpreadsBatches)
    assert loader.places == (64 if whole else 8)
    state = loader.state_dict()
    found = [(block, ids(batch)) for block, batch in loader.spread(range(6), 2)]
    again = [(block, ids(batch)) for block, batch in loader.spread(range(2, 6), 2)]
    assert sorted(one for one in found if one[0] >= 2) == sorted(again)
    assert sorted(block for block, _ in found) == sorted([*range(6)] * 2)
    early = [ids(batch) for _, batch in loader.spread(range(64), 1, 10)]
    assert loader.state_dict() == state
    every = [ids(batch) for batch in loader]
    places = [every.index(batch) for _, batch in found]
    assert len(set(places)) == 12
    assert max(places) - min(places) > 16
    assert list(loader.spread(range(1000, 1002), 2)) == []
    assert sorted(map(every.index, early)) == [*range(10)]

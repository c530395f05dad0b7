"""Rung 1 to 3 (values, properties, worker processes): the local reader's batches and states."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
import time
from collections import Counter
from itertools import chain, islice
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recd_plugins.data.batch import Batch
from recd_plugins.data.loader import LocalReaderConfig, build_local_reader
from recd_plugins.data.schema import Schema, SparseFeature
from recd_plugins.data.table import Table, TableWriter
from recd_plugins.errors import DataError, PluginError, RegistryError
from recd_plugins.slots import Context
from recd_plugins.testing.resume import check_resume

SCHEMA = Schema(
    session_id=None,
    timestamp=None,
    dense=("a", "b"),
    sparse=(SparseFeature(name="row", num_ids=10_000), SparseFeature(name="history", num_ids=50)),
)
ROWS = 103


def history(row: int) -> list[int]:
    return [(row + i) % 50 for i in range(row % 4)]


def write(folder: Path, num_rows: int, rows_per_stripe: int = 8) -> Table:
    """Row r has id r, label r % 2, dense (r, -r) and a history of r % 4 ids."""
    rows = range(num_rows)
    with TableWriter(folder, SCHEMA, rows_per_stripe=rows_per_stripe, stripes_per_file=3) as writer:
        writer.write(
            pa.table(
                {
                    "label": [row % 2 for row in rows],
                    "a": list(rows),
                    "b": [-row for row in rows],
                    "row": [[row] for row in rows],
                    "history": pa.array([history(row) for row in rows], pa.list_(pa.int64())),
                }
            )
        )
    return Table.open(folder)


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> Table:
    return write(tmp_path_factory.mktemp("data") / "table", ROWS)


def open_loader(
    table, *, rank=0, world_size=1, batch_size=10, split="train", seed=0, transform=None, **options
):
    reader = build_local_reader(LocalReaderConfig(**options), Context(seed=seed))
    return reader.loader(
        table,
        rank=rank,
        world_size=world_size,
        batch_size=batch_size,
        split=split,
        transform=transform,
    )


def ids(batch: Batch) -> list[tuple[int, int]]:
    """(row, weight) of each sample, once each sample has been found to be that row."""
    lists = {
        key: [part.tolist() for part in one.values().split(one.lengths().tolist())]
        for key, one in batch.features.to_dict().items()
    }
    rows = [row for (row,) in lists["row"]]
    assert lists["history"] == [history(row) for row in rows]
    assert batch.labels.tolist() == [row % 2 for row in rows]
    assert batch.dense.tolist() == [[row, -row] for row in rows]
    assert batch.dense.dtype == batch.labels.dtype == batch.weights.dtype == torch.float32
    return list(zip(rows, map(int, batch.weights.tolist()), strict=True))


def epoch(loader) -> list[list[tuple[int, int]]]:
    return [ids(batch) for batch in loader]


def saved(loader) -> dict:
    """The state as a checkpoint brings it back."""
    return json.loads(json.dumps(loader.state_dict()))


# Batches


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
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


@pytest.mark.parametrize(
    "options", [{}, {"tail": "pad", "streams": 2}, {"shuffle": False, "prefetch": False}]
)
def test_resume_at_every_position(table, options):
    check_every_position(table, lambda length: range(2 * length), **options)


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


@pytest.mark.parametrize(
    ("options", "said"),
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
def test_a_state_made_for_something_else_is_refused(table, options, said):
    state = saved(open_loader(table))
    with pytest.raises(DataError, match=said):
        open_loader(table, **options).load_state_dict(state)


def test_a_state_made_for_another_table_is_refused(table, tmp_path):
    state = saved(open_loader(write(tmp_path / "table", ROWS - 1)))
    with pytest.raises(DataError, match=r"made for table [0-9a-f]{16}, but here is table"):
        open_loader(table).load_state_dict(state)


def test_what_is_no_state_is_refused(table):
    with pytest.raises(DataError, match="not one of the local reader"):
        open_loader(table).load_state_dict({"epoch": 1})


# Errors


def damage(file: Path, group: int) -> None:
    """Flip the bits of some bytes in the middle of a row group's pages."""
    columns = pq.read_metadata(file).row_group(group)
    column = columns.column(columns.num_columns - 2)  # the rows' ids
    middle = column.data_page_offset + column.total_compressed_size // 2
    content = bytearray(file.read_bytes())
    content[middle : middle + 4] = bytes(byte ^ 0xFF for byte in content[middle : middle + 4])
    file.write_bytes(content)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_damaged_page_names_file_and_row_group(tmp_path, workers):
    table = write(tmp_path / "table", ROWS)
    damage(table.files[1], 2)
    loader = open_loader(table, shuffle=False, workers=workers)
    with pytest.raises(DataError) as caught:
        epoch(loader)
    message = str(caught.value)
    assert message.startswith(f"{table.files[1]}, row group 2: cannot be read (")
    assert message.endswith("write it again, or take it out of the table.")
    assert "Traceback" not in message


def test_any_damage_within_the_pages_is_noticed_or_does_no_harm(tmp_path):
    """Checksums cover a page's data; of its header some fields are never read."""
    table = write(tmp_path / "table", 24, rows_per_stripe=24)
    (file,) = table.files
    whole = file.read_bytes()
    columns = pq.read_metadata(file).row_group(0)
    column = columns.column(columns.num_columns - 1)
    pages = range(column.data_page_offset, column.data_page_offset + column.total_compressed_size)
    said = []
    for position in pages[::4]:
        content = bytearray(whole)
        content[position] ^= 0xFF
        file.write_bytes(content)
        try:
            assert len(epoch(open_loader(table, batch_size=4, prefetch=False))) == 6
        except DataError as error:
            said.append(str(error))
    assert len(said) > len(pages) // 8
    assert all(message.startswith(f"{file}, row group 0: cannot be read") for message in said)


@pytest.mark.parametrize("kept", [0.9, 0.5, 0.0])
def test_a_file_cut_short_after_the_table_was_opened(tmp_path, kept):
    table = write(tmp_path / "table", ROWS)
    content = table.files[-1].read_bytes()
    table.files[-1].write_bytes(content[: int(kept * len(content))])
    with pytest.raises(DataError, match=r"part-00004\.parquet, row group \d: cannot be read"):
        epoch(open_loader(table))


def test_a_file_written_anew_after_the_table_was_opened(tmp_path):
    table = write(tmp_path / "table", 20)
    write(tmp_path / "table", 19)
    with pytest.raises(DataError, match="row group 2: has 3 rows, but had 4"):
        epoch(open_loader(table))


def foreign(folder: Path, **columns) -> Table:
    """A table without statistics, four rows a row group."""
    rows = {"label": [0.0] * 8, "a": [0] * 8, "b": [0] * 8, "row": [[1]] * 8, "history": [[2]] * 8}
    folder.mkdir()
    pq.write_table(
        pa.table(rows | columns),
        folder / "f.parquet",
        row_group_size=4,
        write_statistics=False,
    )
    return Table.open(folder, SCHEMA)


def test_a_foreign_table_without_statistics_is_read(tmp_path):
    batches = list(open_loader(foreign(tmp_path / "t", label=[1] * 8), batch_size=4))
    assert [batch.labels.tolist() for batch in batches] == [[1.0] * 4] * 2


@pytest.mark.parametrize("worst", [-1, 50])
def test_ids_out_of_range_are_named_where_no_statistics_tell(tmp_path, worst):
    table = foreign(tmp_path / "t", history=[[2]] * 5 + [[], [3, worst], [4]])
    with pytest.raises(DataError, match=rf"f\.parquet, row group 1: feature 'history' .*{worst},"):
        epoch(open_loader(table, batch_size=4))


@pytest.mark.parametrize("column", ["label", "a", "row", "history"])
def test_nulls_name_file_row_group_and_column(tmp_path, column):
    values = [0.0] * 8 if column in ("label", "a") else [[1]] * 8
    table = foreign(tmp_path / "t", **{column: [*values[:7], None]})
    with pytest.raises(DataError, match=rf"f\.parquet, row group 1: '{column}': "):
        epoch(open_loader(table, batch_size=4))


def test_a_table_too_small_for_one_batch(table):
    with pytest.raises(DataError, match=r"103 rows fill no batch of 60 .* 2 consumers.*pad"):
        open_loader(table, world_size=2, batch_size=60)
    assert len(open_loader(table, world_size=2, batch_size=60, tail="pad")) == 1


def test_streams_that_do_not_fit(table):
    with pytest.raises(RegistryError, match=r"reader\.streams is 3, but must be a multiple of 2"):
        open_loader(table, world_size=2, streams=3)


# Transforms, threads, random numbers


def negate(batch: Batch) -> Batch:
    batch.labels.neg_()
    return batch


def complain(batch: Batch) -> Batch:
    raise PluginError("the transform says no.")


@pytest.mark.parametrize("workers", [0, 2])
def test_the_transform_sees_every_batch(table, workers):
    options = {"batch_size": 8, "workers": workers}
    plain = [batch.labels for batch in open_loader(table, **options)]
    negated = [batch.labels for batch in open_loader(table, transform=negate, **options)]
    assert all(map(torch.equal, [-labels for labels in plain], negated))


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_of_the_transform_arrives_as_it_is(table, workers):
    with pytest.raises(PluginError, match=r"^the transform says no\.$"):
        next(iter(open_loader(table, transform=complain, workers=workers)))


def test_a_transform_that_cannot_travel_is_refused(table):
    with pytest.raises(PluginError, match=r"cannot be sent to the reader's workers .*workers to 0"):
        open_loader(table, transform=lambda batch: batch, workers=1)


def test_batches_of_workers_carry_no_more_than_themselves(table):
    for batch in islice(open_loader(table, workers=1), 3):
        features = batch.features
        for part in (
            batch.dense,
            batch.labels,
            batch.weights,
            features.values(),
            features.lengths(),
        ):
            assert part.untyped_storage().nbytes() == part.nbytes


def test_no_thread_outlives_its_iterator(table):
    def readers() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if "recd-reader" in thread.name]

    running = iter(open_loader(table))
    next(running)
    assert len(readers()) == 1
    running.close()
    epoch(open_loader(table))
    del running
    assert readers() == []


@pytest.mark.parametrize("transform", [None, complain])
def test_workers_end_with_their_iterator_also_after_an_error(table, transform):
    loader = open_loader(table, batch_size=4, workers=2, transform=transform)
    running = iter(loader)
    before = set(multiprocessing.active_children())
    caught = None
    try:
        next(running)
    except PluginError as error:
        caught = error  # and with it the traceback, its frames and all they know
    assert (caught is None) == (transform is None)
    start = time.monotonic()
    running.close()
    assert set(multiprocessing.active_children()) == before
    assert time.monotonic() - start < 4  # torchdata gives up on a worker after 5 s


def read_then_die(folder: Path, pids: Connection) -> None:
    batches = iter(open_loader(Table.open(folder), batch_size=4, workers=2))
    next(batches)
    pids.send([worker.pid for worker in multiprocessing.active_children()])
    os.kill(os.getpid(), signal.SIGKILL)


def test_workers_of_a_killed_rank_end_too(table):
    context = multiprocessing.get_context("forkserver")
    ours, theirs = context.Pipe()
    rank = context.Process(target=read_then_die, args=(table.path, theirs))
    rank.start()
    workers = ours.recv()
    rank.join()
    assert rank.exitcode == -signal.SIGKILL
    assert len(workers) == 2
    deadline = time.monotonic() + 5
    while any(Path(f"/proc/{pid}").exists() for pid in workers):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_the_trainers_random_numbers_are_left_alone(table):
    torch.manual_seed(1)
    np.random.seed(1)
    states = torch.get_rng_state(), np.random.get_state()[1].tolist()
    epoch(open_loader(table))
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.random.get_state()[1].tolist() == states[1]

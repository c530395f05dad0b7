"""Rung 1 and 3 (values, worker processes): what goes wrong while reading, and who is left."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from forked import start_server
from known_rows import ROWS, SCHEMA, epoch, open_loader, write

from recd_plugins.compat.copied_server import copy_as_fork_server
from recd_plugins.data.batch import Batch
from recd_plugins.data.parquet.opened_file import opened as opened_parquet
from recd_plugins.data.preprocess.batch_transform import BatchTransform
from recd_plugins.data.reader.batch_reader import DECODING
from recd_plugins.data.table import Table
from recd_plugins.data.table_writer import write_table
from recd_plugins.errors import DataError, PluginError, RegistryError
from recd_plugins.sparse.row_wise import RowWise

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


@pytest.mark.parametrize("by", ["stripe", "batches"])
def test_a_file_that_is_written_over_while_it_is_open_is_told(tmp_path, by):
    file, other = tmp_path / "a.parquet", tmp_path / "b.parquet"
    for path, first in ((file, 0), (other, 1000)):  # which are equally long
        ids = pa.table({"a": range(first, first + 40)})
        pq.write_table(ids, path, row_group_size=8, compression="none", use_dictionary=False)

    def read(opened):
        if by == "stripe":
            return opened.read_row_group(2, columns=["a"])["a"].to_pylist()
        batches = opened.iter_batches(row_groups=[2], columns=["a"])
        return pa.Table.from_batches(batches)["a"].to_pylist()

    with opened_parquet(file) as opened:
        os.replace(shutil.copy(file, tmp_path / "copy"), file)  # as it was to who has it open
        assert read(opened) == [*range(16, 24)]
    with opened_parquet(file) as opened:
        os.utime(file, (0, 0))  # only touched
        assert read(opened) == read(opened) == [*range(16, 24)]
        for over in (other.read_bytes(), b""):  # empty, as where a copy over it begins
            file.write_bytes(over)
            with pytest.raises(
                DataError, match=r"a\.parquet: has changed since the table was open"
            ):
                read(opened)


@dataclass(frozen=True)
class Ends:
    """A transform that ends its process."""

    end: Callable[[int], object]
    code: int

    def __call__(self, batch: Batch) -> Batch:
        self.end(self.code)
        return batch


@pytest.mark.parametrize(
    ("ends", "how"),
    [
        (Ends(sys.exit, 3), "with exit code 3"),
        (Ends(signal.raise_signal, signal.SIGSEGV), "by SIGSEGV"),
    ],
    ids=["exit", "SIGSEGV"],
)
def test_a_worker_that_ends_is_told_of_in_one_message(tmp_path, ends, how, monkeypatch):
    # A worker that is no child of ours is looked after each time that 5 s bring no batch.
    waits = (
        "torchdata.stateful_dataloader.stateful_dataloader._StatefulMultiProcessingDataLoaderIter"
    )
    monkeypatch.setattr(f"{waits}._try_get_data.__defaults__", (0.2,))
    loader = open_loader(write(tmp_path / "table", ROWS), workers=2, transform=ends)
    says = rf"^reader\.workers: a worker was ended {how} while it made batches \(.*\)\. Check "
    before = multiprocessing.active_children()
    with pytest.raises(PluginError, match=says):
        epoch(loader)
    assert {*multiprocessing.active_children()} <= {*before}


def test_any_damage_within_the_pages_is_noticed_or_does_no_harm(tmp_path):
    """Checksums cover a page's data; of its header some fields are never read."""
    table = write(tmp_path / "table", 24, rows_per_stripe=24)
    (file,) = table.files
    whole = file.read_bytes()
    columns = pq.read_metadata(file).row_group(0)
    column = columns.column(columns.num_columns - 1)
    pages = range(column.data_page_offset, column.data_page_offset + column.total_compressed_size)
    messages = []
    for position in pages[::4]:
        content = bytearray(whole)
        content[position] ^= 0xFF
        file.write_bytes(content)
        try:
            assert len(epoch(open_loader(table, batch_size=4, prefetch=False))) == 6
        except DataError as error:
            messages.append(str(error))
    assert len(messages) > len(pages) // 8
    assert all(message.startswith(f"{file}, row group 0: cannot be read") for message in messages)


@pytest.mark.parametrize("kept", [0.9, 0.5, 0.0])
def test_a_file_cut_short_after_the_table_was_opened(tmp_path, kept):
    table = write(tmp_path / "table", ROWS)
    content = table.files[-1].read_bytes()
    table.files[-1].write_bytes(content[: int(kept * len(content))])
    with pytest.raises(DataError, match=r"part-00004\.parquet: not a whole Parquet file"):
        epoch(open_loader(table))


def test_a_file_written_anew_after_the_table_was_opened(tmp_path):
    table = write(tmp_path / "table", 20)
    write(tmp_path / "table", 19)
    with pytest.raises(DataError, match=r"part-00000\.parquet: has changed since"):
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


@pytest.mark.parametrize("tail", ["drop", "pad"])
def test_a_table_without_rows_is_not_told_to_pad(tmp_path, tail):
    with pytest.raises(DataError, match="holds no rows, so nothing can be trained on it"):
        open_loader(write_table(tmp_path / "none", SCHEMA, []), tail=tail)


def test_a_table_too_small_for_one_batch(table):
    with pytest.raises(DataError, match=r"103 rows fill no batch of 60 .* 2 consumers.*pad"):
        open_loader(table, world_size=2, batch_size=60)
    assert len(open_loader(table, world_size=2, batch_size=60, tail="pad")) == 1


def test_a_table_of_one_row_that_is_too_small(tmp_path):
    one = write(tmp_path / "one", 1)
    with pytest.raises(DataError, match="its 1 row fills no batch of 2 on each of 1 consumer"):
        open_loader(one, batch_size=2)


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


class Locked:
    """A transform that holds what no other process can have."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __call__(self, features):
        return features


def test_the_part_of_the_transforms_that_cannot_travel_is_named(table):
    free, locked = (
        RowWise(one, who=f"preprocess[{n}]: 'x'") for n, one in enumerate((abs, Locked()))
    )
    transform = BatchTransform([(["item"], free), (["item"], locked)])
    says = r"^preprocess\[1\]: 'x': the code that transforms .* \(cannot pickle '_thread.lock'"
    with pytest.raises(PluginError, match=says):
        open_loader(table, transform=transform, workers=1)


@pytest.mark.ranks
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
    def threads(name: str) -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if name in thread.name]

    running = iter(open_loader(table))
    next(running)
    assert 1 <= len(threads("recd-decoding")) <= min(DECODING, pa.cpu_count())
    assert len(threads("recd-gathering")) == 1
    assert bool(threads("recd-copies")) == (pa.cpu_count() > 1)
    running.close()
    epoch(open_loader(table))
    del running
    assert [*map(threads, ("recd-decoding", "recd-gathering", "recd-copies"))] == [[], [], []]


@pytest.mark.ranks
@pytest.mark.parametrize("transform", [None, complain])
def test_workers_end_with_their_iterator_also_after_an_error(table, transform, monkeypatch):
    # torchdata would end one by a signal that does not end by itself in 5 s, however busy it is.
    monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 120.0)
    loader = open_loader(table, batch_size=4, workers=2, transform=transform)
    running = iter(loader)
    before = set(multiprocessing.active_children())
    caught = None
    try:
        next(running)
    except PluginError as error:
        caught = error  # and with it the traceback, its frames and all they know
    assert (caught is None) == (transform is None)
    workers = set(multiprocessing.active_children()) - before
    running.close()
    assert set(multiprocessing.active_children()) == before
    assert {worker.exitcode for worker in workers} <= {0}


def read_then_die(folder: Path, pids: Connection) -> None:
    copy_as_fork_server()  # its workers' server, which would import what is here already
    batches = iter(open_loader(Table.open(folder), batch_size=4, workers=2))
    next(batches)
    pids.send([worker.pid for worker in multiprocessing.active_children()])
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_workers_of_a_killed_rank_end_too(table):
    start_server()
    context = multiprocessing.get_context("forkserver")
    ours, theirs = context.Pipe()
    rank = context.Process(target=read_then_die, args=(table.path, theirs))
    rank.start()
    workers = ours.recv()
    rank.join()
    assert rank.exitcode == -signal.SIGKILL
    assert len(workers) == 2
    deadline = time.monotonic() + 300  # they end within a second, but the machine may be busy
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

"""Rung 3 (worker processes): a stripe that cannot be read ends the epoch, or is left out."""

from __future__ import annotations

import shutil
import warnings
from itertools import islice
from pathlib import Path
from threading import Thread

import pyarrow.parquet as pq
import pytest
import torch
from service_jobs import stack_of, until

from recd_dsi.service.credentials import NO_CREDENTIALS
from recd_dsi.service.fleet import Fleet
from recd_dsi.service.worker import Worker, WorkerOptions
from recd_plugins.data.batch import Batch
from recd_plugins.errors import DataError, RegistryError
from recd_plugins.notices import NoticeWarning
from recd_plugins.testing.resume import assert_same_batch

pytestmark = [
    pytest.mark.ranks,
    pytest.mark.filterwarnings("ignore:reader. rank:recd_plugins.notices.NoticeWarning"),
]
SERVICE = {"use": "service", "workers": 2, "patience": 120}
DAMAGED, ROWS = 3, range(300, 400)
"""The stripe, and what `item` is in its rows."""


@pytest.fixture
def damaged(tables: Path, tmp_path: Path) -> Path:
    """The tables, one stripe of which does not decode."""
    shutil.copytree(tables, tmp_path / "tables")
    damage(tmp_path / "tables", DAMAGED)
    return tmp_path / "tables"


def damage(tables: Path, *stripes: int) -> None:
    """Write over some of the labels of these stripes."""
    (file,) = (tables / "train").glob("*.parquet")
    for stripe in stripes:
        group = pq.read_metadata(file).row_group(stripe)
        columns = [group.column(number) for number in range(group.num_columns)]
        column = next(one for one in columns if one.path_in_schema == "label")
        with file.open("r+b") as bytes_of_file:
            bytes_of_file.seek(column.data_page_offset + column.total_compressed_size // 2)
            bytes_of_file.write(b"\xff" * 16)


def test_a_stripe_that_is_left_out_weighs_nothing_and_all_else_stays(
    tables: Path, damaged: Path
) -> None:
    skip, left_out = stack_of(damaged, {**SERVICE, "damaged": "skip"}, "partial"), []
    notices: list[str] = []
    whole = stack_of(tables, {"use": "local"}, "partial")
    for rank in (0, 1):
        theirs, ours = whole.loader(rank, 2), skip.loader(rank, 2)
        for _ in range(2):  # epochs
            with warnings.catch_warnings(record=True) as found:
                warnings.simplefilter("always")
                there = list(ours)
            notices += [str(one.message) for one in found if one.category is NoticeWarning]
            assert len(there) == len(theirs)
            for batch, clean in zip(there, theirs, strict=True):
                gone, items = batch.weights == 0, clean.features["item"].values()
                stripe = torch.tensor([int(item) in ROWS for item in items])
                assert torch.equal(gone & (clean.weights > 0), stripe & (clean.weights > 0))
                assert torch.equal(batch.dense[~gone], clean.dense[~gone])
                assert torch.equal(batch.features["item"].values(), items[~gone])
                assert not batch.features["item"].lengths()[gone].any()
                left_out.append(int(gone.sum()))
        assert ours.state_dict()["left_out"] == [DAMAGED]
        assert ours.read_here == 0
    assert [f"leaves out stripe {DAMAGED} from" in one for one in notices] == [True, True]
    assert sum(left_out) > 150  # of 200 in two epochs, less what fills no batch


def test_a_resumed_run_leaves_out_the_same_though_the_file_is_whole_again(
    tables: Path, damaged: Path
) -> None:
    skip = {**SERVICE, "damaged": "skip"}
    loader = stack_of(damaged, skip, "partial").loader(0, 1)
    batches = iter(loader)
    while "left_out" not in loader.state_dict():
        next(batches)
    state, rest = loader.state_dict(), list(islice(batches, 8))
    assert any((batch.weights == 0).any() for batch in rest)
    for reader in (skip, {"use": "local"}):
        resumed = stack_of(tables, reader, "partial").loader(0, 1)
        resumed.load_state_dict(state)
        for batch, same in zip(rest, resumed, strict=False):
            assert_same_batch(batch, same)
        assert resumed.state_dict()["left_out"] == [DAMAGED]


def test_a_stripe_is_not_left_out_on_the_word_of_one_worker_while_another_is_away(
    tables: Path, damaged: Path
) -> None:
    (file,) = (damaged / "train").glob("*.parquet")
    stack = stack_of(damaged, {**SERVICE, "damaged": "skip"})
    loader, fleet = stack.loader(0, 1), Fleet(NO_CREDENTIALS, 2)
    loader.fleet = lambda: fleet
    workers = [Worker(stack.delivery(), WorkerOptions())]
    fleet.set_workers({0: workers[0].address})
    found: list[Batch] = []
    taking = Thread(target=lambda: found.extend(loader), daemon=True)
    taking.start()
    until(lambda: loader.fetching is not None and loader.fetching._next in loader.fetching._errors)
    whole = shutil.copy(tables / "train" / file.name, file.with_suffix(".whole"))
    whole.replace(file)
    workers.append(Worker(stack.delivery(), WorkerOptions()))
    fleet.set_workers({seat: worker.address for seat, worker in enumerate(workers)})
    taking.join(240.0)
    fleet.close()
    for worker in workers:
        worker.stop()
    for theirs, ours in zip(stack_of(tables, {"use": "local"}).loader(0, 1), found, strict=True):
        assert_same_batch(theirs, ours)
    assert "left_out" not in loader.state_dict()


def test_an_epoch_ends_with_one_message_where_damage_is_an_error(damaged: Path) -> None:
    loader = stack_of(damaged, SERVICE).loader(0, 1)
    with pytest.raises(DataError, match=rf"row group {DAMAGED}: cannot be read"):
        list(loader)


def test_more_than_a_twentieth_is_not_left_out(damaged: Path) -> None:
    damage(damaged, DAMAGED + 5)
    loader = stack_of(damaged, {**SERVICE, "damaged": "skip"}).loader(0, 1)
    with pytest.raises(DataError, match=r"2 of 15 stripes cannot be read.* 5% at most"):
        list(loader)


def test_sessions_that_stay_together_allow_no_skip(tables: Path) -> None:
    with pytest.raises(RegistryError, match=r"sessions: whole.*damaged: raise"):
        stack_of(tables, {**SERVICE, "damaged": "skip", "sessions": "whole"})

"""Rung 1 to 3 (values, worker processes): the service's batches are the local reader's."""

from __future__ import annotations

import threading
from itertools import islice

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from service_jobs import KINDS, stack_of, until

from recd_dedup.dedup.chosen import Advised
from recd_dsi.service.reader import ServiceReaderConfig
from recd_plugins.errors import CapabilityError, DataError, RegistryError
from recd_plugins.registry.delivery import Delivery
from recd_plugins.testing.resume import assert_same_batch, check_resume

pytestmark = pytest.mark.ranks
SERVICE = {"use": "service", "workers": 2, "patience": 120}


def assert_same(theirs, ours) -> None:
    theirs, ours = list(theirs), list(ours)
    assert len(theirs) == len(ours) > 0
    for left, right in zip(theirs, ours, strict=True):
        assert_same_batch(left, right)


@pytest.mark.parametrize("kind", KINDS)
def test_workers_make_the_local_readers_batches(tables, kind):
    local, service = stack_of(tables, {"use": "local"}, kind), stack_of(tables, SERVICE, kind)
    for rank, world_size, split in (
        (0, 1, "train"),
        (0, 2, "train"),
        (1, 2, "train"),
        (0, 1, "test"),
    ):
        theirs = local.loader(rank, world_size, split)
        ours = service.loader(rank, world_size, split)
        assert len(theirs) == len(ours)
        for _ in range(2):  # epochs
            assert_same(theirs, ours)
        assert ours.read_here == 0


@pytest.mark.parametrize("order", [{"sessions": "whole"}, {"tail": "pad", "streams": 4}])
def test_any_order_of_rows_is_kept_over_the_wire(tables, order):
    theirs = stack_of(tables, {"use": "local", **order}).loader(0, 1)
    reader = {**SERVICE, **order, "shared_memory_mib": 0}
    assert_same(theirs, stack_of(tables, reader).loader(0, 1))


def test_a_state_is_resumed_anywhere_in_the_epoch(tables):
    stack = stack_of(tables, SERVICE)
    check_resume(lambda: stack.loader(0, 1), positions=[0, 1, 20, len(stack.loader(0, 1))])


def test_states_go_from_one_reader_to_the_other(tables):
    stacks = [stack_of(tables, {"use": "local"}), stack_of(tables, SERVICE)]
    for first, second in (stacks, stacks[::-1]):
        loader = first.loader(0, 1)
        batches = iter(loader)
        list(islice(batches, 17))
        state = loader.state_dict()
        resumed = second.loader(0, 1)
        resumed.load_state_dict(state)
        assert_same(batches, resumed)
        assert_same(loader, resumed)


def test_a_state_of_other_streams_is_refused(tables):
    state = stack_of(tables, SERVICE).loader(0, 2).state_dict()
    with pytest.raises(DataError, match="made for streams 2"):
        stack_of(tables, SERVICE).loader(0, 1).load_state_dict(state)


def backends() -> int:
    """How many of this process start workers."""
    return sum(thread.name == "recd-backend" for thread in threading.enumerate())


def test_workers_that_end_before_they_serve_are_reported(tables, tmp_path, monkeypatch):
    monkeypatch.setattr("recd_dsi.service.local_backend.PAUSE", 0.1)  # before one is started again
    plugin = tmp_path / "ends.py"
    plugin.write_text(
        "import multiprocessing, os\n"
        "from recd_plugins import hookimpl\n"
        "@hookimpl\n"
        "def recd_preprocess():\n"
        "    return []\n"
        "if multiprocessing.current_process().name == 'recd-worker':\n"
        "    os._exit(7)\n"
    )
    stack = stack_of(tables, {"use": "service", "workers": 1}, plugins=[str(plugin)])
    loader, before = stack.loader(0, 1), backends()
    with pytest.raises(CapabilityError, match=r"3 processes .* exit code 7.*__main__"):
        loader.fleet()
    until(lambda: backends() == before)  # none is started any more


def test_ranks_are_copied_for_workers_that_they_fork_alone() -> None:
    assert ServiceReaderConfig(workers=3).forks
    assert not ServiceReaderConfig(coordinator="127.0.0.1:1").forks
    assert not ServiceReaderConfig(backend="ray").forks


@pytest.mark.filterwarnings(
    "ignore::recd_plugins.notices.NoticeWarning"
)  # that nothing is worth it
@pytest.mark.parametrize(
    "dedup",
    [
        "exact",
        {"use": "exact"},
        {"use": "partial", "groups": "auto"},
        {"use": "exact", "features": ["history", "times"], "min_factor": 2.0, "weigh": "bytes"},
    ],
)
@pytest.mark.parametrize("found", [(), (("history", "times"),)])
def test_workers_have_the_groups_that_were_advised(tables, monkeypatch, dedup, found):
    """However `auto` is written, and where nothing is worth it."""
    monkeypatch.setattr("recd_dedup.dedup.chosen._kept", lambda *_: Advised(found, "", ()))
    monkeypatch.setitem(KINDS, "advised", {"dedup": dedup})
    delivery = stack_of(tables, SERVICE, "advised").delivery()
    monkeypatch.undo()
    transform = Delivery.from_text(delivery.text()).open().transform
    assert (transform.takes if transform else frozenset()) == {
        name for one in found for name in one
    }


def test_over_another_file_a_transform_makes_another_delivery(tables, tmp_path, monkeypatch):
    file = tmp_path / "known.parquet"
    step = {"use": "map_id", "features": ["times"], "file": str(file), "other": 9}
    monkeypatch.setitem(KINDS, "of a file", {"preprocess": [step]})
    deliveries = []
    for becomes in ([400, 2], [2, 400], [400, 2]):
        pq.write_table(pa.table({"id": [3, 4], "becomes": becomes}), file)
        deliveries.append(stack_of(tables, SERVICE, "of a file").delivery())
    first, second, third = deliveries
    assert first.digest == third.digest != second.digest
    first.open()
    with pytest.raises(RegistryError, match=r"preprocess: .* with known\.parquet .*same files"):
        second.open()

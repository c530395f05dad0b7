"""Value tests: workers of a machine that shares no memory, or too little, say so, and nobody waits
for their batches."""

from __future__ import annotations

import errno
import multiprocessing
import os
from types import SimpleNamespace

import pytest
from known_rows import open_loader

from recd_plugins.data.reader import rank_batches
from recd_plugins.data.reader.shared_tensors import share_memory
from recd_plugins.errors import CapabilityError

FULL = "unable to allocate shared memory(shm) for file </torch_1>: No space left on device (28)"


def test_a_worker_hands_over_an_error_in_place_of_a_batch_that_has_no_room(table, monkeypatch):
    def refuse(tensor):
        raise RuntimeError(f"{FULL}\nException raised from ...")

    monkeypatch.setattr("torch.Tensor.share_memory_", refuse)
    monkeypatch.setattr(rank_batches, "get_worker_info", lambda: SimpleNamespace(id=0))
    (handed,) = open_loader(table).source.batches(0, 0)
    assert isinstance(handed.batch, CapabilityError)
    assert str(handed.batch).startswith("reader.workers: what a worker reads goes to its rank in")
    assert f"({FULL})" in str(handed.batch)


def test_workers_do_not_start_where_nothing_can_be_shared(table, monkeypatch):
    def refuse():
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr("multiprocessing.Lock", refuse)
    with pytest.raises(CapabilityError, match=r"gives none \(Read-only file system\)"):
        next(iter(open_loader(table, workers=1)))
    next(iter(open_loader(table)))


def test_workers_do_not_start_where_their_queues_have_no_room(table, monkeypatch):
    """The first lock has some, and torchdata's iterator would fail half made."""
    made = []
    lock = multiprocessing.Lock

    def refuse(*_):
        if len(made) == 10:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        made.append(lock())
        return made[-1]

    monkeypatch.setattr("multiprocessing.Lock", refuse)
    with pytest.raises(CapabilityError, match=r"gives none \(No space left on device\)"):
        next(iter(open_loader(table, workers=1)))


def test_all_tensors_of_a_batch_are_shared(table):
    batch = next(iter(open_loader(table)))
    share_memory(batch)
    assert batch.labels.is_shared()
    assert batch.features.values().is_shared()

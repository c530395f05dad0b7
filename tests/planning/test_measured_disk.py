"""Ladder: what a row takes by a clock, and on a real disk; then two gloo ranks, one without a
folder."""

from __future__ import annotations

import math
import mmap
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from on_disk import on_disk

from recd_plugins.errors import CapabilityError
from recd_plugins.planning.cluster import measured_disk
from recd_plugins.planning.cluster.measured_disk import mapped_row_ns
from recd_plugins.planning.cluster.measured_topology import measure_topology
from recd_plugins.testing.gloo import GlooPool


def test_pages_leave_memory_and_no_file_stays(tmp_path: Path) -> None:
    on_disk(tmp_path)
    assert 0 <= mapped_row_ns(tmp_path) < math.inf
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("step", "steps"), [(0.003, 8), (0.3, 2)])
def test_a_row_takes_what_reads_and_writes_take_beyond_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: float, steps: int
) -> None:
    """As many steps as half a second holds; one of them waits for something else."""
    seconds, taken = [0.0], []
    memory = np.zeros((measured_disk.PAGES, measured_disk.PAGE // 4), np.float32)

    def stepped(table: Any, *_: Any) -> None:
        on_disk = not table.flags.owndata
        seconds[0] += step if on_disk else 0.001
        taken.append(on_disk)
        if len(taken) == 1 and steps == 8:
            seconds[0] += 0.1

    flushes = iter([0.005, 0.001])
    monkeypatch.setattr(measured_disk, "time", SimpleNamespace(perf_counter=lambda: seconds[0]))
    monkeypatch.setattr(measured_disk, "_step", stepped)
    monkeypatch.setattr(measured_disk, "_flushed", lambda _: next(flushes))
    found = measured_disk._measured(mmap.mmap(-1, memory.nbytes), memory)
    assert taken == [True, False] * steps
    assert found == pytest.approx((step - 0.001 + 0.004 / steps) / measured_disk.AT_ONCE * 1e9)


def test_what_stays_in_memory_is_no_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "posix_fadvise", lambda *_: None)
    with pytest.raises(CapabilityError, match="keeps the pages of files there in memory"):
        mapped_row_ns(tmp_path)


def refused(folder: Path) -> str:
    """On a rank: why the disk could not be measured, where rank 1 has no such folder."""
    group = dist.group.WORLD
    assert group is not None
    if group.rank() == 1:
        folder = folder / "absent"
    with pytest.raises(CapabilityError) as caught:
        measure_topology(group, torch.device("cpu"), mapped_folder=folder)
    return str(caught.value)


def test_where_one_rank_has_no_folder_all_end(gloo_pool: GlooPool, tmp_path: Path) -> None:
    on_disk(tmp_path)
    first, second = gloo_pool.run(refused, tmp_path)
    assert "another rank cannot measure the disk" in first
    assert "absent: no file of 32 MiB can be written and read there (No such file" in second

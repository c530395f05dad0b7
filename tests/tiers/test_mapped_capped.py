"""Mapped tables at work: a process that the system caps at half of its table's bytes."""

from __future__ import annotations

from pathlib import Path

import pytest
from trio import in_mapped_files

from benchmarks.scars.larger_than_memory import LargeWorkload, figures
from benchmarks.scars.memory_cap import NoMemoryCap
from recd_plugins.tiers.mapped_tables import IN_MEMORY, file_system

pytestmark = pytest.mark.slow


@in_mapped_files
def test_a_table_of_twice_the_memory_trains_as_in_memory(tmp_path: Path) -> None:
    """It is killed when not mapped; losses are compared bit by bit within."""
    if (kind := file_system(tmp_path)) in IN_MEMORY:
        pytest.skip(f"needs a temporary folder on a disk; {tmp_path} lies on {kind}")
    work = LargeWorkload(num_rows=1 << 20, hot=1 << 14, batch_size=512, steps=6)
    try:
        found = {figure.name.split(",")[0]: figure for figure in figures(work, tmp_path)}
    except NoMemoryCap as error:
        pytest.skip(f"needs control groups of memory: {error}")
    trained = found["steps trained on a table of twice the cap"]
    assert (trained.value, trained.baseline) == (6, 0)
    assert found["memory of a table of twice the cap"].met
    assert 50 < found["lookups that replicas answer"].value < 100

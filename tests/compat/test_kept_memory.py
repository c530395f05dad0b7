"""Value tests: what is decoded lies in kept memory, unless another pool was chosen."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recd_plugins.compat.kept_memory import kept_memory
from recd_plugins.data.parquet.opened_file import opened

pytestmark = pytest.mark.skipif(
    kept_memory() is None, reason="Arrow has no jemalloc here, or another pool was chosen"
)


def held() -> int:
    pool = kept_memory()
    assert pool is not None
    return pool.bytes_allocated()


DEADLINE = 120.0


def comes_back_to(before: int) -> bool:
    """Arrow's threads give back what they decoded with a moment after they have handed it over."""
    ends = time.monotonic() + DEADLINE
    while held() != before and time.monotonic() < ends:
        time.sleep(0.001)
    return held() == before


def test_a_stripe_is_decoded_into_it_and_leaves_it(tmp_path: Path) -> None:
    ids = pa.array(np.arange(100_000))
    pq.write_table(pa.table({"id": ids}), tmp_path / "ids.parquet")
    before = held()
    with opened(tmp_path / "ids.parquet") as file:
        rows = file.read_row_group(0)
        assert held() - before >= ids.nbytes
        assert rows["id"].combine_chunks().equals(ids)
    del rows
    assert comes_back_to(before)


@pytest.mark.parametrize("stored", [True, False], ids=["arrow's schema", "parquet's alone"])
def test_columns_have_the_types_that_a_parquet_file_gives_them(
    tmp_path: Path, stored: bool
) -> None:
    path = tmp_path / "uuids.parquet"
    uuids = pa.array([bytes(range(16)), None], pa.uuid())
    pq.write_table(pa.table({"uuid": uuids}), path, store_schema=stored)
    with opened(path) as file:
        assert file.read_row_group(0).equals(pq.ParquetFile(path).read_row_group(0))


def test_a_pool_that_was_chosen_is_left_alone(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": np.arange(100_000)}), tmp_path / "ids.parquet")
    usual, chosen, before = pa.default_memory_pool(), pa.system_memory_pool(), held()
    pa.set_memory_pool(chosen)
    try:
        assert kept_memory() is None
        others = chosen.bytes_allocated()
        with opened(tmp_path / "ids.parquet") as file:
            rows = file.read_row_group(0)
            assert chosen.bytes_allocated() - others >= rows.nbytes
    finally:
        pa.set_memory_pool(usual)
    assert held() == before

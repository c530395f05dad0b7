"""Property tests: a profile or a tier plan with a wrong column is refused, and named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from recd_plugins.errors import DataError
from recd_plugins.planning.access.access_profile import Profile
from recd_plugins.planning.access.distribution import RowDistribution
from recd_plugins.planning.arrow_file import write_arrow
from recd_plugins.planning.tier_plans.tier_plan import TablePlan, TierPlan

INTS, FLOATS = pa.large_list(pa.int64()), pa.large_list(pa.float64())


def profile(path: Path) -> None:
    ids = np.array([3, 1, 0, 2], np.int64)
    Profile(rows={"t": RowDistribution.of([1, 3], [0.5, 0.1], ids=ids)}, samples=9).save(path)


def plan(path: Path) -> None:
    table = TablePlan(table="t", replicated=np.array([3, 1], np.int64), num_rows=4)
    TierPlan(tables={"t": table}, n_nodes=1, ranks_per_node=2).save(path)


def load(of: Callable[[Path], None]) -> Callable[[Path], Any]:
    return Profile.load if of is profile else TierPlan.load


@pytest.mark.parametrize(
    ("of", "column", "values", "says"),
    [
        (profile, "counts", pa.array([None], INTS), "column 'counts' has nulls"),
        (profile, "p", pa.array([[0.5, None]], FLOATS), "column 'p' has nulls"),
        (profile, "counts", pa.array(["1"]), "column 'counts' is string, not large_list<"),
        (profile, "name", pa.array([None], pa.string()), "column 'name' has nulls"),
        (profile, "ids", pa.array([[3.0, 1.0]], FLOATS), "column 'ids' is large_list<"),
        (profile, "ids", pa.array([[3, 1, 0, 4]], INTS), "'t' names row 4, but has 4 rows"),
        (profile, "ids", pa.array([[3, -1, 0, 2]], INTS), "'t' names row -1, but has 4 rows"),
        (profile, "ids", pa.array([[3, 1, 3, 2]], INTS), "'t' names a row twice"),
        (profile, "presence", pa.array([[float("nan"), 0.1]], FLOATS), "presence is a chance"),
        (profile, "counts", pa.array([[1 << 62, 1 << 62]], INTS), "than int64 counts"),
        (plan, "replicated", pa.array([None], INTS), "column 'replicated' has nulls"),
        (plan, "replicated", pa.array([[3.7]], FLOATS), "column 'replicated' is large_list<"),
        (plan, "coalesce", None, "has no column 'coalesce'"),
    ],
)
def test_a_column_that_cannot_be_is_named(
    tmp_path: Path, of: Callable[[Path], None], column: str, values: pa.Array | None, says: str
) -> None:
    path = tmp_path / "saved.arrow"
    of(path)
    load(of)(path)
    with pa.OSFile(str(path), "rb") as file:
        table = pa.ipc.open_file(file).read_all()
    at = table.column_names.index(column)
    changed = table.remove_column(at) if values is None else table.set_column(at, column, [values])
    write_arrow(path, changed.replace_schema_metadata(table.schema.metadata))
    with pytest.raises(DataError, match=says) as caught:
        load(of)(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("of", [profile, plan])
def test_a_number_that_changed_is_noticed(tmp_path: Path, of: Callable[[Path], None]) -> None:
    """Whichever bit of a file turns, what is read is what was written, or nothing is."""
    path = tmp_path / "saved.arrow"
    of(path)
    whole, written = path.read_bytes(), held(load(of)(path))
    noticed = 0
    for at in range(0, 8 * len(whole), 37):
        turned = bytearray(whole)
        turned[at // 8] ^= 1 << at % 8
        path.write_bytes(turned)
        try:
            found = held(load(of)(path))
        except DataError:
            noticed += 1
        else:
            assert found == written
    assert noticed > 50
    path.write_bytes(whole.replace((3).to_bytes(8, "little"), (2).to_bytes(8, "little")))
    with pytest.raises(DataError, match="is damaged: it does not hold what was written"):
        load(of)(path)


def held(saved: Any) -> str:
    if isinstance(saved, TierPlan):
        return f"{saved.version} {saved.tables['t'].num_rows} {saved.tables['t'].coalesce}"
    rows = saved.rows["t"]
    return f"{saved.samples} {rows.num_rows} {rows.hottest(4).tolist()} {rows.coverage(1)}"

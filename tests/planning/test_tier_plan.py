"""Value tests: a tier plan holds what it says, and comes back from its file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recd_plugins.errors import DataError
from recd_plugins.planning.tier_plan import TablePlan, TierPlan


def rows(*ids: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(ids, np.int64)


def plan() -> TierPlan:
    return TierPlan(
        tables={
            "a": TablePlan(table="a", replicated=rows(5, 1), per_node=rows(7), coalesce="rank"),
            "b": TablePlan(table="b"),
        },
        n_nodes=2,
        ranks_per_node=3,
    )


def test_a_plan_comes_back_from_its_file(tmp_path: Path) -> None:
    plan().save(tmp_path / "deep" / "plan.arrow")
    loaded = TierPlan.load(tmp_path / "deep" / "plan.arrow")
    assert loaded == plan()
    assert loaded.world_size == 6
    assert loaded.tables["a"].replicated.tolist() == [5, 1]  # in its order
    assert not list((tmp_path / "deep").glob("*.part"))


def test_plans_are_equal_where_all_is() -> None:
    other = TablePlan(table="a", replicated=rows(1, 5), per_node=rows(7), coalesce="rank")
    assert plan().tables["a"] != other
    assert plan().tables["b"] == TablePlan(table="b")
    assert plan().tables["b"] != TablePlan(table="b", coalesce="node")


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ({"replicated": rows(1, 1)}, "a row is named twice"),
        ({"replicated": rows(1), "per_node": rows(1)}, "a row is named twice"),
        ({"per_node": rows(-1)}, "row -1 is negative"),
        ({"replicated": rows(1).astype(np.int32)}, "replicated must be"),
        ({"replicated": rows(1).reshape(1, 1)}, "replicated must be"),
        ({"coalesce": "cluster"}, "coalesce is 'cluster', not one of none, rank, node"),
    ],
)
def test_what_no_table_can_have_is_refused(what: dict[str, Any], says: str) -> None:
    with pytest.raises(DataError, match=says):
        TablePlan(table="t", **what)


def test_what_is_no_plan_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is filed under 'x'"):
        TierPlan(tables={"x": TablePlan(table="a")}, n_nodes=1, ranks_per_node=1)
    with pytest.raises(DataError, match="are no cluster"):
        TierPlan(tables={}, n_nodes=0, ranks_per_node=1)
    (tmp_path / "cut.arrow").write_bytes(b"ARROW1")
    for name in ("cut.arrow", "gone.arrow"):
        with pytest.raises(DataError, match="is not a tier plan"):
            TierPlan.load(tmp_path / name)

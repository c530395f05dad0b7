"""Value tests: a tier plan holds what it says, and comes back from its file."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from recd_plugins.errors import CapabilityError, DataError
from recd_plugins.planning.access.access_profile import Profile
from recd_plugins.planning.access.parametric import uniform
from recd_plugins.planning.arrow_file import write_arrow
from recd_plugins.planning.cluster.cluster import Cluster
from recd_plugins.planning.tier_plans.plan_changes import plan_changes
from recd_plugins.planning.tier_plans.tier_plan import METADATA_KEY, TablePlan, TierPlan


def rows(*ids: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(ids, np.int64)


def plan() -> TierPlan:
    return TierPlan(
        tables={
            "a": TablePlan(table="a", replicated=rows(5, 1), per_node=rows(7), coalesce="rank"),
            "b": TablePlan(table="b", num_rows=9),
        },
        n_nodes=2,
        ranks_per_node=3,
        mapped=("b",),
    )


def test_a_plan_comes_back_from_its_file(tmp_path: Path) -> None:
    plan().save(tmp_path / "deep" / "plan.arrow")
    loaded = TierPlan.load(tmp_path / "deep" / "plan.arrow")
    assert loaded == plan()
    assert loaded.world_size == 6
    assert loaded.tables["a"].replicated.tolist() == [5, 1]  # in its order
    assert not list((tmp_path / "deep").glob("*.part"))


def test_a_plan_of_before_homes_has_all_tables_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "plan.arrow"
    plan().save(path)
    with pa.OSFile(str(path), "rb") as file:
        table = pa.ipc.open_file(file).read_all()
    write_arrow(
        path, table.replace_schema_metadata({METADATA_KEY: b'{"n_nodes": 2, "ranks_per_node": 3}'})
    )
    assert TierPlan.load(path) == dataclasses.replace(plan(), mapped=())


def test_homes_alone_are_a_plan(tmp_path: Path) -> None:
    homes = TierPlan(tables={}, n_nodes=1, ranks_per_node=2, mapped=("a", "b"))
    homes.save(tmp_path / "plan.arrow")
    assert TierPlan.load(tmp_path / "plan.arrow") == homes
    assert homes.in_words().endswith("in mapped files: a, b")


def test_plans_are_equal_where_all_is() -> None:
    other = TablePlan(table="a", replicated=rows(1, 5), per_node=rows(7), coalesce="rank")
    assert plan().tables["a"] != other
    assert plan().tables["b"] == TablePlan(table="b", num_rows=9)
    assert plan().tables["b"] != TablePlan(table="b", num_rows=9, coalesce="node")
    assert plan().tables["b"] != TablePlan(table="b")


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
    with pytest.raises(DataError, match="is listed as 'x'"):
        TierPlan(tables={"x": TablePlan(table="a")}, n_nodes=1, ranks_per_node=1)
    with pytest.raises(DataError, match="do not make a cluster"):
        TierPlan(tables={}, n_nodes=0, ranks_per_node=1)
    (tmp_path / "cut.arrow").write_bytes(b"ARROW1")
    Profile(rows={"t": uniform(9, 1)}).save(tmp_path / "profile.arrow")
    for name, says in (
        ("cut.arrow", "is no Arrow file, or damaged. A tier plan is meant: `recd plan --save`"),
        ("gone.arrow", "there is no such file. A tier plan is meant"),
        (".", "is a folder, not a file"),
        ("profile.arrow", "of another kind: its columns are name, error, counts, p, "),
    ):
        with pytest.raises(DataError, match=says):
            TierPlan.load(tmp_path / name)


def test_a_saved_plan_is_held_to_the_model_and_the_ranks(tmp_path: Path) -> None:
    path = tmp_path / "plan.arrow"
    plan().save(path)
    here = Cluster(n_nodes=2, ranks_per_node=3)
    saved = TierPlan.load(path)
    assert saved == plan()
    saved.check_fits({"a": 8, "b": 9, "c": 1}, here, where="sharding.plan")
    for num_rows, cluster, says in (
        ({"a": 8, "b": 9}, Cluster(n_nodes=3, ranks_per_node=2), "is for 2 nodes of 3 ranks, but"),
        ({"a": 8, "bb": 9}, here, "of a table 'b', but the model has none .* did you mean 'bb'"),
        ({"a": 8, "b": 8}, here, "made of a table 'b' of 9 rows, but the model's has 8"),
        ({"a": 7, "b": 9}, here, "names row 7 of table 'a', but the model's has 7 rows"),
    ):
        with pytest.raises(CapabilityError, match=f"sharding.plan: .*{says}"):
            saved.check_fits(num_rows, cluster, where="sharding.plan: plan.arrow")
    gone = dataclasses.replace(saved, mapped=("b", "c"))
    with pytest.raises(CapabilityError, match="has a table 'c' in mapped files, but the model has"):
        gone.check_fits({"a": 8, "b": 9}, here, where="sharding.plan: plan.arrow")


def test_two_plans_differ_by_rows_that_enter_and_leave() -> None:
    other = TierPlan(
        tables={
            "a": TablePlan(table="a", replicated=rows(1, 5, 7), coalesce="rank"),
            "c": TablePlan(table="c", coalesce="node"),
        },
        n_nodes=2,
        ranks_per_node=3,
        mapped=("b", "d"),
    )
    changed = plan_changes(plan(), other)
    assert changed["a"].replicated == (2, 3, 1, 0)
    assert changed["a"].per_node == (1, 0, 0, 1)
    assert str(changed["a"]) == (
        "replicated 2 -> 3 rows (1 enter, 0 leave); per_node 1 -> 0 rows (0 enter, 1 leave)"
    )
    assert str(changed["b"]) == "the same rows in each tier"
    assert str(changed["c"]) == "coalesced: none -> node"
    assert str(changed["d"]) == "home: memory -> mapped"
    assert str(plan_changes(other, plan())["d"]) == "home: mapped -> memory"

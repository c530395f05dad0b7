"""Value tests: TorchRec's planner plans tables row-wise that another planner wants so."""

from __future__ import annotations

import pytest

from recd_plugins.planning.constraints import TableConstraint
from recd_plugins.planning.plan import TorchRecPlanner, TorchRecPlannerConfig
from recd_plugins.planning.proposal import HoldsRowWise
from recd_plugins.planning.topology import Topology
from recd_plugins.testing.probe import Probe


def planner(**constraints: TableConstraint) -> TorchRecPlanner:
    config = TorchRecPlannerConfig(search="greedy", constraints=constraints)
    return TorchRecPlanner(config, device="cpu", batch_size=16, fused={})


def test_bags_too_which_torchrec_does_not_offer_on_the_cpu() -> None:
    plain, held = planner(), planner().row_wise(["item", "history"])
    before = plain.propose(Probe(), Topology(), 4).plan
    after = held.propose(Probe(), Topology(), 4).plan
    assert before["bags"]["item"].sharding_type != "row_wise"
    item = after["bags"]["item"]
    assert (item.sharding_type, item.compute_kernel) == ("row_wise", "fused")
    assert item.ranks == [0, 1, 2, 3]
    assert [shard.shard_sizes[0] for shard in item.sharding_spec.shards] == [8, 8, 8, 6]
    assert after["sequences"]["history"].sharding_type == "row_wise"
    assert after["bags"]["shop"].sharding_type != "row_wise"
    assert held.explain().endswith("row-wise in place of this: item")
    assert "in place" not in plain.explain()


@pytest.mark.parametrize(
    ("said", "may"),
    [
        (TableConstraint(), True),
        (TableConstraint(sharding_types=("row_wise", "table_wise")), True),
        (TableConstraint(sharding_types=("table_wise",)), False),
        (TableConstraint(compute_kernels=("fused_uvm",)), False),
    ],
)
def test_constraints_may_rule_it_out(said: TableConstraint, may: bool) -> None:
    made = planner(**{"sh*": said})
    assert isinstance(made, HoldsRowWise)
    assert made.may_be_row_wise("shop") == may
    assert made.may_be_row_wise("item")

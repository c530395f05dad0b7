"""Value tests: TorchRec's planner plans tables row-wise that another planner wants so."""

from __future__ import annotations

import pytest
from torchrec.distributed.types import CacheAlgorithm, CacheParams

from recd_plugins.errors import RegistryError
from recd_plugins.planning.constraints import TableConstraint
from recd_plugins.planning.planner_bases import HoldsRowWise
from recd_plugins.planning.sharders import default_sharders
from recd_plugins.planning.topology import Topology
from recd_plugins.planning.torchrec_planner import TorchRecPlanner, TorchRecPlannerConfig
from recd_plugins.testing.probe import Probe


def planner(**constraints: TableConstraint) -> TorchRecPlanner:
    config = TorchRecPlannerConfig(search="greedy", constraints=constraints)
    return TorchRecPlanner(config, device="cpu", batch_size=16, sharders=default_sharders)


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
    ("constraint", "may"),
    [
        (TableConstraint(), True),
        (TableConstraint(sharding_types=("row_wise", "table_wise")), True),
        (TableConstraint(sharding_types=("table_wise",)), False),
        (TableConstraint(compute_kernels=("fused_uvm",)), False),
    ],
)
def test_constraints_may_rule_it_out(constraint: TableConstraint, may: bool) -> None:
    made = planner(**{"sh*": constraint})
    assert isinstance(made, HoldsRowWise)
    assert made.may_be_row_wise("shop") == may
    assert made.may_be_row_wise("item")


def test_with_another_kernel_where_the_registry_names_it() -> None:
    cached = TableConstraint(
        sharding_types=("row_wise",),
        compute_kernels=("fused_uvm_caching",),
        load_factor=0.3,
        cache_algorithm="lfu",
    )
    held = planner().row_wise(["item", "history"], {"item": cached})
    plan = held.propose(Probe(), Topology(device="cuda", ranks_per_node=2), 4).plan
    item, history = plan["bags"]["item"], plan["sequences"]["history"]
    assert (item.sharding_type, item.compute_kernel) == ("row_wise", "fused_uvm_caching")
    assert item.cache_params == CacheParams(algorithm=CacheAlgorithm.LFU, load_factor=0.3)
    assert (history.sharding_type, history.compute_kernel) == ("row_wise", "fused")
    assert history.cache_params is None


def test_a_load_factor_is_of_a_cache() -> None:
    with pytest.raises(RegistryError, match="load_factor: is for the kernel fused_uvm_caching"):
        TableConstraint(compute_kernels=("fused_uvm",), load_factor=0.3)

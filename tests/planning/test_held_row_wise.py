"""Value tests: TorchRec's planner plans tables row-wise that another planner wants so."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torchrec.distributed.types import CacheAlgorithm, CacheParams
from torchrec.modules.embedding_configs import EmbeddingBagConfig, EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection

from recd_plugins.errors import RegistryError
from recd_plugins.planning.cluster.topology import Topology
from recd_plugins.planning.constraints import TableConstraint
from recd_plugins.planning.planner_bases import HoldsRowWise
from recd_plugins.planning.sharders import default_sharders
from recd_plugins.planning.torchrec_plan.torchrec_planner import (
    TorchRecPlanner,
    TorchRecPlannerConfig,
)
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


def test_tables_that_leave_their_place_do_not_count_where_others_are_balanced() -> None:
    bags = EmbeddingBagCollection(
        tables=[
            EmbeddingBagConfig(name=n, embedding_dim=16, num_embeddings=100, feature_names=[n])
            for n in "abcd"
        ],
        device=torch.device("meta"),
    )
    model = nn.ModuleDict({"bags": bags})
    two = Topology(ranks_per_node=1, inter_node_gbps=0.01)
    constraints = {"*": TableConstraint(sharding_types=("table_wise",))}

    def ranks(*held: str) -> dict[str, list[int]]:
        made = TorchRecPlanner(
            TorchRecPlannerConfig(search="greedy", constraints=constraints),
            device="cpu",
            batch_size=16,
            sharders=default_sharders,
        )
        placed = made.row_wise(held).propose(model, two, 2).plan["bags"]
        return {name: placed[name].ranks for name in "abcd" if name not in held}

    together: dict[int, list[str]] = {}
    for name, (rank,) in ranks().items():
        together.setdefault(rank, []).append(name)
    alone = together[0]
    assert len(alone) == 2
    others = [name for name in "abcd" if name not in alone]
    assert len({rank for (rank,) in ranks(*others).values()}) == 2


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


def test_whatever_the_constraints_would_have_for_them() -> None:
    """A glob behind a table's name counts, but not over the planner in front."""
    table_wise = TableConstraint(sharding_types=("table_wise",))
    made = planner(history=TableConstraint(pooling_factors=(3.0,)), **{"*": table_wise})
    plan = made.row_wise(["history"]).propose(Probe(), Topology(), 2).plan
    assert plan["sequences"]["history"].sharding_type == "row_wise"
    assert plan["bags"]["shop"].sharding_type == "table_wise"


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


class Sequences(nn.Module):
    """A table with fewer rows than ranks, alone in its kernel."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        config = EmbeddingConfig(
            name="shop", embedding_dim=8, num_embeddings=rows, feature_names=["shop"]
        )
        self.sequences = EmbeddingCollection(tables=[config], device=torch.device("meta"))


def test_a_table_of_too_few_rows_is_not_row_wise_unless_it_must_be() -> None:
    """TorchRec's planner rates all types of so small a table alike."""

    def planned(rows: int, *kinds: Any) -> tuple[str, str]:
        constraints = {"shop": TableConstraint(sharding_types=kinds)} if kinds else {}
        made = planner(**constraints)
        plan = made.propose(Sequences(rows), Topology(), 4).plan["sequences"]
        return plan["shop"].sharding_type, made.explain()

    kind, why = planned(2, "row_wise", "column_wise")
    assert kind == "column_wise"
    assert why.endswith("not row-wise, since a rank would have no row of its kernel: shop")
    assert planned(2, "row_wise")[0] == "row_wise"  # which the check of a plan refuses
    kind, why = planned(100_000, "row_wise", "column_wise")
    assert kind == "row_wise"
    assert "no row" not in why

"""Ladder: the plan of the proposals that are placed on ranks is that of TorchRec's whole search."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest
import torch
from torch import nn
from torchrec.distributed.planner import EmbeddingShardingPlanner
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.proposers import GreedyProposer
from torchrec.distributed.planner.shard_estimators import EmbeddingPerfEstimator
from torchrec.distributed.planner.storage_reservations import HeuristicalStorageReservation
from torchrec.distributed.planner.types import ParameterConstraints, ShardingOption
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

from recd_plugins.planning.cluster.topology import Topology
from recd_plugins.planning.sharders import default_sharders
from recd_plugins.planning.torchrec_plan.torchrec_planner import (
    TorchRecPlanner,
    TorchRecPlannerConfig,
)
from recd_plugins.planning.torchrec_plan.torchrec_proposals import Proposals
from recd_plugins.planning.torchrec_plan.torchrec_search import OrderedEnumerator, torchrec_topology
from recd_plugins.registry.settings import OptimizerSettings

BATCH_SIZE = 512


def model(tables: int, rows: int, *, alike: bool = False) -> nn.Module:
    """Tables of several sizes and widths, which TorchRec has several ways to shard; or narrow ones
    that are `alike`, for which several ways take the same time."""
    meta = torch.device("meta")
    return EmbeddingBagCollection(
        device=meta,
        tables=[
            EmbeddingBagConfig(
                name=f"t{number}",
                num_embeddings=rows if alike else rows // (1 + number % 7),
                embedding_dim=16 if alike else 64 * (1 + number % 3),
                feature_names=[f"f{number}"],
            )
            for number in range(tables)
        ],
    )


def sharders() -> Any:
    return default_sharders(OptimizerSettings().fused_params())


def as_torchrec_searches(
    tables: nn.Module, topology: Topology, ranks: int, search: str
) -> EmbeddingShardingPlanner:
    on = torchrec_topology(topology, ranks, topology.device or "cpu")
    return EmbeddingShardingPlanner(
        topology=on,
        batch_size=BATCH_SIZE,
        enumerator=OrderedEnumerator(topology=on, batch_size=BATCH_SIZE),
        proposer=[GreedyProposer(), GreedyProposer(use_depth=False)]
        if search == "greedy"
        else None,
        storage_reservation=HeuristicalStorageReservation(percentage=0.15),
        debug=False,
    )


NODES = Topology(ranks_per_node=4, inter_node_gbps=12.5, intra_node_gbps=300)
CASES = {
    "a grid of two tables": (2, 10**6, 8, NODES, "torchrec"),
    "greedy, alone": (4, 10**6, 8, NODES, "greedy"),
    "thirty tables": (30, 10**6, 8, NODES, "torchrec"),
    "one node": (12, 10**5, 4, Topology(), "torchrec"),
    "hardly any memory": (
        12,
        10**6,
        8,
        Topology(ranks_per_node=4, device="cuda", device_memory_gb=0.75),
        "torchrec",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_plan_is_the_one_that_torchrec_finds_by_placing_all(case: str) -> None:
    tables, rows, ranks, topology, search = CASES[case]
    every = as_torchrec_searches(model(tables, rows), topology, ranks, search)
    expected = every.plan(model(tables, rows), sharders())
    planner = TorchRecPlanner(
        TorchRecPlannerConfig(search="greedy" if search == "greedy" else "torchrec"),
        device="cpu",
        batch_size=BATCH_SIZE,
        sharders=sharders,
    )
    found = planner.propose(model(tables, rows), topology, ranks)
    assert str(found) == str(expected)


def counts(planner: TorchRecPlanner) -> tuple[int, int]:
    """The proposals that were compared, and those of them that were placed on ranks."""
    head, *others = planner.explain().splitlines()[0].split("; ")
    compared = int(head.split()[3].replace(",", ""))
    return compared, int(others[0].split()[0].replace(",", "")) if others else compared


def test_a_hundred_tables_take_few_placements() -> None:
    planner = TorchRecPlanner(
        TorchRecPlannerConfig(), device="cpu", batch_size=BATCH_SIZE, sharders=sharders
    )
    on = dataclasses.replace(NODES, device="cuda", device_memory_gb=80)
    planner.propose(model(100, 10**7), on, 16)
    compared, placed = counts(planner)
    assert compared > 1_000
    assert placed < 100


@pytest.mark.parametrize("alike", [True, False])
def test_options_that_are_alike_take_few_placements(alike: bool) -> None:
    """Each table has several, of which none is better than another."""
    tables = model(60, 10**6 if alike else 3_000, alike=alike)
    every = as_torchrec_searches(tables, Topology(), 2, "torchrec")
    planner = TorchRecPlanner(
        TorchRecPlannerConfig(), device="cpu", batch_size=BATCH_SIZE, sharders=sharders
    )
    found = planner.propose(tables, Topology(), 2)
    assert str(found) == str(every.plan(tables, sharders()))
    compared, placed = counts(planner)
    assert compared > 100
    assert placed < 10


@pytest.mark.filterwarnings("ignore:This API is deprecated:DeprecationWarning")
def test_options_that_are_alike_are_estimated_as_each_by_itself() -> None:
    tables, on = model(30, 10**6), torchrec_topology(NODES, 8, "cuda")
    adam = [one for name, one in tables.named_parameters() if name.split(".")[1] in ("t1", "t2")]
    apply_optimizer_in_backward(torch.optim.Adam, adam, {"lr": 0.1})  # states of twice a table
    constraints = {
        f"t{number}": ParameterConstraints(batch_sizes=[100 * (1 + number % 2)])
        for number in range(0, 30, 3)
    }
    known = {"topology": on, "batch_size": BATCH_SIZE, "constraints": constraints}
    found = OrderedEnumerator(**known).enumerate(module=tables, sharders=sharders())
    every = EmbeddingEnumerator(**known).enumerate(module=tables, sharders=sharders())

    def estimates(options: list[ShardingOption]) -> dict[Any, str]:
        return {(o.name, o.sharding_type, o.compute_kernel): str(o.shards) for o in options}

    assert estimates(found) == estimates(every)


def test_shards_of_one_size_are_estimated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row-wise table of 10 rows on 8 ranks has shards of 2 rows and of none."""
    estimated: list[int] = []
    estimate = EmbeddingPerfEstimator.estimate

    def counted(self: Any, options: list[ShardingOption], sharder_data_map: Any) -> None:
        estimated.extend(len(option.shards) for option in options)
        estimate(self, options, sharder_data_map)

    monkeypatch.setattr(EmbeddingPerfEstimator, "estimate", counted)
    known = {"topology": torchrec_topology(NODES, 8, "cuda"), "batch_size": BATCH_SIZE}
    found = OrderedEnumerator(**known).enumerate(module=model(1, 10), sharders=sharders())
    assert max(len(option.shards) for option in found) == 8
    assert max(estimated) == 2


def test_a_copy_of_options_shares_what_does_not_change() -> None:
    """TorchRec copies the options of the best plan so far, and then takes back their ranks."""
    known = {"topology": torchrec_topology(NODES, 8, "cuda"), "batch_size": BATCH_SIZE}
    found = OrderedEnumerator(**known).enumerate(module=model(2, 100), sharders=sharders())
    for option in found:
        option.shards[0].rank = 5
    copies = copy.deepcopy(found)
    for option in found:
        option.shards[0].rank = None
    assert [one.shards[0].rank for one in copies] == [5] * len(found)
    for one, option in zip(copies, found, strict=True):
        assert str(one) == str(option).replace("rank: None", "rank: 5", 1)
        assert one.shards[0].perf is option.shards[0].perf


def test_a_proposal_takes_as_long_however_many_tables_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken: list[int] = []
    marks = Proposals.marks

    def counted(self: Proposals, option: ShardingOption) -> Any:
        taken.append(1)
        return marks(self, option)

    monkeypatch.setattr(Proposals, "marks", counted)
    planner = TorchRecPlanner(
        TorchRecPlannerConfig(), device="cpu", batch_size=BATCH_SIZE, sharders=sharders
    )
    planner.propose(model(100, 10**6), dataclasses.replace(NODES, device="cuda"), 8)
    compared, _ = counts(planner)
    assert compared > 1_000
    assert len(taken) < 3 * compared


@pytest.mark.parametrize("time", [float("inf"), float("nan")])
def test_an_option_without_a_finite_time_is_the_last_to_be_placed(time: float) -> None:
    on = torchrec_topology(NODES, 8, "cuda")
    found = OrderedEnumerator(topology=on, batch_size=BATCH_SIZE).enumerate(
        module=model(1, 100), sharders=sharders()
    )
    every = Proposals(on, "greedy")
    longest = max(every.marks(option).mean for option in found)
    endless = copy.deepcopy(found[0])
    for shard in endless.shards:
        shard.perf = dataclasses.replace(shard.perf, fwd_compute=time)
    assert every.marks(endless).mean > longest

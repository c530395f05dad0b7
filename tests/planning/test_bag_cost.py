"""Ladder: prices of bags as values, then the bytes that plain TorchRec hands over on four ranks."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.sharding_plan import (
    construct_module_sharding_plan,
    row_wise,
    table_wise,
)
from torchrec.distributed.types import ShardingPlan
from torchrec.modules.embedding_configs import DataType, EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.planning.access.distribution import RowDistribution
from recd_plugins.planning.access.parametric import zipf
from recd_plugins.planning.cluster.cluster import Cluster
from recd_plugins.planning.cluster.topology import Topology
from recd_plugins.planning.explain.plan_report import PlanReport
from recd_plugins.planning.prices.bag_cost import row_wise_bags, table_wise_bags, travelling
from recd_plugins.planning.prices.codecs import torchrec_codecs
from recd_plugins.planning.prices.cost import Cost, Prices
from recd_plugins.planning.prices.ledger import Ledger
from recd_plugins.planning.tables.profiled_table import ProfiledTable
from recd_plugins.planning.tier_plans.table_sizes import TableSizes
from recd_plugins.registry.settings import OptimizerSettings
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.trainer.measure.traffic import Traffic, TrafficCounter

N, W, B, K = 2, 2, 64, 1.5
U = N * W
PRICES = Prices(
    cluster=Cluster.of(Topology(ranks_per_node=W, inter_node_gbps=0.02, intra_node_gbps=2), U),
    batch_size=B,
    k=K,
)


def bags(rows: RowDistribution, *, dim: int = 16, features: int = 1) -> dict[str, ProfiledTable]:
    return {"t": ProfiledTable(name="t", rows=rows, dim=dim, bags=features)}


def cost(tables: dict[str, ProfiledTable], **sizes: Any) -> Cost:
    return Ledger.of(tables, {"t": TableSizes(**sizes)}, PRICES).cost


def table_wise_cost(tables: dict[str, ProfiledTable], prices: Prices = PRICES) -> Cost:
    each = (
        table_wise_bags(prices, one.rows, bags=one.bags, dim=one.dim, width=one.width)
        for one in tables.values()
    )
    return sum(each, Cost())


def test_a_share_of_bags_has_a_row_without_a_replica() -> None:
    rows = RowDistribution.of([3, 2], [0.5, 0.2])
    assert travelling(rows, 1) == pytest.approx(1 - 0.5**3 * 0.8**2)
    assert travelling(rows, 2) == pytest.approx(1 - 0.75**3 * 0.9**2)
    assert travelling(RowDistribution.of([1], [7.0]), 1) == 1
    assert travelling(rows.part(0, 0), 1) == 0
    drawn = np.random.default_rng(0).random((40_000, 5)) < [0.5, 0.5, 0.5, 0.2, 0.2]
    assert travelling(rows, 1) == pytest.approx(drawn.any(axis=1).mean(), rel=0.01)


ROWS_OF_TWO_BYTES: dict[str, Any] = {
    "rows": RowDistribution.of([10], [0.5]),
    "bags": 2,
    "dim": 16,
    "width": 32,
}
"""10 rows of 16 numbers of 2 bytes, 5 lookups a sample in two bags: 320 a step, of 128 bags."""


def test_every_number_of_sums_that_are_added_up_on_all_ranks() -> None:
    load = np.array([2.0, 0.5, 1.0, 0.5])
    found = row_wise_bags(PRICES, **ROWS_OF_TWO_BYTES, share=0.25, load=load)
    # A quarter of the 128 bags of each of 4 ranks travels, in sums of 64 bytes.
    sums, ids = 128 * 64, 320 * 8 + 128 * 4
    expected: dict[str, Any] = {
        "static_memory": 10 * 32 / 4,
        "ids_sent": 320,
        "rows_accessed": 320 * load,
        "dynamic_memory": sums * 5 / 4,
        "a2a_global": ids + (load - 1) * 320 * 8,
        "ar_global": sums,
        "between_nodes": ids * 4 / 2 + 3 * sums,
        "local": 3 * 320 * 32 * load + 2 * sums,
        "coalesced": 320,  # sorted by rank
    }
    for name, value in vars(found).items():
        np.testing.assert_allclose(value, expected.get(name, 0.0), err_msg=name)
    even = row_wise_bags(PRICES, **ROWS_OF_TWO_BYTES, load=np.ones(U))
    assert even == row_wise_bags(PRICES, **ROWS_OF_TWO_BYTES)  # numbers, not one for each rank
    assert even.ar_global == 4 * sums


def test_every_number_of_sums_of_one_rank() -> None:
    sums = 128 * 64
    payload = 320 * 8 + 128 * 4 + 2 * sums
    assert table_wise_bags(PRICES, **ROWS_OF_TWO_BYTES) == Cost(
        static_memory=10 * 32 / 4,
        ids_sent=320,
        rows_accessed=320,
        dynamic_memory=2 * sums,
        a2a_global=payload,
        between_nodes=payload * 4 / 2,
        local=3 * 320 * 32 + 2 * sums,
    )


def test_sums_cost_the_same_however_many_rows_they_have() -> None:
    few, many = (bags(zipf(1000, lookups)) for lookups in (5, 50))
    sums = U * B * 16 * 4
    assert cost(few).ar_global == cost(many).ar_global == sums
    assert cost(many).a2a_global == pytest.approx(50 * B * 8 + U * B * 4)
    assert cost(many).a2a_global - cost(few).a2a_global == pytest.approx(45 * B * 8)
    assert table_wise_cost(few).a2a_global == pytest.approx(5 * B * 8 + B * 4 + 2 * B * 16 * 4)
    # Coalesced, rows travel as those of sequences do.
    sequences = {"t": dataclasses.replace(few["t"], bags=0)}
    for sizes in ({"coalesce": "rank"}, {"replicated": 8, "coalesce": "node"}):
        pooled, alone = cost(few, **sizes), cost(sequences, **sizes)
        # But their sums need no room for each lookup, and have less to write.
        assert pooled.dynamic_memory < alone.dynamic_memory
        assert pooled.local < alone.local
        same = {"dynamic_memory": 0.0, "local": 0.0}
        assert dataclasses.replace(pooled, **same) == dataclasses.replace(alone, **same)


def test_replicas_spare_the_sums_of_bags_that_are_all_hot() -> None:
    tables = bags(zipf(1000, 5, 1.3))
    shares = [cost(tables, replicated=hot).ar_global / cost(tables).ar_global for hot in (8, 900)]
    assert shares[0] == pytest.approx(travelling(tables["t"].rows.part(8, 1000), 1))
    assert 1 > shares[0] > shares[1] > 0
    assert cost(tables, replicated=1000).ar_global == 0


def test_calls_are_those_of_sums() -> None:
    sequences = {"s": ProfiledTable(name="s", rows=zipf(100, 5), dim=16)}
    pooled = bags(zipf(100, 5))

    def calls(tables: dict[str, ProfiledTable], **sizes: Any) -> list[int]:
        ledger = Ledger.of(tables, {"t": TableSizes(**sizes)}, PRICES)
        return [ledger.calls["a2a_global"], ledger.calls["ar_global"]]

    assert calls(sequences) == [4, 0]
    assert calls(pooled) == [2, 1]
    assert calls({**sequences, **pooled}) == [5, 1]
    assert calls(pooled, coalesce="rank") == [4, 0]


def test_a_report_compares_pooled_tables_with_their_sums() -> None:
    """Short bags of a wide world: a replica saves a row's way, but hardly any sum's."""
    tables = bags(zipf(1000, 5, 1.3))
    plan = Ledger.of(tables, {"t": TableSizes(replicated=8)}, PRICES)
    report = PlanReport(ledger=plan, goal="test", budget=None)
    assert report.row_wise.cost.ar_global == U * B * 16 * 4
    assert report.coalesced.cost.ar_global == 0
    assert "no more rows in replicated: the next one" in "\n".join(report.lines())


LOOKUPS, ROWS = 6, 200


class Bags(nn.Module):
    """Two widths, one table of two features, one of half floats."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = EmbeddingBagCollection(
            tables=[
                EmbeddingBagConfig(
                    name="a", embedding_dim=16, num_embeddings=ROWS, feature_names=["x", "y"]
                ),
                EmbeddingBagConfig(
                    name="b",
                    embedding_dim=32,
                    num_embeddings=ROWS,
                    feature_names=["z"],
                    data_type=DataType.FP16,
                ),
            ],
            device=torch.device("meta"),
        )

    def forward(self, features: KeyedJaggedTensor) -> torch.Tensor:
        loss: torch.Tensor = self.bags(features).values().sum()
        return loss


def exchanged(home: str, coded: bool) -> Traffic:
    """What a rank hands to collectives in a step of plain TorchRec."""
    model = Bags()
    fused = OptimizerSettings(tables="sgd").fused_params()
    codecs = torchrec_codecs("fp16", "fp16", 1.0, "cpu") if coded else None
    sharder = EmbeddingBagCollectionSharder(fused, codecs)
    each = {
        name: row_wise(compute_kernel="fused")
        if home == "row_wise"
        else table_wise(rank=rank, compute_kernel="fused")
        for rank, name in enumerate(("a", "b"))
    }
    placed = construct_module_sharding_plan(model.bags, each, sharder=sharder, device_type="cpu")
    sharded = DistributedModelParallel(
        model,
        device=torch.device("cpu"),
        plan=ShardingPlan(plan={"bags": placed}),
        sharders=[sharder],
    )
    draw = torch.Generator().manual_seed(dist.get_rank())
    features = KeyedJaggedTensor(
        keys=["x", "y", "z"],
        values=torch.randint(0, ROWS, (3 * B * LOOKUPS,), generator=draw),
        lengths=torch.full((3 * B,), LOOKUPS, dtype=torch.int32),
    )
    counter = TrafficCounter()
    with counter:
        sharded(features).backward()
    return counter.traffic


@pytest.mark.parametrize("coded", [False, True], ids=["as they are", "by codecs"])
@pytest.mark.parametrize("home", ["row_wise", "table_wise"])
def test_the_bytes_are_those_that_torchrec_hands_over(
    home: str, coded: bool, gloo_pool: GlooPool
) -> None:
    found = gloo_pool.run(exchanged, home, coded, world_size=U)
    prices = dataclasses.replace(PRICES, carried=0.5 if coded else 1.0)
    a = RowDistribution.of([ROWS], [2 * LOOKUPS / ROWS])
    b = RowDistribution.of([ROWS], [LOOKUPS / ROWS])
    tables = {
        "a": ProfiledTable(name="a", rows=a, dim=16, bags=2),
        "b": ProfiledTable(name="b", rows=b, dim=32, bags=1, element_bytes=2),
    }
    row_wise_cost = Ledger.of(tables, {}, prices).cost
    expected = row_wise_cost if home == "row_wise" else table_wise_cost(tables, prices)

    def mean(collective: str, *phases: str) -> float:
        return float(
            np.mean([sum(one.get(collective, {}).get(p, 0) for p in phases) for one in found])
        )

    # Splits make the difference: what each rank is sent is announced first.
    exchanged_ids = mean("all_to_all", "ids", "forward", "backward")
    assert exchanged_ids == pytest.approx(expected.a2a_global, rel=0.05)
    assert mean("reduce_scatter", "forward") == pytest.approx(expected.ar_global, rel=0.05)
    # A gather is handed a rank's own part, of U.
    assert U * mean("all_gather", "backward") == pytest.approx(expected.ar_global, rel=0.05)
    if home == "row_wise":
        assert expected.ar_global > 4 * prices.carried * expected.a2a_global


def test_sums_of_a_collection_travel_in_one_shape() -> None:
    """As many bags of each table as of the one with the most, which is why few hot tables help
    none."""
    hot = ProfiledTable(name="hot", rows=zipf(1000, 1, 1.3), dim=16, bags=1, collection="bags")
    cold = dataclasses.replace(hot, name="cold")
    tables = {"hot": hot, "cold": cold}
    sums = U * B * 16 * 4

    def reduced(**replicated: int) -> float:
        sizes = {name: TableSizes(replicated=rows) for name, rows in replicated.items()}
        return float(Ledger.of(tables, sizes, PRICES).cost.ar_global)

    share = travelling(hot.rows.part(100, 1000), 1)
    assert reduced(hot=100, cold=0) == reduced() == 2 * sums
    assert reduced(hot=900, cold=100) == pytest.approx(2 * share * sums)

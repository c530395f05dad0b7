"""Ladder: steps of four ranks under torch's profiler, whose operations and calls are those that the
ledger's prices count."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
import torch.distributed as dist
from tiered import DIM, ROWS, ByTiers, DrawnTiers, Sequences, batch_of, sharded
from torch.profiler import ProfilerActivity

from recd_plugins.planning.access.parametric import zipf
from recd_plugins.planning.cost import Prices
from recd_plugins.planning.ledger import Ledger
from recd_plugins.planning.table_sizes import SequenceTable, TableSizes
from recd_plugins.planning.tier_plan import Coalesce
from recd_plugins.planning.topology import Cluster, Topology
from recd_plugins.testing.arrange import Arrangement, BySharding
from recd_plugins.testing.gloo import GlooPool

SIZES = {
    "none": TableSizes(),
    "replicated": TableSizes(replicated=4),
    "per_node": TableSizes(per_node=4),
    "both": TableSizes(replicated=4, per_node=4),
}


def counted(arrange: Arrangement) -> tuple[int, int]:
    """On a rank: the operations of a step that are not within another, and its calls."""
    model = sharded(arrange, Sequences)
    batches = [batch_of(2 * step + dist.get_rank(), 32) for step in range(2)]
    model(batches[0])[0].backward()
    with torch.profiler.profile(activities=[ProfilerActivity.CPU]) as profiler:
        model(batches[1])[0].backward()
    every: Any = profiler.events()
    calls = Counter(event.name for event in every)
    # A gather is a message to the one peer that each group of these tests has.
    called = sum(calls[f"gloo:{name}"] for name in ("all_to_all", "all_reduce", "send"))
    return sum(map(is_outermost, every)), called


def is_operation(event: Any) -> bool:
    return bool(event.name.startswith(("aten::", "fbgemm::")))


def is_outermost(event: Any) -> bool:
    above = event.cpu_parent
    while above is not None and not is_operation(above):
        above = above.cpu_parent
    return is_operation(event) and above is None


def priced(tiers: DrawnTiers, coalesce: Coalesce) -> tuple[int, int]:
    """The same by the ledger: operations and calls beside those of row-wise tables."""
    cluster = Cluster.of(Topology(device="cpu", ranks_per_node=2), 4)
    tables = {
        name: SequenceTable(name=name, rows=zipf(rows, 4), dim=DIM) for name, rows in ROWS.items()
    }
    sizes = dict.fromkeys(tables, SIZES[tiers])
    sizes = {
        name: TableSizes(replicated=one.replicated, per_node=one.per_node, coalesce=coalesce)
        for name, one in sizes.items()
    }
    ledger = Ledger.of(tables, sizes, Prices(cluster=cluster, batch_size=32, k=1.65))
    return ledger.operations, sum(ledger.replica_calls.values()) + ledger.home_calls["a2a_intra"]


def test_steps_have_the_operations_and_the_calls_that_are_priced(gloo_pool: GlooPool) -> None:
    plain = gloo_pool.run(counted, BySharding("row_wise"), world_size=4)[0]
    ways: list[tuple[DrawnTiers, Coalesce]] = [
        ("none", "node"),
        ("replicated", "none"),
        ("both", "rank"),
    ]
    for tiers, coalesce in ways:
        arrange = ByTiers(ranks_per_node=2, seed=3, tiers=tiers, coalesce=coalesce)
        found = gloo_pool.run(counted, arrange, world_size=4)[0]
        operations, calls = (more - own for more, own in zip(found, plain, strict=True))
        expected, called = priced(tiers, coalesce)
        assert abs(operations / expected - 1) < 0.15, (tiers, coalesce, operations, expected)
        asked = 3 if tiers == "both" else 0  # which ride with the exchange with home
        assert calls == called + asked, (tiers, coalesce)

"""Ladder: steps of four ranks under torch's profiler, whose operations and calls are those that the
ledger's prices count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tiered import DIM, FEATURES, ROWS, ByTiers, Sequences, batch_of, sharded, tier_plan
from torch import Tensor, nn
from torch.profiler import ProfilerActivity
from torchrec import EmbeddingCollection, EmbeddingConfig

from recd_plugins.data.batch import Batch
from recd_plugins.planning.access.parametric import uniform
from recd_plugins.planning.cluster.cluster import Cluster
from recd_plugins.planning.cluster.topology import Topology
from recd_plugins.planning.prices import ledger
from recd_plugins.planning.prices.cost import Prices
from recd_plugins.planning.prices.ledger import Ledger
from recd_plugins.planning.tables.profiled_table import ProfiledTable
from recd_plugins.planning.tier_plans.table_sizes import TableSizes
from recd_plugins.testing.arrange import Arrangement, BySharding
from recd_plugins.testing.gloo import GlooPool


class Apart(nn.Module):
    """Each table is in a collection of its own."""

    def __init__(self) -> None:
        super().__init__()
        for name, rows in ROWS.items():
            table = EmbeddingConfig(
                name=name, embedding_dim=DIM, num_embeddings=rows, feature_names=FEATURES[name]
            )
            meta = torch.device("meta")
            setattr(self, name, EmbeddingCollection(tables=[table], device=meta))

    def forward(self, batch: Batch) -> tuple[Tensor, None]:
        every = [getattr(self, name)(batch.features) for name in ROWS]
        rows = [one.values() for found in every for one in found.values()]
        return torch.cat(rows).sum(), None


def counted(arrange: Arrangement, make: Callable[[], nn.Module] = Sequences) -> tuple[int, int]:
    """On a rank: the operations of a step that are not within another, and its calls."""
    model = sharded(arrange, make)
    batches = [batch_of(2 * step + dist.get_rank(), 32) for step in range(2)]
    model(batches[0])[0].backward()
    with torch.profiler.profile(activities=[ProfilerActivity.CPU]) as profiler:
        model(batches[1])[0].backward()
    every: Any = profiler.events()
    calls = Counter(event.name for event in every)
    # A gather is a message to the one peer that each group of these tests has. What gloo's threads
    # record of a call may be missing: it ends a moment after DDP has what it waited for.
    called = sum(calls[f"c10d::{name}"] for name in ("alltoall_base_", "allreduce_", "send"))
    return sum(map(is_outermost, every)), called


def is_operation(event: Any) -> bool:
    return bool(event.name.startswith(("aten::", "fbgemm::")))


def is_outermost(event: Any) -> bool:
    above = event.cpu_parent
    while above is not None and not is_operation(above):
        above = above.cpu_parent
    return is_operation(event) and above is None


def priced(drawn: ByTiers, ranks: int, *, apart: bool = False) -> tuple[int, int]:
    """The same by the ledger: operations and calls beside those of row-wise tables, of which every
    step of these tests touches all rows."""
    cluster = Cluster.of(Topology(device="cpu", ranks_per_node=2), ranks)
    tables = {
        name: ProfiledTable(
            name=name, rows=uniform(rows, rows), dim=DIM, collection=name if apart else ""
        )
        for name, rows in ROWS.items()
    }
    sizes = {
        name: TableSizes(
            replicated=len(one.replicated), per_node=len(one.per_node), coalesce=one.coalesce
        )
        for name, one in tier_plan(drawn, ranks // 2).tables.items()
    }
    found = Ledger.of(tables, sizes, Prices(cluster=cluster, batch_size=32, k=1.65))
    return found.operations, sum(found.replica_calls.values()) + found.home_calls["a2a_intra"]


@pytest.mark.parametrize("ranks", [2, 4])
def test_steps_have_the_operations_and_the_calls_that_are_priced(
    ranks: int, gloo_pool: GlooPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one node of two ranks, or of two such nodes; in one chunk, or in several."""
    plain = gloo_pool.run(counted, BySharding("row_wise"), world_size=ranks)[0]
    tiers = partial(ByTiers, ranks_per_node=2, seed=3)
    ways = [tiers(tiers="replicated"), tiers(tiers="replicated", chunk_rows=8)]
    if ranks == 4:
        ways += [tiers(tiers="none", coalesce="node")]
        ways += [tiers(tiers="both", coalesce="rank", chunk_rows=4)]
    for drawn in ways:
        monkeypatch.setattr(ledger, "CHUNK_ROWS", drawn.chunk_rows)
        found = gloo_pool.run(counted, drawn, world_size=ranks)[0]
        operations, calls = (more - own for more, own in zip(found, plain, strict=True))
        expected, called = priced(drawn, ranks)
        assert abs(operations / expected - 1) < 0.1, (drawn, operations, expected)
        asked = 3 if drawn.tiers == "both" else 0  # which ride with the exchange with home
        assert calls == called + asked, drawn


def test_collections_have_operations_and_calls_of_their_own(gloo_pool: GlooPool) -> None:
    plain = gloo_pool.run(counted, BySharding("row_wise"), Apart, world_size=4)[0]
    drawn = ByTiers(ranks_per_node=2, seed=3, tiers="replicated")
    found = gloo_pool.run(counted, drawn, Apart, world_size=4)[0]
    operations, calls = (more - own for more, own in zip(found, plain, strict=True))
    expected, called = priced(drawn, 4, apart=True)
    assert abs(operations / expected - 1) < 0.1, (operations, expected)
    assert calls == called == 2 * priced(drawn, 4)[1]

"""Rung 3 (two gloo ranks): unique samples looked up behind tiers of replicas, as plain training.

Of sequences, and of bags whose rows travel.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import pytest
from mixed import BAGS, ROWS, SEQUENCES, Mixed, Sharded, batch_of, deduplicated

from recd_plugins.embedding.sharded import with_dedup
from recd_plugins.planning.tier_plans.tier_plan import TablePlan, TierPlan
from recd_plugins.registry.settings import OptimizerSettings
from recd_plugins.testing.arrange import Arranged
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.testing.parity import assert_parity, reference_of, train_on
from recd_plugins.tiers.sharder import ShardedTiers, tier_sharders


@dataclass(frozen=True)
class Tiered:
    """Row-wise; of each of these tables' rows a third on all ranks, a third on each node."""

    planned: tuple[str, ...]
    n_nodes: int

    def __call__(self, model: Mixed, optimizer: OptimizerSettings) -> Arranged:
        arranged = Sharded("row_wise")(model, optimizer)
        rows = np.arange(ROWS)
        tables = {
            name: TablePlan(table=name, replicated=rows[::3], per_node=rows[1::3], coalesce="rank")
            for name in self.planned
        }
        plan = TierPlan(tables=tables, n_nodes=self.n_nodes, ranks_per_node=2 // self.n_nodes)
        plain = [one for one in arranged.sharders if one.module_type.__name__[:5] != "Dedup"]
        return arranged._replace(sharders=with_dedup(tier_sharders(ShardedTiers(plan), plain)))


@pytest.mark.parametrize(
    ("planned", "n_nodes", "tables"),
    [
        (SEQUENCES, 1, "sgd"),
        (SEQUENCES, 1, "rowwise_adagrad"),
        (SEQUENCES, 2, "sgd"),
        (SEQUENCES, 2, "rowwise_adagrad"),
        (BAGS, 1, "sgd"),
        (BAGS, 2, "rowwise_adagrad"),
    ],
)
def test_losses_and_weights(
    gloo_pool: GlooPool, planned: Collection[str], n_nodes: int, tables: str
) -> None:
    plain = [
        [batch_of(6 + rank, 2 + rank, seed=2 * step + rank) for rank in range(2)]
        for step in range(4)
    ]
    unique = [[deduplicated(batch) for batch in step] for step in plain]
    optimizer = OptimizerSettings(
        tables=tables, tables_lr=0.1, tables_eps=1e-4, dense="sgd", dense_lr=0.1
    )
    trained = train_on(gloo_pool, Mixed, unique, Tiered((*planned,), n_nodes), optimizer)
    assert_parity(trained, *reference_of(Mixed, plain, optimizer=optimizer))

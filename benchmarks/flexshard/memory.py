"""k: the memory of a replicated row with its optimizer state and its update, divided by the row's
own bytes."""

from __future__ import annotations

import statistics

import torch
import torch.distributed as dist

from benchmarks.flexshard.paper import PRICES
from benchmarks.harness import Figure, Limit, spread
from benchmarks.recd_train.memory import give_back
from recd_plugins.planning.tier_plans.tier_plan import CHUNK_ROWS
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.tiers.collectives import CollectiveSequence
from recd_plugins.tiers.gradients.entries import Entries
from recd_plugins.tiers.gradients.reduction import GradientDivision, Reduction
from recd_plugins.tiers.gradients.touched import exchange_touched
from recd_plugins.tiers.home_tables import HomeTable
from recd_plugins.tiers.peers import Nodes
from recd_plugins.tiers.replicas.tier_layout import TierLayout
from recd_plugins.tiers.replicas.tier_rows import PlannedRows, ReplicatedTier
from recd_plugins.tiers.routing.bitmap_router import BitmapRouter
from recd_plugins.tiers.row_optimizer import RowOptimizer
from recd_plugins.trainer.measure.memory import PeakMemory

__all__ = ["K", "k_of_replicas", "memory_multiplier"]

K = 1.65
"""What the planner assumes if no cluster can be made to measure it."""
NUM_ROWS, FEW_ROWS, DIM = 500_000, 64, 64
RANKS, RANKS_PER_NODE = 4, 2


def k_of_replicas(runs: int) -> Figure:
    """The k of runs in separate processes. Before, these have only done the same with few rows, in
    as many chunks as are needed to run all of the code: that code stays in memory, and does not
    count as a replica's."""
    found = []
    for _ in range(runs):
        with GlooPool() as fresh:
            for num_rows, chunk_rows in ((FEW_ROWS, FEW_ROWS // 4), (NUM_ROWS, CHUNK_ROWS)):
                ranks = fresh.run(
                    memory_multiplier, num_rows, DIM, RANKS_PER_NODE, chunk_rows, world_size=RANKS
                )
        found.append(max(ranks))
    return Figure(
        name="k of our replicas",
        value=statistics.median(found),
        unit="x the rows' bytes",
        baseline=PRICES.k,
        target=1.2,
        at_most=True,
        limit=Limit(
            value=1 + 1 / DIM,
            of="the rows and the optimizer's number for each; gradients under way, the router and "
            "buffers are left out",
        ),
        spread=spread(found),
        note=f"{NUM_ROWS:,} rows x {DIM}, row-wise Adagrad, an update of all of them; resident "
        f"memory of the fullest of {RANKS} ranks in nodes of {RANKS_PER_NODE}, {runs} runs; "
        f"{CHUNK_ROWS:,} rows under way; the paper's is the baseline",
    )


def memory_multiplier(num_rows: int, dim: int, ranks_per_node: int, chunk_rows: int) -> float:
    """The peak bytes of replica, router and an update of every row on a rank, divided by the bytes
    of the rows.

    The bytes are those of the process as the system counts it, including gloo's and numpy's
    buffers.

    It is the worst possible step: each rank has a gradient for each row. The gradients themselves,
    which the model made, do not count; everything that is done with them does.
    """
    world = dist.group.WORLD
    assert world is not None
    nodes = Nodes(world, ranks_per_node)
    layout = TierLayout(num_rows, ranks_per_node)
    none, states = torch.zeros(0, dim), (torch.zeros(0, 1),)
    home = HomeTable(0, none, states, (none, *states))
    gradients = torch.ones(num_rows, dim)
    dist.barrier()
    give_back()
    memory = PeakMemory(torch.device("cpu"))
    rows = torch.arange(num_rows)
    kept = BitmapRouter([num_rows], [rows], [rows[:0]])
    optimizer = RowOptimizer(kind="rowwise_adagrad", learning_rate=0.1)
    width = optimizer.state_width(dim)
    replica = ReplicatedTier([PlannedRows(home, rows)], home.rows, width, layout, nodes)
    mine = torch.ones(ranks_per_node, layout.share_rows, dtype=torch.bool)
    touched = CollectiveSequence(exchange_touched(mine, nodes)).finish()
    entries = Entries(layout.address(rows), gradients)
    reduction = Reduction(nodes, GradientDivision.of_forward(), chunk_rows)
    CollectiveSequence(reduction.replicated(replica, entries, touched, optimizer)).finish()
    peak = memory.above()
    del kept
    return peak / (num_rows * dim * 4)

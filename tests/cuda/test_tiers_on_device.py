"""Rung 3 (one and two gloo ranks): a step through the tiers on CUDA's way is the CPU's step.

TorchRec's own side, which sends ids home and looks them up there, stays on the CPU; its tables are
the same memory on both sides. All else of a batch's way (docs/architecture.md) is on the device.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from emulated import EmulatedCuda, held, on_device
from torch import Tensor
from torch.autograd import Function
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embedding import ShardedEmbeddingCollection
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor

from recd_plugins.planning.tier_plan import Coalesce, TablePlan, TierPlan
from recd_plugins.registry.settings import OptimizerSettings
from recd_plugins.sparse.keyed import marked
from recd_plugins.testing.arrange import BySharding
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.tiers import update
from recd_plugins.tiers.home_tables import HomeTable
from recd_plugins.tiers.sharder import TierCluster, tier_sharders
from recd_plugins.tiers.tier_collections import TierEmbeddingCollection
from recd_plugins.tiers.tiers import Tiers
from recd_plugins.trainer.initial_tables import initialise_tables, table_initialisers

ROWS, DIM = 40, 8
STEPS = 3
OF_A_STEP = {
    "router.py route_by_ops: to the host",
    "exchange.py coalesce_by_table: unique",
    "exchange.py coalesce_by_table: to the host",
    "exchange.py _ask_concentrators: bincount",
    "exchange.py _coalesce_keys: to the host",
    "exchange.py _coalesce_keys: bincount",
    "exchange.py of: unique",
    "exchange.py ask_node: to the host",
    "update.py __init__: to the host",
    "update.py __init__: nonzero",
    "update.py receives: nonzero",
    "update.py per_node: nonzero",
    "update.py _in_node: nonzero",
}
"""What docs/cuda.md says that a step waits for, and why."""
BEFORE_AND_AFTER = ("test_tiers_on_device.py", "hot.py", "replicas.py", "home_tables.py")
"""Batches that come, replicas that are filled, and rows that go home."""


class _FromHome(Function):
    """Rows from the CPU to the device; their gradients back."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        return on_device(rows)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return held(gradient)


def _home_on_cpu(patches: pytest.MonkeyPatch) -> None:
    """TorchRec takes ids of the device, and yields rows of it."""
    take, wait = ShardedEmbeddingCollection.input_dist, Tiers.wait

    def input_dist(self: Any, ctx: Any, features: KeyedJaggedTensor) -> Any:
        here = KeyedJaggedTensor(
            keys=features.keys(),
            values=held(features.values()),
            lengths=held(features.lengths()),
            stride=features.stride(),
            length_per_key=features.length_per_key(),
        )
        return take(self, ctx, here)

    def from_home(self: Any, home: Any, update: Any) -> Mapping[str, JaggedTensor]:
        found = wait(self, home, update)
        return {
            name: JaggedTensor(_FromHome.apply(one.values()), lengths=on_device(one.lengths()))
            for name, one in found.items()
        }

    patches.setattr(ShardedEmbeddingCollection, "input_dist", input_dist)
    patches.setattr(Tiers, "wait", from_home)
    # One stream has the work of both in order.
    patches.setattr(update, "side_stream", lambda _: update.SideStream(torch.device("cpu")))


def _put_on_device(tiers: Tiers) -> None:
    for group in tiers._groups:
        group.homes = tuple(
            HomeTable(one.first_row, on_device(one.rows), tuple(map(on_device, one.states)))
            for one in group.homes
        )


def plan_of(world_size: int, coalesce: Coalesce, shift: int = 0) -> TierPlan:
    order = (torch.arange(ROWS) * 7 + shift) % ROWS
    table = TablePlan(
        table="songs",
        replicated=order[:9].numpy(),
        per_node=order[9:16].numpy(),
        coalesce=coalesce,
    )
    return TierPlan(tables={"songs": table}, n_nodes=1, ranks_per_node=world_size)


def batch_of(step: int, rank: int, hot: bool) -> KeyedJaggedTensor:
    """A hot one has ids of rows that all ranks have, and of no others."""
    draw = torch.Generator().manual_seed(10 * step + rank)
    lengths = torch.randint(0, 5, (6 + rank,), generator=draw, dtype=torch.int32)
    return KeyedJaggedTensor.from_lengths_sync(  # counted before it is copied, as a reader does
        keys=["item"],
        values=torch.randint(0, 9 if hot else ROWS, (int(lengths.sum()),), generator=draw)
        * (7 if hot else 1)
        % ROWS,
        lengths=lengths,
    )


def trained(
    kind: str, coalesce: Coalesce, hot: bool, emulated: bool
) -> tuple[list[Tensor], dict[str, int]]:
    """On a rank: each step's rows, and at last the table's; how often a step waited for what."""
    from torchrec.modules.embedding_configs import EmbeddingConfig
    from torchrec.modules.embedding_modules import EmbeddingCollection

    rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    config = EmbeddingConfig(
        name="songs", embedding_dim=DIM, num_embeddings=ROWS, feature_names=["item"]
    )
    model = torch.nn.Sequential(EmbeddingCollection(tables=[config], device=torch.device("meta")))
    optimizer = OptimizerSettings(tables=kind, tables_lr=0.1, tables_eps=1e-4)
    initialisers = table_initialisers(model)
    arranged = BySharding("row_wise")(model, optimizer)
    cluster = TierCluster(plan_of(world_size, coalesce), chunk_rows=64)
    sharded = DistributedModelParallel(
        model,
        device=torch.device("cpu"),
        plan=arranged.plan,
        sharders=tier_sharders(cluster, arranged.sharders),
    )
    initialise_tables(sharded, initialisers, 0)
    (collection,) = (m for m in sharded.modules() if isinstance(m, TierEmbeddingCollection))
    found: list[Tensor] = []
    plans = [plan_of(world_size, coalesce), plan_of(world_size, coalesce, shift=3)]

    def steps(device: torch.device) -> None:
        for step in range(STEPS):
            if step == STEPS - 1:
                collection.tiers.retier(plans[True])
            batch = marked(batch_of(step, rank, hot), plans[False].version if hot else None)
            rows = collection(batch.to(device))["item"].values()
            found.append(held(rows).clone())
            (rows.square().sum() / 10).backward()
        collection.tiers.flush()

    if not emulated:
        steps(torch.device("cpu"))
        return [*found, _table(sharded)], {}
    with pytest.MonkeyPatch.context() as own, EmulatedCuda() as device:
        _home_on_cpu(own)
        _put_on_device(collection.tiers)
        collection.tiers.retier(plan_of(world_size, coalesce))
        device.waits.clear()
        steps(torch.device("cuda"))
        waits = {
            where: -(-count // STEPS) for where, count in device.waits.items() if where in OF_A_STEP
        }
        others = device.waits.keys() - waits.keys()
    assert all(where.startswith(BEFORE_AND_AFTER) for where in others), device.waits
    return [*found, _table(sharded)], waits


def _table(sharded: DistributedModelParallel) -> Tensor:
    (table,) = (v for name, v in sharded.state_dict().items() if name.endswith("songs.weight"))
    rows: Tensor = table.local_shards()[0].tensor.clone()
    return rows


def both_ways(kind: str, coalesce: Coalesce, hot: bool) -> dict[str, int]:
    here, _ = trained(kind, coalesce, hot, emulated=False)
    there, waits = trained(kind, coalesce, hot, emulated=True)
    for one, other in zip(there, here, strict=True):
        # float32's rounding: the two ways may sum a row's gradients in other orders.
        torch.testing.assert_close(one, other)
    return waits


@pytest.mark.parametrize(
    ("kind", "coalesce", "world_size", "hot", "most"),
    [
        ("sgd", "none", 1, False, 8),
        ("rowwise_adagrad", "rank", 2, False, 10),
        ("sgd", "node", 2, False, 16),
        ("sgd", "rank", 2, True, 11),
    ],
)
def test_a_step_is_the_cpus(
    gloo_pool: GlooPool, kind: str, coalesce: Coalesce, world_size: int, hot: bool, most: int
) -> None:
    for waits in gloo_pool.run(both_ways, kind, coalesce, hot, world_size=world_size):
        assert sum(waits.values()) <= most, waits

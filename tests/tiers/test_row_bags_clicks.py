"""Row bags of Criteo's shape, one id a bag: two and four gloo ranks, beside plain TorchRec.

What crosses the wire, what types tables may have, where their weights come from.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torchrec.distributed import DistributedModelParallel
from torchrec.modules.embedding_configs import DataType, EmbeddingBagConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.planning.tier_plans.tier_plan import TablePlan, TierPlan
from recd_plugins.registry.settings import OptimizerSettings
from recd_plugins.testing.arrange import Arranged, Arrangement, BySharding, tables_of
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.testing.trained import gather_table
from recd_plugins.tiers.sharder import ShardedTiers, tier_sharders
from recd_plugins.trainer.initial_tables import initialise_tables, table_initialisers
from recd_plugins.trainer.measure.traffic import TrafficCounter

PLAIN = BySharding("row_wise")
FEATURES, SAMPLES, NUM_ROWS = 8, 512, 2_000


class Clicks(nn.Module):
    """Criteo's shape: many features, each of one id a sample."""

    def __init__(self, data_type: DataType = DataType.FP32) -> None:
        super().__init__()
        self.bags = EmbeddingBagCollection(
            tables=[
                EmbeddingBagConfig(
                    name=f"t{number}",
                    embedding_dim=16,
                    num_embeddings=NUM_ROWS,
                    feature_names=[f"c{number}"],
                    data_type=data_type,
                    pooling=PoolingType.SUM,
                )
                for number in range(FEATURES)
            ],
            device=torch.device("meta"),
        )

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        values: Tensor = self.bags(features).values()
        return values


def clicks() -> KeyedJaggedTensor:
    """This rank's: ids by Zipf's law with exponent 1.05."""
    draw = np.random.default_rng(dist.get_rank())
    shares = np.arange(1, NUM_ROWS + 1) ** -1.05
    ids = draw.choice(NUM_ROWS, FEATURES * SAMPLES, p=shares / shares.sum())
    return KeyedJaggedTensor(
        keys=[f"c{number}" for number in range(FEATURES)],
        values=torch.from_numpy(ids),
        lengths=torch.ones(FEATURES * SAMPLES, dtype=torch.int32),
    )


@dataclasses.dataclass(frozen=True)
class Coalesced:
    """Row-wise; no row has a replica."""

    def __call__(self, model: nn.Module, optimizer: OptimizerSettings) -> Arranged:
        arranged = PLAIN(model, optimizer)
        (names,) = tables_of(model).values()
        plan = TierPlan(
            tables={name: TablePlan(table=name, coalesce="rank") for name in names},
            n_nodes=1,
            ranks_per_node=dist.get_world_size(),
        )
        return arranged._replace(sharders=tier_sharders(ShardedTiers(plan), arranged.sharders))


def shard(model: nn.Module, arrange: Arrangement) -> DistributedModelParallel:
    initialisers = table_initialisers(model)
    arranged = arrange(model, OptimizerSettings())
    sharded = DistributedModelParallel(
        model, device=torch.device("cpu"), plan=arranged.plan, sharders=arranged.sharders
    )
    initialise_tables(sharded, initialisers, 0)
    return sharded


def bytes_of_a_step() -> list[float]:
    """On a rank: handed over with row bags, and with TorchRec's."""
    found = []
    for arrange in (Coalesced(), PLAIN):
        model = shard(Clicks(), arrange)
        with TrafficCounter() as counter:
            model(clicks()).sum().backward()
        found.append(sum(sum(phases.values()) for phases in counter.traffic.values()))
    return found


def test_rows_take_fewer_bytes_than_sums(gloo_pool: GlooPool) -> None:
    for rows, sums in gloo_pool.run(bytes_of_a_step, world_size=4):
        assert rows < sums / 3


def half_rows() -> None:
    """On a rank: a table of 16 bits is summed in 32, as TorchRec does; of one id, to the bit."""
    ours, theirs = (shard(Clicks(DataType.FP16), arrange) for arrange in (Coalesced(), PLAIN))
    features = clicks()
    pooled = [model.module.bags(features).wait().to_dict() for model in (ours, theirs)]
    for key, bags in pooled[0].items():
        assert bags.dtype == torch.float32
        torch.testing.assert_close(bags, pooled[1][key], atol=0, rtol=0)


def test_tables_of_half_precision(gloo_pool: GlooPool) -> None:
    gloo_pool.run(half_rows)


def whole_tables() -> None:
    """On a rank: a collection that has its weights brings them."""
    torch.manual_seed(1)
    model = Clicks()
    model.bags = EmbeddingBagCollection(model.bags.embedding_bag_configs())
    weights = {name: table.weight.clone() for name, table in model.bags.embedding_bags.items()}
    arranged = Coalesced()(model, OptimizerSettings())
    sharded = DistributedModelParallel(
        model, device=torch.device("cpu"), plan=arranged.plan, sharders=arranged.sharders
    )
    for name, found in sharded.state_dict().items():
        table = gather_table(found)
        torch.testing.assert_close(table, weights[name.split(".")[2]], atol=0, rtol=0)


def test_weights_of_a_collection_are_kept(gloo_pool: GlooPool) -> None:
    gloo_pool.run(whole_tables)

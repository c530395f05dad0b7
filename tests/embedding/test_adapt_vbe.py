"""Rung 1 and 3 (values, two gloo ranks): TorchRec's variable-batch form, as far as a CPU goes."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from mixed import GROUPS, KEYS, Mixed, Sharded, batch_of, deduplicated
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.types import ShardingEnv

from recd_plugins.embedding.adapt import adapt
from recd_plugins.embedding.lookup import vbe_rows_of
from recd_plugins.embedding.pooling import DedupPooling
from recd_plugins.embedding.sharded import DedupSharder, ShardedDedupEmbeddingCollection
from recd_plugins.embedding.unexpanded import Unexpanded
from recd_plugins.errors import CapabilityError
from recd_plugins.registry.settings import OptimizerSettings
from recd_plugins.testing.gloo import GlooPool

SGD = OptimizerSettings(tables="sgd")
CPU = torch.device("cpu")


def test_rows_are_unpadded_and_say_whose_they_are() -> None:
    batch = batch_of(9, 4, seed=2)
    unique = deduplicated(batch).sparse
    rows = vbe_rows_of(unique, KEYS)
    keys, inverse = rows.inverse_indices()
    assert keys == rows.keys() == KEYS
    counts = [unique.rows[key].lengths.numel() for key in KEYS]
    assert rows.stride_per_key() == counts
    assert min(counts) < 9
    for key, lookup in zip(KEYS, inverse, strict=True):
        expanded = unique.rows[key].lengths[lookup]
        assert torch.equal(expanded, batch.features[key].lengths())


def test_nothing_stays_unique_for_a_pooling() -> None:
    model = adapt(Mixed(), GROUPS, route="vbe")
    assert not isinstance(model.summed, DedupPooling)
    assert [len(module.parts) for module in (model.bags, model.sequences)] == [1, 1]


def test_a_cpu_refuses() -> None:
    model = adapt(Mixed(), GROUPS, route="vbe")
    sharder = DedupSharder(EmbeddingCollectionSharder())
    env = ShardingEnv(world_size=1, rank=0)
    with pytest.raises(CapabilityError, match=r"the route 'vbe' needs a GPU\. On the CPU, fbgemm"):
        sharder.shard(model.sequences, {}, env, CPU)


def sequences(route: str) -> dict[str, tuple[list[float], list[int], bool]]:
    """What a sharded collection yields, forward, where a CPU still can."""
    model = Mixed()
    plan = Sharded("row_wise", adapted=False)(model, SGD).plan
    adapt(model, GROUPS, route=route)
    env = ShardingEnv.from_process_group(dist.group.WORLD)
    inner = EmbeddingCollectionSharder(fused_params=SGD.fused_params())
    part = inner.shard(model.sequences, plan.plan["sequences"], env, CPU, "sequences")
    sharded = ShardedDedupEmbeddingCollection(model.sequences, [part])
    with torch.no_grad():
        for value in sharded.parameters():
            value.copy_(torch.arange(value.numel()).view(value.shape) + 1000 * dist.get_rank())
    batch = deduplicated(batch_of(5 + dist.get_rank(), 3, seed=dist.get_rank()))
    return {
        name: (
            jagged.values().sum(1).tolist(),
            jagged.lengths().tolist(),
            isinstance(jagged.values(), Unexpanded),
        )
        for name, jagged in sharded(batch.sparse).wait().items()
    }


def test_torchrec_expands_sequences(gloo_pool: GlooPool) -> None:
    padded, vbe = gloo_pool.run(sequences, "padded"), gloo_pool.run(sequences, "vbe")
    for ours, theirs in zip(vbe, padded, strict=True):
        assert {name: part[:2] for name, part in ours.items()} == {
            name: part[:2] for name, part in theirs.items()
        }
        assert not any(unexpanded for _, _, unexpanded in ours.values())
        assert any(unexpanded for _, _, unexpanded in theirs.values())

"""Value tests of sequence_dlrm; then one and two gloo ranks against plain PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from clicks import SHAPES, Trained, build, clicks, on_cpu, part, train_plain, train_sharded
from torch import Tensor, nn

from recd_dlrm import recd_model, recd_pooling
from recd_dlrm.models.sequence_dlrm import SequenceDlrmConfig, choose_poolings
from recd_plugins.data.batch import Batch
from recd_plugins.data.schema import Schema, SparseFeature
from recd_plugins.errors import RegistryError
from recd_plugins.slots import Context, PoolingFactory
from recd_plugins.testing.gloo import GlooPool

(RECORD,) = (record for record in recd_model() if record.name == "sequence_dlrm")
POOLINGS = {record.name: record for record in recd_pooling()}
SMALL = SequenceDlrmConfig(embedding_dim=8, bottom=(16,), top=(16,))
SCHEMA = Schema(
    dense=("price", "age"),
    sparse=(
        SparseFeature(name="user", num_ids=40),
        SparseFeature(name="item", num_ids=60, table="items"),
        SparseFeature(name="tags", num_ids=20),
        SparseFeature(name="history", num_ids=80, table="items", sequence=True),
        SparseFeature(name="searches", num_ids=30, sequence=True),
        SparseFeature(name="region", num_ids=10),
    ),
)


def pooling(**names: str) -> dict[str, PoolingFactory]:
    """Feature to what the record of a name builds with its defaults."""
    return {
        feature: POOLINGS[name].build(POOLINGS[name].config(), Context())
        for feature, name in names.items()
    }


def by_hand(net: nn.Module, batch: Batch, query: str) -> Tensor:
    """Logits [B]: sums of rows of the tables, but for a history that attends to `query`."""
    tables = {
        path.split(".")[-2].removeprefix("t_"): table
        for path, table in net.named_parameters()
        if "embedding" in path
    }
    rows = {
        feature.name: [
            tables[feature.table_name][ids] for ids in batch.features[feature.name].to_dense()
        ]
        for feature in SCHEMA.sparse
    }
    vectors = {name: torch.stack([keys.sum(0) for keys in of]) for name, of in rows.items()}
    (attention,) = (p for p in net.vectors.poolings if hasattr(p, "needs_query"))
    vectors["history"] = torch.cat(
        [
            attention(keys, torch.tensor([len(keys)]), q.unsqueeze(0))
            for keys, q in zip(rows["history"], vectors[query], strict=True)
        ]
    )
    together = torch.stack([net.bottom(batch.dense), *vectors.values()], dim=1)
    upper = torch.triu_indices(7, 7, offset=1)
    dots = (together @ together.mT)[:, upper[0], upper[1]]
    logits: Tensor = net.top(torch.cat([together[:, 0], dots], dim=1)).squeeze(1)
    return logits


@pytest.mark.parametrize(
    ("named", "query"), [({}, "item"), ({"history": "tags"}, "tags")], ids=["shared", "named"]
)
def test_logits(named: Mapping[str, str], query: str) -> None:
    """The default query shares the history's table; a named one may be a bag's vector."""
    config = replace(SMALL, query=named)
    model = on_cpu(build(RECORD, SCHEMA, config, pooling(history="attention")))
    batch = clicks(SCHEMA, 12)
    _, (_, logits, _, _) = model(batch)
    torch.testing.assert_close(logits, by_hand(model.net, batch, query))


def test_each_table_exists_once() -> None:
    """`item` lies in the collection with the history that shares its table, on meta."""
    net = build(RECORD, SCHEMA, SMALL).net
    collection = {c.name: c.feature_names for c in net.sequences.embedding_configs()}
    bags = {c.name: c.feature_names for c in net.bags.embedding_bag_configs()}
    assert collection == {"t_items": ["history", "item"], "t_searches": ["searches"]}
    assert bags == {"t_user": ["user"], "t_tags": ["tags"], "t_region": ["region"]}
    tables = [*net.sequences.parameters(), *net.bags.parameters()]
    assert all(table.is_meta for table in tables)
    assert {p.device.type for p in net.parameters()} == {"meta", "cpu"}


def test_a_schema_of_sequences_alone_needs_no_bags() -> None:
    schema = Schema(sparse=tuple(f for f in SCHEMA.sparse if f.table_name in ("items", "searches")))
    model = on_cpu(build(RECORD, schema, SMALL))
    assert model.net.bags is None
    loss, _ = model(clicks(schema, 5))
    assert loss.isfinite()


def test_features_become_sequences_by_name() -> None:
    net = build(RECORD, SCHEMA, replace(SMALL, sequences=("tags",)), pooling(tags="mean")).net
    poolings = dict(zip(net.vectors.features, net.vectors.poolings, strict=True))
    assert str(poolings["tags"]) == "Reduce(mean)"
    assert str(poolings["history"]) == "Reduce(sum)"


def test_a_name_goes_before_globs_and_these_in_their_order() -> None:
    slot = pooling(**{"*": "sum", "user_*": "mean", "user_history": "max"})
    chosen = choose_poolings(slot, ["user_history", "user_searches", "clicks"])
    assert {name: str(factory(8)) for name, factory in chosen.items()} == {
        "user_history": "Reduce(max)",
        "user_searches": "Reduce(sum)",
        "clicks": "Reduce(sum)",
    }


@pytest.mark.parametrize(
    ("schema", "options", "slot", "message"),
    [
        (
            Schema(sparse=(SparseFeature(name="user", num_ids=4),)),
            {},
            {},
            r"model\.sequences: .*no feature as one",
        ),
        (SCHEMA, {"sequences": ("tag",)}, {}, r"model\.sequences: .*did you mean 'tags'"),
        (SCHEMA, {"query": {"histori": "item"}}, {}, r"model\.query: .*did you mean 'history'"),
        (
            SCHEMA,
            {"query": {"history": "searches"}},
            {},
            r"model\.query\.history: 'searches' is no feature beside the sequences",
        ),
        (SCHEMA, {}, {"tags": "mean"}, r"pooling\.tags: 'tags' is no sequence"),
        (
            SCHEMA,
            {},
            {"searches": "attention"},
            r"pooling\.searches: needs a query.*model\.query\.searches",
        ),
    ],
    ids=["no sequence", "sequences", "query of", "query", "pooling of", "no query"],
)
def test_options_that_cannot_be(
    schema: Schema, options: dict[str, Any], slot: dict[str, str], message: str
) -> None:
    with pytest.raises(RegistryError, match=message):
        build(RECORD, schema, replace(SMALL, **options), pooling(**slot))


def train(slot: dict[str, str], samples: int, steps: int, lr: float, idle: bool = False) -> Trained:
    """On a rank: steps over its share of one batch; `idle` empties rank 1's histories."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    lengths = {**SHAPES, "history": (0, 0), "searches": (0, 0)} if idle and rank else SHAPES
    batch = part(clicks(SCHEMA, samples, lengths=lengths), torch.arange(rank, samples, world_size))
    return train_sharded(build(RECORD, SCHEMA, SMALL, pooling(**slot)), [batch] * steps, lr)


MIXED = [
    {"history": "attention"},
    {"history": "transformer", "searches": "transformer"},
    {"*": "max", "searches": "mean"},
]


@pytest.mark.parametrize("slot", MIXED, ids=str)
def test_one_rank_learns_a_fixed_batch(slot: dict[str, str], gloo_pool: GlooPool) -> None:
    (trained,) = gloo_pool.run(train, slot, 64, 60, 0.5, world_size=1)
    assert trained.pipelined == ["net.sequences", "net.bags"]
    assert trained.losses[-1] < 0.9 * trained.losses[0]


@pytest.mark.parametrize("slot", MIXED, ids=str)
def test_two_ranks_train_as_plain_torch(slot: dict[str, str], gloo_pool: GlooPool) -> None:
    ranks = gloo_pool.run(train, slot, 64, 20, 0.5)
    model = build(RECORD, SCHEMA, SMALL, pooling(**slot))
    plain = train_plain(model, [clicks(SCHEMA, 64)] * 20, 0.5)
    means = [sum(losses) / 2 for losses in zip(*(rank.losses for rank in ranks), strict=True)]
    assert means == pytest.approx(plain, abs=1e-5)  # float32, summed in another order
    assert plain[-1] < plain[0] - 0.01  # far more than the tolerance
    for rank in ranks:
        assert rank.pipelined == ["net.sequences", "net.bags"]
        assert rank.keys == ["tags", "user", "region"]  # not the unsharded order


def test_a_rank_without_a_single_history_trains_on(gloo_pool: GlooPool) -> None:
    """Its poolings have gradients all the same; DDP would fail in the second step if not."""
    slot = {"history": "transformer", "searches": "max"}
    ranks = gloo_pool.run(train, slot, 32, 4, 0.5, idle=True)
    assert sum(rank.losses[-1] - rank.losses[0] for rank in ranks) < 0

"""Value tests of sequence_dlrm; then one and two gloo ranks against plain PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from clicks import LENGTHS, Build, Mixed, clicks, pooling, train
from torch import Tensor, nn

from recd_dlrm.models.sequence_dlrm import SequenceDlrmConfig, choose_poolings
from recd_plugins.data.batch import Batch
from recd_plugins.data.schema import Schema, SparseFeature
from recd_plugins.errors import RegistryError
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.testing.parity import check_parity

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
    (attention,) = (p for p in net.vectors.poolings if p.needs_query)
    vectors["history"] = torch.cat(
        [
            attention(keys, torch.tensor([len(keys)]), q.unsqueeze(0))
            for keys, q in zip(rows["history"], vectors[query], strict=True)
        ]
    )
    stacked = torch.stack([net.bottom(batch.dense), *vectors.values()], dim=1)
    upper = torch.triu_indices(7, 7, offset=1)
    dots = (stacked @ stacked.mT)[:, upper[0], upper[1]]
    logits: Tensor = net.top(torch.cat([stacked[:, 0], dots], dim=1)).squeeze(1)
    return logits


@pytest.mark.parametrize(
    ("named", "query"), [({}, "item"), ({"history": "tags"}, "tags")], ids=["shared", "named"]
)
def test_logits_are_those_made_by_hand(named: Mapping[str, str], query: str) -> None:
    """The default query shares the history's table; a named one may be a bag's vector."""
    config = replace(SMALL, query=named)
    model = Build("sequence_dlrm", SCHEMA, config, {"history": "attention"}).on_cpu()
    batch = clicks(SCHEMA, 12)
    _, (_, logits, _, _) = model(batch)
    torch.testing.assert_close(logits, by_hand(model.net, batch, query))


def test_each_table_exists_once() -> None:
    """`item` lies in the collection with the history that shares its table, on meta."""
    net = Build("sequence_dlrm", SCHEMA, SMALL)().net
    collection = {c.name: c.feature_names for c in net.sequences.embedding_configs()}
    bags = {c.name: c.feature_names for c in net.bags.embedding_bag_configs()}
    assert collection == {"t_items": ["history", "item"], "t_searches": ["searches"]}
    assert bags == {"t_user": ["user"], "t_tags": ["tags"], "t_region": ["region"]}
    tables = [*net.sequences.parameters(), *net.bags.parameters()]
    assert all(table.is_meta for table in tables)
    assert {p.device.type for p in net.parameters()} == {"meta", "cpu"}


def test_a_schema_of_sequences_alone_needs_no_bags() -> None:
    schema = Schema(sparse=tuple(f for f in SCHEMA.sparse if f.table_name in ("items", "searches")))
    model = Build("sequence_dlrm", schema, SMALL).on_cpu()
    assert model.net.bags is None
    loss, _ = model(clicks(schema, 5))
    assert loss.isfinite()


def test_features_become_sequences_by_name() -> None:
    net = Build(
        "sequence_dlrm", SCHEMA, replace(SMALL, sequences=("tags",)), {"tags": "mean"}
    )().net
    poolings = dict(zip(net.vectors.features, net.vectors.poolings, strict=True))
    assert str(poolings["tags"]) == "Reduce(mean)"
    assert str(poolings["history"]) == "Reduce(sum)"


def test_a_name_goes_before_globs_and_these_in_their_order() -> None:
    slot = pooling({"*": "sum", "user_*": "mean", "user_history": "max"})
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
            r"model\.query\.history: 'searches' is none of the features beside",
        ),
        (SCHEMA, {}, {"tags": "mean"}, r"pooling\.tags: no sequence of the model matches 'tags'"),
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
        Build("sequence_dlrm", schema, replace(SMALL, **options), slot)()


MIXED = [
    {"history": "attention"},
    {"history": "transformer", "searches": "transformer"},
    {"*": "max", "searches": "mean"},
]


@pytest.mark.parametrize(
    ("slot", "ranks"), [(MIXED[0], 1), *((slot, 2) for slot in MIXED)], ids=str
)
def test_learns_a_fixed_batch(slot: dict[str, str], ranks: int, gloo_pool: GlooPool) -> None:
    batches = [clicks(SCHEMA, 32, seed=rank) for rank in range(ranks)]
    build = Build("sequence_dlrm", SCHEMA, SMALL, slot)
    for run in gloo_pool.run(train, build, batches, steps=80, lr=0.5, world_size=ranks):
        assert run.pipelined == ["net.sequences", "net.bags"]
        assert run.losses[-1] < 0.9 * run.losses[0]
        if ranks == 2:
            assert run.keys == ["tags", "user", "region"]  # not the unsharded order


@pytest.mark.parametrize("slot", MIXED, ids=str)
def test_two_ranks_train_as_plain_torch(slot: dict[str, str], gloo_pool: GlooPool) -> None:
    steps = [[clicks(SCHEMA, 16, seed=2 * step + rank) for rank in range(2)] for step in range(3)]
    check_parity(gloo_pool, Build("sequence_dlrm", SCHEMA, SMALL, slot), steps, arrange=Mixed())


def test_a_rank_may_have_no_history_at_all_for_a_step(gloo_pool: GlooPool) -> None:
    """TorchRec's DDP takes the graph for static: what has no gradient at first must never have."""
    none = {**LENGTHS, "history": (0, 0), "searches": (0, 0)}
    some, idle = clicks(SCHEMA, 16), clicks(SCHEMA, 16, seed=1, lengths=none)
    slot = {"history": "transformer", "searches": "max"}
    check_parity(
        gloo_pool,
        Build("sequence_dlrm", SCHEMA, SMALL, slot),
        [[some, idle], [some, some], [idle, some]],
        arrange=Mixed(),
        tables=("sgd",),
    )

"""Rung 1 (values, unsharded models): scored ids count by their weights, on unique samples too."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
from torch import nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_dlrm.models.dlrm import DlrmConfig, build_dlrm
from recd_dlrm.models.sequence_dlrm import SequenceDlrmConfig, build_sequence_dlrm
from recd_dlrm.poolings.attention import AttentionConfig, build_attention
from recd_dlrm.poolings.reduce import ReduceConfig, build_max, build_mean, build_sum
from recd_plugins.data.batch import Batch
from recd_plugins.data.schema import Schema, SparseFeature
from recd_plugins.embedding.adapt import adapt
from recd_plugins.embedding.scored import weighed
from recd_plugins.errors import DataError, RegistryError
from recd_plugins.slots import Context, PoolingFactory
from recd_plugins.sparse.ikjt import InverseKeyedJaggedTensor
from recd_plugins.sparse.jagged import without

ROWS = 50
SCHEMA = Schema(
    dense=("price",),
    sparse=(
        SparseFeature(name="history", num_ids=ROWS, sequence=True, scored=True, table="items"),
        SparseFeature(name="item", num_ids=ROWS, table="items"),
        SparseFeature(name="topics", num_ids=ROWS, scored=True),
        SparseFeature(name="region", num_ids=ROWS),
    ),
)
GROUPS = (("history", "topics"), ("region",))
AS_FLOAT32 = {"rtol": 2e-6, "atol": 1e-8}
"""TorchRec's EmbeddingCollection yields float32 of any table; all else here is float64."""


def built(kind: str, pooling: PoolingFactory | None = None) -> nn.Module:
    """In float64, in which a sum's order is not seen, but for `AS_FLOAT32`."""
    neighbours = {"pooling": {"history": pooling or build_sum(ReduceConfig(), Context())}}
    context = Context(schema=SCHEMA, neighbours=neighbours)
    torch.manual_seed(0)
    if kind == "dlrm":
        model = build_dlrm(DlrmConfig(embedding_dim=8, bottom=(8,), top=(8,)), context)
    else:
        config = SequenceDlrmConfig(embedding_dim=8, bottom=(8,), top=(8,))
        model = build_sequence_dlrm(config, context)
    for part in model.modules():
        if any(one.is_meta for one in part.parameters(recurse=False)):
            part.to_empty(device="cpu", recurse=False)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model.double()


def batch_of(samples: int, *, seed: int = 0) -> Batch:
    """Of every three samples two have the same ids, and of these every other pair other weights."""
    draw = torch.Generator().manual_seed(seed)
    lists: list[tuple[torch.Tensor, torch.Tensor]] = []
    for feature in SCHEMA.sparse:
        drawn = [
            torch.randint(0, ROWS, (int(n),), generator=draw)
            for n in torch.randint(0, 4, (samples,), generator=draw)
        ]
        weights = [torch.rand(len(one), generator=draw).double() for one in drawn]
        for i in range(samples):
            if i % 3 == 1:
                drawn[i], same = drawn[i - 1], weights[i - 1]
                weights[i] = same if i % 2 else same + 1
            if not feature.scored:
                weights[i] = torch.ones(len(drawn[i])).double()
        lists += zip(drawn, weights, strict=True)
    return Batch(
        dense=torch.randn(samples, 1, generator=draw).double(),
        features=KeyedJaggedTensor(
            keys=list(SCHEMA.sparse_names),
            values=torch.cat([ids for ids, _ in lists]),
            lengths=torch.tensor([len(ids) for ids, _ in lists]),
            weights=torch.cat([weights for _, weights in lists]),
        ),
        labels=torch.randint(0, 2, (samples,), generator=draw).double(),
        weights=torch.ones(samples).double(),
    )


def trained(model: nn.Module, batch: Batch) -> dict[str, torch.Tensor]:
    loss, (_, outputs, *_) = model(batch)
    loss.backward()
    found = {name: one.grad for name, one in model.named_parameters() if one.grad is not None}
    return {"outputs": outputs, **found}


@pytest.mark.parametrize("kind", ["dlrm", "sum", "mean"])
def test_unique_samples_of_scored_ids_train_as_all_do(kind: str) -> None:
    poolings = {"mean": build_mean(ReduceConfig(), Context())}
    model = built(kind, poolings.get(kind))
    batch = batch_of(30)
    ikjt = InverseKeyedJaggedTensor.from_kjt(batch.features, GROUPS)
    counts = InverseKeyedJaggedTensor.from_kjt(_unweighted(batch.features), GROUPS).unique_counts
    assert counts[0] < ikjt.unique_counts[0] < 30  # weights tell samples of the same ids apart
    unique = dataclasses.replace(
        batch,
        features=without(batch.features, {key for group in GROUPS for key in group}),
        dedup=ikjt,
    )
    plain = trained(copy.deepcopy(model), batch)
    found = trained(adapt(copy.deepcopy(model), GROUPS), unique)
    assert plain.keys() == found.keys()
    for name, value in plain.items():
        torch.testing.assert_close(found[name], value, **AS_FLOAT32)


def _unweighted(features: KeyedJaggedTensor) -> KeyedJaggedTensor:
    return KeyedJaggedTensor(
        keys=features.keys(), values=features.values(), lengths=features.lengths()
    )


def test_weights_count() -> None:
    """A history's sum is TorchRec's own weighted bag of it; and other weights, other outputs."""
    model, batch = built("sum"), batch_of(12)
    net = model.net
    embedded = net.sequences(batch.features)
    values = weighed(embedded["history"], batch.features, "history")
    pooled = net.vectors.poolings[1](values, embedded["history"].lengths())
    history = batch.features["history"]
    table = net.sequences.embeddings["t_items"].weight
    expected, sizes = (
        nn.functional.embedding_bag(
            history.values(),
            rows,
            history.offsets()[:-1],
            mode="sum",
            per_sample_weights=history.weights(),
        )
        for rows in (table, table.abs())
    )
    # Rows, weights and products are rounded to float32, and so are two sums, of up to three ids.
    assert history.lengths().max() == 3
    assert ((pooled - expected).abs() <= 5 * torch.finfo(torch.float32).eps / 2 * sizes).all()
    heavier = copy.copy(batch)
    heavier.features = KeyedJaggedTensor(
        keys=batch.features.keys(),
        values=batch.features.values(),
        lengths=batch.features.lengths(),
        weights=2 * batch.features.weights(),
    )
    assert not torch.allclose(trained(model, heavier)["outputs"], trained(model, batch)["outputs"])


def test_what_cannot_weigh_refuses() -> None:
    for pooling in (
        build_attention(AttentionConfig(), Context()),
        build_max(ReduceConfig(), Context()),
    ):
        with pytest.raises(RegistryError, match="this pooling does not weigh") as told:
            built("sum", pooling)
        assert "or from a step of `preprocess`" in str(told.value)
    features = _unweighted(batch_of(6).features)
    embedded = built("sum").net.sequences(features)
    with pytest.raises(DataError, match="'history' is scored, but its ids come without weights"):
        weighed(embedded["history"], features, "history")

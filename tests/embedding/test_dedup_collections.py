"""Rung 1 and 2 (values, properties): collections before sharding, on unique samples and on all."""

from __future__ import annotations

import copy
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import torch
from drawn import at_most
from hypothesis import given, settings
from hypothesis import strategies as st
from mixed import GROUPS, KEYS, ROWS, SHARES, Mixed, batch_of, deduplicated
from torch import Tensor, nn
from torchrec.modules.embedding_configs import EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingCollection
from torchrec.sparse.jagged_tensor import KeyedTensor

from recd_plugins.data.batch import Batch
from recd_plugins.embedding.adapt import adapt
from recd_plugins.embedding.lookup import rows_of
from recd_plugins.embedding.unexpanded import Unexpanded
from recd_plugins.errors import DataError
from recd_plugins.sparse.features import SparseFeatures
from recd_plugins.sparse.ikjt import InverseKeyedJaggedTensor
from recd_plugins.sparse.jagged import without
from recd_plugins.testing.reference import unsharded

pytestmark = pytest.mark.usefixtures("one_thread")


@cache
def model(adapted: bool, weighted: bool = False) -> Mixed:
    torch.manual_seed(0)
    made = Mixed(weighted)
    if adapted:
        adapt(made, GROUPS, unique_shares=SHARES)
    unsharded(made, seed=0)
    return made


def gradients(of: nn.Module, loss: Tensor) -> dict[str, Tensor]:
    of.zero_grad()
    loss.backward()
    return {name: parameter.grad for name, parameter in of.named_parameters()}


@settings(max_examples=at_most(40))
@given(
    size=st.integers(1, 9),
    unique=st.integers(1, 9),
    longest=st.integers(0, 3),
    seed=st.integers(0, 99),
    weighted=st.booleans(),
)
def test_losses_and_gradients(
    size: int, unique: int, longest: int, seed: int, weighted: bool
) -> None:
    batch = batch_of(size, unique, seed=seed, longest=longest, weighted=weighted)
    plain, adapted = model(False, weighted), model(True, weighted)
    expected, (loss, _), (same, _) = (
        plain(batch)[0],
        adapted(deduplicated(batch)),
        adapted(batch),
    )
    # Of one batch, and no training: sums of the same numbers in another order.
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(same, expected)
    wanted = gradients(plain, expected)
    for name, gradient in gradients(adapted, loss).items():
        torch.testing.assert_close(gradient, wanted[name], rtol=1e-5, atol=1e-6)


def both() -> tuple[Mixed, Mixed, Batch]:
    return model(False), model(True), batch_of(8, 3, seed=1)


def test_sequences_stay_unique() -> None:
    plain, adapted, batch = both()
    expected = plain.sequences(batch.features)
    found = adapted.sequences(deduplicated(batch).sparse)
    assert found.keys() == expected.keys()
    for name, jagged in found.items():
        unique = name.split("@")[0] in GROUPS[3] + GROUPS[4]
        assert isinstance(jagged.values(), Unexpanded) == unique
        assert isinstance(jagged.lengths(), Unexpanded) == unique
        assert jagged.values().shape == expected[name].values().shape
        torch.testing.assert_close(jagged.values() + 0, expected[name].values())
        assert torch.equal(jagged.lengths() + 0, expected[name].lengths())


def test_pooled_features_stay_unique() -> None:
    plain, adapted, batch = both()
    expected = plain.bags(batch.features)
    found = adapted.bags(deduplicated(batch).sparse)
    assert found.keys() == expected.keys()
    assert found.length_per_key() == expected.length_per_key()
    for name, tensor in found.to_dict().items():
        unique = name.split("@")[0] not in ("shop", "seller")
        assert isinstance(tensor, Unexpanded) == isinstance(found[name], Unexpanded) == unique
        if unique:
            assert tensor.of_unique.shape[0] < len(batch)
        torch.testing.assert_close(tensor + 0, expected[name])


def test_a_keyed_tensor_is_whole_where_asked() -> None:
    plain, adapted, batch = both()
    expected = plain.bags(batch.features)
    found = adapted.bags(deduplicated(batch).sparse)
    torch.testing.assert_close(found.values(), expected.values())
    groups = [["seller", "brands@t_again"], ["topics"]]
    for ours, theirs in zip(
        KeyedTensor.regroup([found], groups), KeyedTensor.regroup([expected], groups), strict=True
    ):
        torch.testing.assert_close(ours, theirs)
    assert found.device() == torch.device("cpu")
    assert torch.equal(found.to(torch.device("cpu")).values(), found.values())


def test_gradients_come_to_a_whole_keyed_tensor_that_waits_for_them() -> None:
    found = []
    for net, batch in ((model(False), both()[2]), (model(True), deduplicated(both()[2]))):
        sums = net.bags(batch.features if batch.dedup is None else batch.sparse)
        values = sums.values()
        values.retain_grad()
        (sums["topics"].sin().sum() + sums.to_dict()["seller"].cos().sum()).backward()
        assert values.grad is not None
        places = zip(sums.keys(), pairwise(sums.offset_per_key()), strict=True)
        found.append({key: values.grad[:, slice(*place)] for key, place in places})
    torch.testing.assert_close(*found)


def test_a_kjt_yields_ordinary_tensors() -> None:
    plain, adapted, batch = both()
    expected, found = plain.bags(batch.features), adapted.bags(batch.features)
    assert not any(isinstance(tensor, Unexpanded) for tensor in found.to_dict().values())
    assert torch.equal(found.values(), expected.values())


def test_rows_come_in_one_order_without_a_value_added() -> None:
    batch = batch_of(7, 4, seed=3)
    unique = deduplicated(batch).sparse
    assert isinstance(unique, SparseFeatures)
    keys = ["shop", "history", "region", "item"]
    rows = rows_of(unique, keys)
    assert rows.keys() == keys
    assert rows.stride() == 7
    kept = unique.lookups["history"].num_unique
    assert rows["history"].lengths()[kept:].sum() == 0
    assert rows["history"].values().numel() == unique.rows["history"].values.numel()
    for key in ("shop", "item"):
        assert torch.equal(rows[key].values(), batch.features[key].values())
        assert torch.equal(rows[key].lengths(), batch.features[key].lengths())
    assert rows_of(batch.features, keys).keys() == keys


def test_rows_of_a_size_class_are_as_many_as_its_largest_group() -> None:
    unique = deduplicated(batch_of(30, 6, seed=3)).sparse
    counts = dict(zip(GROUPS, unique.dedup.unique_counts, strict=True))
    assert rows_of(unique, ["region", "visited"]).stride() == max(
        counts["region",], counts["visited",]
    )
    assert rows_of(unique, ["brands", "topics"]).stride() == counts["brands", "topics"]


def test_unique_rows_are_not_copied_where_they_fit() -> None:
    batch = batch_of(6, 3, seed=0)
    ikjt = InverseKeyedJaggedTensor.from_kjt(batch.features, [KEYS])
    none = without(batch.features, KEYS)
    features = SparseFeatures(plain=none, dedup=ikjt)
    assert rows_of(features, ikjt.kjt.keys()) is ikjt.kjt
    assert rows_of(batch.features, KEYS) is batch.features


def test_a_missing_feature_is_named() -> None:
    with pytest.raises(DataError, match="the batch has no feature 'shops'; did you mean 'shop'"):
        rows_of(batch_of(3, 2, seed=0).features, ["shops"])


def test_features_read_by_key_are_those_of_all_samples() -> None:
    batch = batch_of(6, 3, seed=0)
    unique: Any = deduplicated(batch).sparse
    assert sorted(unique.keys()) == sorted(KEYS)
    assert unique.stride() == 6
    by_key = unique.to_dict()
    for key in KEYS:
        for jagged in (unique[key], by_key[key]):
            assert torch.equal(jagged.values(), batch.features[key].values())
            assert torch.equal(jagged.lengths(), batch.features[key].lengths())


def test_ids_come_with_sequences_where_asked() -> None:
    """TorchRec hands them on as the jagged tensor's weights."""
    tables = [
        EmbeddingConfig(name="t", num_embeddings=ROWS, embedding_dim=4, feature_names=["history"])
    ]
    plain = EmbeddingCollection(tables=tables, need_indices=True)
    model = copy.deepcopy(plain)
    adapt(model, GROUPS)
    batch = batch_of(7, 3, seed=4)
    found = model(deduplicated(batch).sparse)["history"]
    assert isinstance(found.weights(), Unexpanded)
    expected = plain(batch.features)["history"]
    assert torch.equal(found.weights() + 0, expected.weights())
    assert torch.equal(found.values() + 0, expected.values())

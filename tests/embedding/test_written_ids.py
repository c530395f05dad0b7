"""Rung 1 (values): a model that writes into its batch's ids, whose unique samples are looked up."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torchrec.modules.embedding_configs import EmbeddingBagConfig, EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.embedding.adapt import adapt
from recd_plugins.errors import CapabilityError
from recd_plugins.sparse.features import SparseFeatures
from recd_plugins.sparse.ikjt import InverseKeyedJaggedTensor
from recd_plugins.sparse.jagged import without

ROWS, DIM = 10, 4

Change = Callable[[KeyedJaggedTensor], object]


class Net(nn.Module):
    """Changes its batch, and sums what is looked up behind that."""

    def __init__(self, change: Change) -> None:
        super().__init__()
        torch.manual_seed(0)
        table = {"num_embeddings": ROWS, "embedding_dim": DIM}
        self.bags = EmbeddingBagCollection(
            [
                EmbeddingBagConfig(name=f"of_{key}", feature_names=[key], **table)
                for key in ("user", "item")
            ]
        )
        self.rows = EmbeddingCollection(
            [EmbeddingConfig(name="of_history", feature_names=["history"], **table)]
        )
        self._change = change

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        self._change(features)
        sums, rows = self.bags(features), self.rows(features)["history"]
        found: Tensor = torch.cat([sums["user"], sums["item"], rows.to_padded_dense(2).sum(1)], 1)
        return found


def batch(*, deduplicated: bool) -> KeyedJaggedTensor | SparseFeatures:
    """Three samples, of which the first two are alike but for their item."""
    kjt = KeyedJaggedTensor(
        keys=["item", "user", "history"],
        values=torch.tensor([1, 2, 3, 7, 7, 8, 4, 9, 4, 9, 5]),
        lengths=torch.tensor([1, 1, 1, 1, 1, 1, 2, 2, 1]),
        weights=None,
    )
    if not deduplicated:
        return kjt
    unique = InverseKeyedJaggedTensor.from_kjt(kjt, [["user"], ["history"]])
    assert unique.unique_counts == (2, 2)
    return SparseFeatures.of(without(kjt, {"user", "history"}), unique)


WRITES: dict[str, Change] = {
    "all": lambda features: features.values().clamp_(max=4),
    "a key's": lambda features: features["history"].values().clamp_(max=4),
    "a dict's": lambda features: features.to_dict()["user"].values().clamp_(max=4),
    "a part's": lambda features: features.split([2, 1])[1].values().clamp_(max=4),
    "at places": lambda features: features.values().masked_fill_(features.values() > 4, 0),
}
READS: dict[str, Change] = {
    "nothing": lambda features: None,
    "all": lambda features: features.values().clamp(max=4).add_(1),
    "a key's": lambda features: features["history"].values().float().mul_(2),
    "lengths": lambda features: features.lengths().cumsum(0),
    "a key that is not deduplicated": lambda features: features["item"].values().clamp_(max=2),
}


@pytest.mark.parametrize("change", WRITES.values(), ids=WRITES)
def test_what_would_be_lost_is_refused(change: Change) -> None:
    """Of a KJT it is looked up."""
    plain, nothing = Net(change), Net(READS["nothing"])
    there = batch(deduplicated=False)
    assert not torch.equal(plain(there), nothing(batch(deduplicated=False)))
    adapted = adapt(Net(change), (("user",), ("history",)), own_batches=True)
    with pytest.raises(CapabilityError, match="the model writes into the ids of its batch"):
        adapted(batch(deduplicated=True))


@pytest.mark.parametrize("change", READS.values(), ids=READS)
def test_what_is_read_and_what_is_looked_up_as_written(change: Change) -> None:
    adapted = adapt(Net(change), (("user",), ("history",)), own_batches=True)
    found = adapted(batch(deduplicated=True))
    torch.testing.assert_close(found, Net(change)(batch(deduplicated=False)))


def test_what_is_read_twice_is_the_same_as_of_a_kjt() -> None:
    for deduplicated in (False, True):
        features = batch(deduplicated=deduplicated)
        features["user"].values().add_(1)
        assert features["user"].values().tolist() == [8, 8, 9]

"""Rung 1 (values): a batch that is moved has counted ids; the trainer's own KJT stays as it is."""

from __future__ import annotations

import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.data.batch import Batch

CPU = torch.device("cpu")


def test_a_kjt_that_is_filled_anew_is_counted_anew() -> None:
    features = KeyedJaggedTensor(
        keys=["a", "b"], values=torch.arange(4), lengths=torch.tensor([1, 0, 2, 1])
    )
    batch = Batch(
        dense=torch.empty(2, 0), features=features, labels=torch.zeros(2), weights=torch.ones(2)
    )
    assert batch.to(CPU).features.length_per_key_or_none() == [1, 3]
    assert batch.to(CPU).sparse.to(CPU).length_per_key_or_none() == [1, 3]
    features.lengths().copy_(torch.tensor([2, 1, 1, 0]))
    assert batch.to(CPU).features.length_per_key_or_none() == [3, 1]

"""Ladder: two gloo ranks. A reader that ignores its rank is named, and no other one."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torchrec import KeyedJaggedTensor

from recd_plugins.data.batch import Batch
from recd_plugins.sparse.ikjt import InverseKeyedJaggedTensor
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.trainer.same_batches import notice_same_batch

SIZE = 32


def batch(seed: int, size: int = SIZE, **parts: Any) -> Batch:
    ids = torch.arange(size) * (seed + 3) % 97
    features = KeyedJaggedTensor(["a"], ids, lengths=torch.ones(size, dtype=torch.long))
    zeros = torch.zeros(size)
    whole = Batch(dense=zeros[:, None], features=features, labels=zeros, weights=zeros + 1)
    return dataclasses.replace(whole, **parts)


def noticed(of_ranks: list[Batch]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        notice_same_batch(of_ranks[dist.get_rank()], "reader mine")
    return [str(one.message) for one in caught]


def test_the_same_batch_on_all_ranks_is_noticed_on_rank_0(gloo_pool: GlooPool) -> None:
    first, second = gloo_pool.run(noticed, [batch(0), batch(0)])
    assert len(first) == 1
    assert first[0].startswith("reader mine: every rank has the same batch in its first step.")
    assert second == []


def test_batches_that_differ_in_anything_are_not(gloo_pool: GlooPool) -> None:
    """In ids, in counts, in labels, or in the ids of what is deduplicated."""
    none = torch.zeros(0, dtype=torch.long)
    empty = KeyedJaggedTensor(["a"], none, lengths=torch.zeros(SIZE, dtype=torch.long))
    shared = [InverseKeyedJaggedTensor.from_kjt(batch(seed).features) for seed in (0, 1)]
    for pair in (
        [batch(0), batch(1)],
        [batch(0), batch(0, dense=torch.ones(SIZE, 1))],
        [batch(0), batch(0, labels=torch.ones(SIZE))],
        [batch(0, features=empty, dedup=one) for one in shared],
    ):
        assert gloo_pool.run(noticed, pair) == [[], []]


def test_few_samples_and_labels_alone_say_nothing(gloo_pool: GlooPool) -> None:
    none = torch.zeros(0, dtype=torch.long)
    bare = batch(0, features=KeyedJaggedTensor([], none, lengths=none), dense=torch.zeros(SIZE, 0))
    for one in (batch(0, size=15), bare):
        assert gloo_pool.run(noticed, [one, one]) == [[], []]

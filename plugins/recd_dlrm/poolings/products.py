"""Products of unique histories with what each of their samples brings: a matmul a history.

History u has l_u keys [l_u, D], and s_u samples, next to each other, that bring W vectors each:
[s_u W, D]. Its pairs of key and sample, key by key, have W numbers each: [l_u, s_u W]. Of these
three any one is a product of the other two, and so are the gradients; no key is ever copied to
the samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = ["Histories", "dot_products", "weighted_sums"]


class Histories(NamedTuple):
    """U histories."""

    lengths: Sequence[int]
    """[U]: l_u."""
    counts: Sequence[int]
    """[U]: s_u."""

    def parts(self, keys: Tensor, vectors: Tensor, pairs: Tensor, width: int) -> Iterator[_Parts]:
        """Each history's part of keys [N_u, D], vectors [B W, D] and pairs [P W], as views."""
        for part in zip(
            self.lengths,
            keys.split(list(self.lengths)),
            vectors.split([count * width for count in self.counts]),
            pairs.split(
                [n * count * width for n, count in zip(self.lengths, self.counts, strict=True)]
            ),
            strict=True,
        ):
            length, of_keys, of_vectors, of_pairs = part
            yield _Parts(of_keys, of_vectors, of_pairs.view(length, len(of_vectors)))

    @property
    def num_pairs(self) -> int:
        return sum(n * count for n, count in zip(self.lengths, self.counts, strict=True))


class _Parts(NamedTuple):
    keys: Tensor
    """[l, D]."""
    vectors: Tensor
    """[s W, D]."""
    pairs: Tensor
    """[l, s W]."""


def dot_products(keys: Tensor, vectors: Tensor, histories: Histories) -> Tensor:
    """[P, W]: of keys [N_u, D] with the vectors [B, W, D] of the samples of their history."""
    products: Tensor = _DotProducts.apply(keys, vectors, histories)
    return products


def weighted_sums(keys: Tensor, weights: Tensor, histories: Histories) -> Tensor:
    """[B, W, D]: each sample's sums of its history's keys [N_u, D], by weights [P, W]."""
    sums: Tensor = _WeightedSums.apply(keys, weights, histories)
    return sums


class _DotProducts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, keys: Tensor, vectors: Tensor, histories: Histories) -> Tensor:
        ctx.save_for_backward(keys, vectors)
        ctx.histories = histories
        return _pairs(keys, vectors, histories)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        keys, vectors = ctx.saved_tensors
        gradient = gradient.contiguous()
        of_keys = _keys(keys, vectors, gradient, ctx.histories)
        return of_keys, _vectors(keys, gradient, ctx.histories), None


class _WeightedSums(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, keys: Tensor, weights: Tensor, histories: Histories) -> Tensor:
        weights = weights.contiguous()
        ctx.save_for_backward(keys, weights)
        ctx.histories = histories
        return _vectors(keys, weights, histories)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        keys, weights = ctx.saved_tensors
        gradient = gradient.contiguous()
        of_keys = _keys(keys, gradient, weights, ctx.histories)
        return of_keys, _pairs(keys, gradient, ctx.histories), None


def _pairs(keys: Tensor, vectors: Tensor, histories: Histories) -> Tensor:
    """[P, W] of keys [N_u, D] and vectors [B, W, D]."""
    width = vectors.shape[1]
    pairs = keys.new_empty(histories.num_pairs * width)
    for part in histories.parts(keys, vectors.flatten(0, 1), pairs, width):
        torch.mm(part.keys, part.vectors.T, out=part.pairs)
    return pairs.view(-1, width)


def _keys(keys: Tensor, vectors: Tensor, pairs: Tensor, histories: Histories) -> Tensor:
    """[N_u, D] as keys, of vectors [B, W, D] and pairs [P, W]."""
    made = torch.empty_like(keys)
    for part in histories.parts(made, vectors.flatten(0, 1), pairs.view(-1), vectors.shape[1]):
        torch.mm(part.pairs, part.vectors, out=part.keys)
    return made


def _vectors(keys: Tensor, pairs: Tensor, histories: Histories) -> Tensor:
    """[B, W, D] of keys [N_u, D] and pairs [P, W]."""
    width = pairs.shape[1]
    vectors = keys.new_empty(sum(histories.counts) * width, keys.shape[1])
    for part in histories.parts(keys, vectors, pairs.view(-1), width):
        torch.mm(part.pairs.T, part.keys, out=part.vectors)
    return vectors.view(-1, width, keys.shape[1])

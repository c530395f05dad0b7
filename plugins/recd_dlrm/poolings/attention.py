"""Target attention: the sample's item decides how much each value of its history counts.

Zhou et al., Deep Interest Network for Click-Through Rate Prediction (arXiv:1706.06978).

With unique histories, each history is multiplied with the vectors of its samples, one matmul per
history. History u has l_u keys [l_u, D], and s_u samples, next to each other, with W vectors each:
[s_u W, D]. Its pairs of key and sample, key by key, have W numbers each: [l_u, s_u W]. Each of
these three is a product of the other two, and so are the gradients; no key is ever copied to the
samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from recd_dlrm.poolings.reduce import rows_of
from recd_plugins.api import Config, Context, PoolingFactory, Range, RegistryError
from recd_plugins.api.embedding import cells_of, expand_rows

__all__ = [
    "Attention",
    "AttentionConfig",
    "Histories",
    "build_attention",
    "dot_products",
    "weighted_sums",
]


@dataclass(frozen=True, kw_only=True)
class AttentionConfig(Config):
    """Defaults are the paper's activation unit."""

    hidden: Annotated[tuple[int, ...], Range(ge=1)] = (36,)
    """The widths of the hidden layers of the activation unit's MLP, which has one output."""
    weights: Literal["linear", "sigmoid", "softmax"] = "linear"
    """What is done to that output: nothing (`linear`), as in the paper, which keeps the intensity
    of an interest; sigmoid, which bounds it; or softmax over the row, which drops it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.hidden:
            raise RegistryError("must have a layer, say [36].", where="hidden")


class Attention(nn.Module):
    """v(q) = sum over j of w_j k_j, with w_j = MLP([q, k_j, q - k_j, q * k_j]) (eq. 3)."""

    needs_query = True

    def __init__(self, dim: int, config: AttentionConfig) -> None:
        super().__init__()
        self.weights = config.weights
        self.first = nn.Linear(4 * dim, config.hidden[0])
        self.rest = nn.Sequential(nn.PReLU())
        for size, following in zip(config.hidden, (*config.hidden[1:], None), strict=True):
            self.rest.append(nn.Linear(size, following or 1))
            if following:
                self.rest.append(nn.PReLU())

    def forward(self, values: Tensor, lengths: Tensor, query: Tensor | None = None) -> Tensor:
        """[N, D] values in rows of `lengths` [B] and a query [B, D] become [B, D]."""
        if query is None:
            raise RegistryError(
                "pooling attention needs a query: the feature whose vector weighs the values."
            )
        parts = self._parts()
        return self._attend(values, values @ parts.key.T, lengths, query, parts)

    def pool_unique(
        self,
        values: Tensor,
        lengths: Tensor,
        query: Tensor,
        inverse_lookup: Tensor,
        num_values: int | None = None,
    ) -> Tensor:
        """[B, D] from unique values [N_u, D] in rows of `lengths` [U]: see `PoolsUnique`.

        Each sample has its own scores, so only part of their computation is shared: W (.) as one
        matrix of the sample, Wk - Wd + Wp diag(q), times its history, which is never copied. If
        that costs more than it saves, as for short histories, or on CUDA, only (Wk - Wd) k is
        shared; with few values, or few samples per history, nothing is.
        """
        samples, unique = inverse_lookup.numel(), lengths.numel()
        lengths_of_all = lengths.index_select(0, inverse_lookup)
        if not (values.is_cpu and self._spares(values, lengths_of_all, unique)):
            cells = cells_of(lengths, inverse_lookup, num_values)
            keys = expand_rows(values, cells)
            if len(cells) < LEAST_PAIRS or samples < LEAST_FACTOR * unique:
                return self.forward(keys, lengths_of_all, query)
            parts = self._parts()
            of_key = expand_rows(values @ parts.key.T, cells)
            return self._attend(keys, of_key, lengths_of_all, query, parts)
        parts = self._parts()
        by_history = inverse_lookup.argsort(stable=True)
        counts = inverse_lookup.bincount(minlength=lengths.numel())
        histories = Histories(lengths.tolist(), counts.tolist())
        rows = cells_of(counts, rows_of(lengths, values.shape[0]))

        query = query.index_select(0, by_history)
        hidden = dot_products(values, parts.key + parts.product * query.unsqueeze(1), histories)
        hidden = hidden + expand_rows(F.linear(query, parts.query, self.first.bias), rows)
        weights = self._weights(hidden, rows, query.shape[0])
        pooled = weighted_sums(values, weights.unsqueeze(1), histories).squeeze(1)
        return expand_rows(pooled, by_history.argsort())

    def _spares(self, values: Tensor, lengths_of_all: Tensor, histories: int) -> bool:
        """Whether matrices of samples and matmuls of histories cost less than copies of keys."""
        pairs, samples = int(lengths_of_all.sum()), lengths_of_all.numel()
        dim, hidden = values.shape[1], self.first.out_features
        return pairs > OF_HISTORY / dim * histories + OF_SAMPLE * hidden * samples

    def _parts(self) -> _FirstLayer:
        of_query, of_key, of_difference, of_product = self.first.weight.chunk(4, dim=1)
        return _FirstLayer(of_query + of_difference, of_key - of_difference, of_product)

    def _attend(
        self, keys: Tensor, of_key: Tensor, lengths: Tensor, query: Tensor, parts: _FirstLayer
    ) -> Tensor:
        """[B, D] from keys [N, D] and their part of the first layer [N, H]."""
        rows = rows_of(lengths, keys.shape[0])
        of_query = F.linear(query, parts.query, self.first.bias)
        hidden = of_query.index_select(0, rows) + of_key
        hidden = hidden + (query.index_select(0, rows) * keys) @ parts.product.T
        weights = self._weights(hidden, rows, lengths.numel())
        weighted = weights.unsqueeze(1) * keys
        pooled = weighted.new_zeros(lengths.numel(), keys.shape[1])
        return pooled.index_add(0, rows, weighted)

    def _weights(self, hidden: Tensor, rows: Tensor, num_rows: int) -> Tensor:
        """[N]: the weight of each value, from the first layer's output [N, H] and the row of the
        value, in `rows` [N]."""
        scores: Tensor = self.rest(hidden).squeeze(1)
        if self.weights == "sigmoid":
            return scores.sigmoid()
        return _softmax(scores, rows, num_rows) if self.weights == "softmax" else scores


OF_HISTORY = 8192.0
OF_SAMPLE = 1 / 3
"""The cost of a history's matmuls, and of a number in a sample's matrix, measured in pairs of key
and sample whose keys are copied. They are fitted to the grid of `benchmarks.attention`, and a fifth
too high. The cost of a call of torch is fixed, so a history's matmuls cost more of the narrower
copies."""
LEAST_PAIRS = 1024
LEAST_FACTOR = 1.5
"""The least number of pairs, and of samples per history, with which (Wk - Wd) k is copied instead
of computed."""


class _FirstLayer(NamedTuple):
    """The first layer, which is linear in q, k and q * k, so that its [N, 4 D] input is never made.

    W [q, k, q - k, q * k] = (Wq + Wd) q + (Wk - Wd) k + Wp (q * k).
    """

    query: Tensor
    key: Tensor
    product: Tensor


def _softmax(scores: Tensor, rows: Tensor, num_rows: int) -> Tensor:
    """[N]: softmax of the scores [N] within each row."""
    highest = scores.new_full((num_rows,), -torch.inf)
    highest = highest.scatter_reduce(0, rows, scores.detach(), "amax")
    raised = (scores - highest.index_select(0, rows)).exp()
    total = raised.new_zeros(num_rows).index_add(0, rows, raised)
    return raised / total.index_select(0, rows)


def build_attention(config: AttentionConfig, context: Context) -> PoolingFactory:
    return partial(Attention, config=config)


class Histories(NamedTuple):
    """U histories."""

    lengths: Sequence[int]
    """[U]: l_u."""
    counts: Sequence[int]
    """[U]: s_u."""

    def parts(
        self, keys: Tensor, vectors: Tensor, pairs: Tensor, width: int
    ) -> Iterator[_HistoryPart]:
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
            yield _HistoryPart(of_keys, of_vectors, of_pairs.view(length, len(of_vectors)))

    @property
    def num_pairs(self) -> int:
        return sum(n * count for n, count in zip(self.lengths, self.counts, strict=True))


class _HistoryPart(NamedTuple):
    keys: Tensor
    """[l, D]."""
    vectors: Tensor
    """[s W, D]."""
    pairs: Tensor
    """[l, s W]."""


def dot_products(keys: Tensor, vectors: Tensor, histories: Histories) -> Tensor:
    """[P, W]: the dot products of keys [N_u, D] with the vectors [B, W, D] of their history's
    samples, in the keys' type."""
    products: Tensor = _DotProducts.apply(keys, vectors.to(keys.dtype), histories)
    return products


def weighted_sums(keys: Tensor, weights: Tensor, histories: Histories) -> Tensor:
    """[B, W, D]: each sample's sums of its history's keys [N_u, D], with weights [P, W], in the
    keys' type."""
    sums: Tensor = _WeightedSums.apply(keys, weights.to(keys.dtype), histories)
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
    """[P, W] from keys [N_u, D] and vectors [B, W, D]."""
    width = vectors.shape[1]
    pairs = keys.new_empty(histories.num_pairs * width)
    for part in histories.parts(keys, vectors.flatten(0, 1), pairs, width):
        torch.mm(part.keys, part.vectors.T, out=part.pairs)
    return pairs.view(-1, width)


def _keys(keys: Tensor, vectors: Tensor, pairs: Tensor, histories: Histories) -> Tensor:
    """[N_u, D] shaped like keys, from vectors [B, W, D] and pairs [P, W]."""
    made = torch.empty_like(keys)
    for part in histories.parts(made, vectors.flatten(0, 1), pairs.view(-1), vectors.shape[1]):
        torch.mm(part.pairs, part.vectors, out=part.keys)
    return made


def _vectors(keys: Tensor, pairs: Tensor, histories: Histories) -> Tensor:
    """[B, W, D] from keys [N_u, D] and pairs [P, W]."""
    width = pairs.shape[1]
    vectors = keys.new_empty(sum(histories.counts) * width, keys.shape[1])
    for part in histories.parts(keys, vectors, pairs.view(-1), width):
        torch.mm(part.pairs.T, part.keys, out=part.vectors)
    return vectors.view(-1, width, keys.shape[1])

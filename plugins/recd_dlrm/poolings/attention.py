"""Target attention: the sample's item decides how much each value of its history counts.

Zhou et al., Deep Interest Network for Click-Through Rate Prediction (arXiv:1706.06978).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from recd_dlrm.poolings.reduce import rows_of
from recd_plugins.config import Config, Range
from recd_plugins.embedding.expand import cells_of, expand_rows
from recd_plugins.errors import RegistryError
from recd_plugins.slots import Context, PoolingFactory

__all__ = ["Attention", "AttentionConfig", "build_attention"]


@dataclass(frozen=True, kw_only=True)
class AttentionConfig(Config):
    """Defaults are the paper's activation unit."""

    hidden: Annotated[tuple[int, ...], Range(ge=1)] = (36,)
    """Layers of the activation unit's MLP before its one output."""
    weights: Literal["linear", "sigmoid", "softmax"] = "linear"
    """What becomes of that output: nothing, as in the paper, which keeps the intensity of an
    interest; sigmoid, which bounds it; softmax over the row, which drops it."""

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
        return self._attend(values, self._of_key(values), lengths, query)

    def pool_unique(
        self, values: Tensor, lengths: Tensor, query: Tensor, inverse_lookup: Tensor
    ) -> Tensor:
        """[B, D] of unique values [N_u, D] in rows of `lengths` [U]: see `PoolsUnique`.

        The keys' part of the first layer is computed once a history; what depends on the query
        as well, which is most of it, once a sample.
        """
        cells = cells_of(lengths, inverse_lookup)
        keys, of_key = expand_rows(values, cells), expand_rows(self._of_key(values), cells)
        return self._attend(keys, of_key, lengths[inverse_lookup], query)

    def _of_key(self, keys: Tensor) -> Tensor:
        """[N, H]: (Wk - Wd) k, see `_scores`."""
        _, of_key, of_difference, _ = self.first.weight.chunk(4, dim=1)
        return keys @ (of_key - of_difference).T

    def _attend(self, keys: Tensor, of_key: Tensor, lengths: Tensor, query: Tensor) -> Tensor:
        rows = rows_of(lengths, keys.shape[0])
        weights = self._scores(keys, of_key, rows, query)
        if self.weights == "sigmoid":
            weights = weights.sigmoid()
        elif self.weights == "softmax":
            weights = _softmax(weights, rows, lengths.numel())
        pooled = keys.new_zeros(lengths.numel(), keys.shape[1])
        return pooled.index_add(0, rows, weights.unsqueeze(1) * keys)

    def _scores(self, keys: Tensor, of_key: Tensor, rows: Tensor, query: Tensor) -> Tensor:
        """[N]: the MLP's output, without ever making its [N, 4 D] input.

        The first layer is linear in q, k and q * k, so that q's part is computed once a row:
        W [q, k, q - k, q * k] = (Wq + Wd) q + (Wk - Wd) k + Wp (q * k).
        """
        of_query, _, of_difference, of_product = self.first.weight.chunk(4, dim=1)
        by_row = nn.functional.linear(query, of_query + of_difference, self.first.bias)
        hidden = by_row.index_select(0, rows) + of_key
        hidden = hidden + (query.index_select(0, rows) * keys) @ of_product.T
        scores: Tensor = self.rest(hidden).squeeze(1)
        return scores


def _softmax(scores: Tensor, rows: Tensor, num_rows: int) -> Tensor:
    """[N]: softmax of the scores [N] within each row."""
    highest = scores.new_full((num_rows,), -torch.inf)
    highest = highest.scatter_reduce(0, rows, scores.detach(), "amax")
    raised = (scores - highest.index_select(0, rows)).exp()
    total = scores.new_zeros(num_rows).index_add(0, rows, raised)
    return raised / total.index_select(0, rows)


def build_attention(config: AttentionConfig, context: Context) -> PoolingFactory:
    return partial(Attention, config=config)

"""Self-attention over a sequence, then its mean or its last position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

import torch.nn.functional as F
from torch import Tensor, nn

from recd_dlrm.poolings.jagged_attention import Buckets, Chunk, chunk_values
from recd_dlrm.poolings.whole_rows import RowsOfChunk, WholeRows, blocks_of_call
from recd_plugins.api import Config, Context, PoolingFactory, Range, RegistryError
from recd_plugins.api.embedding import attends_rows

__all__ = ["Transformer", "TransformerConfig", "build_transformer"]


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(Config):
    """Pre-norm encoder layers, without dropout."""

    heads: Annotated[int, Range(ge=1)] = 2
    """The number of attention heads, which share the embedding dimension evenly."""
    layers: Annotated[int, Range(ge=1)] = 1
    """The number of encoder layers."""
    expansion: Annotated[int, Range(ge=1)] = 4
    """The width of the feed-forward part, as a multiple of the embedding dimension."""
    positions: Annotated[int, Range(ge=0)] = 512
    """The number of learned positions, counted from the row's end; 0 learns none. Values that are
    further from the end share the last position."""
    output: Literal["mean", "last"] = "mean"
    """What the pooling yields: the mean over the row's positions, or the last position."""


class Transformer(nn.Module):
    """v = mean over j of Encoder(k_1 + p_n, ..., k_n + p_1)_j, or its last; 0 for n = 0."""

    needs_query = False

    def __init__(self, dim: int, config: TransformerConfig) -> None:
        super().__init__()
        if dim % config.heads:
            raise RegistryError(
                f"{config.heads} heads cannot share embedding_dim {dim} evenly: choose heads that "
                "divide it.",
                where="pooling: transformer",
            )
        self.output = config.output
        self.most_blocks = blocks_of_call(config.heads, dim // config.heads)
        self.positions = nn.Embedding(config.positions, dim) if config.positions else None
        layer = nn.TransformerEncoderLayer(
            dim,
            config.heads,
            config.expansion * dim,
            dropout=0.0,
            batch_first=True,
            norm_first=True,
        )
        self.encoder = nn.TransformerEncoder(
            layer, config.layers, norm=nn.LayerNorm(dim), enable_nested_tensor=False
        )

    def forward(self, values: Tensor, lengths: Tensor, query: Tensor | None = None) -> Tensor:
        """[N, D] values in rows of `lengths` [B] become [B, D]."""
        if not values.shape[0]:
            # The batch has no values; but DDP with a static graph needs gradients, and so do the
            # values: in backward their exchange waits for all ranks.
            (one,) = Buckets.of(lengths.new_ones(1)).chunks
            nothing = 0.0 * self._encode(values.sum(0, keepdim=True), one)
            return nothing.expand(len(lengths), -1)
        chunked = (
            WholeRows.of(lengths, values.shape[0], self.most_blocks)
            if attends_rows(values)
            else Buckets.of(lengths, max_values=chunk_values(values))
        )
        chunks: Sequence[Chunk | RowsOfChunk] = chunked.chunks
        outputs = [
            self._encode(of_chunk, chunk)
            for of_chunk, chunk in zip(chunked.values(values), chunks, strict=True)
        ]
        return chunked.rows(outputs)

    def _encode(self, x: Tensor, chunk: Chunk | RowsOfChunk) -> Tensor:
        """[b, D]: one vector per row, from values [n, D]."""
        if self.positions is not None:
            x = x + self.positions(chunk.ages.clamp(max=self.positions.num_embeddings - 1))
        encoder: Any = self.encoder
        *layers, top = encoder.layers
        for layer in layers:
            x = _encode(layer, x, chunk)
        if self.output == "last":
            last: Tensor = encoder.norm(_encode(top, x, chunk, only_last=True))
            return last
        encoded: Tensor = encoder.norm(_encode(top, x, chunk))
        sums = encoded.new_zeros(len(chunk.lengths), x.shape[1])
        sums = sums.index_add(0, chunk.rows, encoded)
        return sums / chunk.lengths.unsqueeze(1)


def _encode(layer: Any, x: Tensor, chunk: Chunk | RowsOfChunk, only_last: bool = False) -> Tensor:
    """[n, D]: the output of the encoder layer for x [n, D], or [b, D] for the ends of rows.

    The layer's own forward needs rows of the same length, and copies queries, keys and values three
    times.
    """
    attention = layer.self_attn
    packed = F.linear(layer.norm1(x), attention.in_proj_weight, attention.in_proj_bias)
    if only_last:
        x = x.index_select(0, chunk.lengths.cumsum(0) - 1)
    seen = chunk.self_attention(packed, attention.num_heads, only_last)
    x = x + attention.out_proj(seen)
    widened = layer.activation(layer.linear1(layer.norm2(x)))
    encoded: Tensor = x + layer.linear2(widened)
    return encoded


def build_transformer(config: TransformerConfig, context: Context) -> PoolingFactory:
    return partial(Transformer, config=config)

"""Self-attention over a sequence, then its mean or its last position."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from recd_plugins.config import Config, Range
from recd_plugins.embedding.buckets import Block, Buckets
from recd_plugins.errors import RegistryError
from recd_plugins.slots import Context, PoolingFactory

__all__ = ["Transformer", "TransformerConfig", "build_transformer"]


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(Config):
    """Pre-norm encoder layers, without dropout."""

    heads: Annotated[int, Range(ge=1)] = 2
    """Attention heads; they share the embedding dimension evenly."""
    layers: Annotated[int, Range(ge=1)] = 1
    """Encoder layers."""
    expansion: Annotated[int, Range(ge=1)] = 4
    """Width of the feed-forward part, in embedding dimensions."""
    positions: Annotated[int, Range(ge=0)] = 512
    """Learned positions, counted from the row's end; older values share the last, 0 for none."""
    output: Literal["mean", "last"] = "mean"
    """The mean over the row's positions, or the last position."""


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
        buckets = Buckets.of(lengths)
        outputs = [self._encode(block) for block in buckets.blocks(values)]
        if not outputs:
            # Not a value in the batch; but DDP, told that the graph is static, wants gradients.
            nothing = Block(values.new_zeros(1, 1, values.shape[1]), lengths.new_ones(1), True)
            outputs = [0.0 * self._encode(nothing)]
        return buckets.rows(outputs)

    def _encode(self, block: Block) -> Tensor:
        """[b, D]: one vector a row."""
        x, lengths, full = block
        column = torch.arange(x.shape[1], device=x.device)
        if self.positions is not None:
            age = lengths.unsqueeze(1) - 1 - column
            x = x + self.positions(age.clamp(0, self.positions.num_embeddings - 1))
        padding = None if full else column >= lengths.unsqueeze(1)
        encoded: Tensor = self.encoder(x, src_key_padding_mask=padding)
        if self.output == "last":
            return encoded[torch.arange(len(encoded), device=x.device), lengths - 1]
        if padding is not None:
            encoded = encoded.masked_fill(padding.unsqueeze(2), 0.0)
        return encoded.sum(1) / lengths.unsqueeze(1)


def build_transformer(config: TransformerConfig, context: Context) -> PoolingFactory:
    return partial(Transformer, config=config)

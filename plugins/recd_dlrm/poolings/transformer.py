"""Self-attention over a sequence, then its mean or its last position."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recd_plugins.config import Config, Range
from recd_plugins.embedding.buckets import Block, Buckets, block_cells
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
        buckets = Buckets.of(lengths, max_cells=block_cells(values))
        outputs = [self._encode(block) for block in buckets.blocks(values)]
        if not outputs:
            # Not a value in the batch; but DDP, told that the graph is static, wants gradients.
            nothing = Block(values.new_zeros(1, 1, values.shape[1]), lengths.new_ones(1), None)
            outputs = [0.0 * self._encode(nothing)]
        return buckets.rows(outputs)

    def _encode(self, block: Block) -> Tensor:
        """[b, D]: one vector a row."""
        x, lengths, mask = block
        if self.positions is not None:
            ages = torch.arange(x.shape[1] - 1, -1, -1, device=x.device)
            x = x + self.positions(ages.clamp(max=self.positions.num_embeddings - 1))
        encoder: Any = self.encoder
        *layers, top = encoder.layers
        for layer in layers:
            x = _encode(layer, x, mask)
        if self.output == "last":
            last: Tensor = encoder.norm(_encode(top, x, mask, only_last=True)).squeeze(1)
            return last
        encoded: Tensor = encoder.norm(_encode(top, x, mask))
        if mask is not None:
            encoded = encoded * mask.unsqueeze(2)
        return encoded.sum(1) / lengths.unsqueeze(1)


def _encode(layer: Any, x: Tensor, mask: Tensor | None, only_last: bool = False) -> Tensor:
    """[b, l, D]: what the encoder layer itself makes of x [b, l, D], or [b, 1, D] of its end.

    Its own forward copies queries, keys and values thrice.
    """
    attention = layer.self_attn
    packed = F.linear(layer.norm1(x), attention.in_proj_weight, attention.in_proj_bias)
    heads = packed.unflatten(2, (3, attention.num_heads, attention.head_dim))
    q, k, v = heads.permute(2, 0, 3, 1, 4)
    if only_last:
        q, x = q[:, :, -1:], x[:, -1:]
    seen = F.scaled_dot_product_attention(q, k, v, None if mask is None else mask[:, None, None])
    x = x + attention.out_proj(seen.transpose(1, 2).flatten(2))
    widened = layer.activation(layer.linear1(layer.norm2(x)))
    encoded: Tensor = x + layer.linear2(widened)
    return encoded


def build_transformer(config: TransformerConfig, context: Context) -> PoolingFactory:
    return partial(Transformer, config=config)

"""What poolings and models are made with, on the unique samples of a feature group."""

from recd_plugins.embedding.attention import self_attention
from recd_plugins.embedding.buckets import Buckets, Chunk, chunk_values
from recd_plugins.embedding.expand import cells_of, expand_rows
from recd_plugins.embedding.pooling import PoolsUnique
from recd_plugins.tiers.home.mapped import mapped

__all__ = [
    "Buckets",
    "Chunk",
    "PoolsUnique",
    "cells_of",
    "chunk_values",
    "expand_rows",
    "mapped",
    "self_attention",
]

"""What a model that takes deduplicated batches is given as its features."""

from __future__ import annotations

from dataclasses import dataclass

from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.sparse.ikjt import InverseKeyedJaggedTensor

__all__ = ["SparseFeatures"]


@dataclass(frozen=True)
class SparseFeatures:
    """All sparse features of B samples, each in one of the two."""

    plain: KeyedJaggedTensor
    """Those that are not deduplicated, B rows each."""
    dedup: InverseKeyedJaggedTensor
    """Those that are: the unique samples of each group, and which sample has which."""

"""Embeddings of scored ids, each times its weight."""

from __future__ import annotations

from torch import Tensor
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor

from recd_plugins.embedding.unexpanded import Unexpanded
from recd_plugins.errors import DataError
from recd_plugins.sparse.features import SparseFeatures

__all__ = ["weighed"]


def weighed(jagged: JaggedTensor, features: KeyedJaggedTensor | SparseFeatures, key: str) -> Tensor:
    """[N, D] of a feature's embeddings, as a collection yields them for `features`, each times the
    weight of its id. Embeddings of unique samples stay unique."""
    values = jagged.values()
    if isinstance(values, Unexpanded) and values.is_unique and isinstance(features, SparseFeatures):
        weights = features.rows[key].weights
        assert values.lengths is not None
        unique = values.took() * _column(weights, values.of_unique, key)
        return Unexpanded.values(unique, values.lengths, values.inverse_lookup, len(values))
    product: Tensor = values * _column(features[key].weights_or_none(), values, key)
    return product


def _column(weights: Tensor | None, values: Tensor, key: str) -> Tensor:
    if weights is None:
        raise DataError(
            f"feature {key!r} is scored, but its ids come without weights. Let the reader give a "
            "KeyedJaggedTensor with weights, or take `scored` out of the feature's entry in the "
            "schema."
        )
    return weights.to(values.dtype).unsqueeze(1)

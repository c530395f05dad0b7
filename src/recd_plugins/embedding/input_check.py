"""The first batch of a sharded EmbeddingBagCollection, checked as TorchRec checks it."""

from __future__ import annotations

from collections.abc import Sequence

from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
from torchrec.sparse.jagged_tensor_validator import validate_keyed_jagged_tensor

__all__ = ["InputCheck"]


class InputCheck:
    """Checks one KJT and no more: keys twice, lengths and weights that are of other values."""

    def __init__(self, configs: Sequence[EmbeddingBagConfig]) -> None:
        """`configs` are those of the collection's tables; ids that they have no row for are
        logged."""
        self._configs = list(configs)
        self._checked = False

    def first(self, features: KeyedJaggedTensor) -> None:
        """`ValueError` of TorchRec's where the features cannot be a batch's."""
        if not self._checked:
            validate_keyed_jagged_tensor(features, self._configs)
            self._checked = True

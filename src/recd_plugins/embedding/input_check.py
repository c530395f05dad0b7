"""The check of the first batch of a sharded EmbeddingBagCollection, as TorchRec makes it."""

from __future__ import annotations

from collections.abc import Sequence

from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
from torchrec.sparse.jagged_tensor_validator import validate_keyed_jagged_tensor

__all__ = ["InputCheck"]


class InputCheck:
    """Checks one KJT and no more: keys that come twice, and lengths or weights that do not fit the
    values."""

    def __init__(self, configs: Sequence[EmbeddingBagConfig]) -> None:
        """`configs` are those of the collection's tables. Ids that have no row there are logged."""
        self._configs = list(configs)
        self._checked = False

    def first(self, features: KeyedJaggedTensor) -> None:
        """TorchRec's `ValueError` where the features cannot be those of a batch."""
        if not self._checked:
            validate_keyed_jagged_tensor(features, self._configs)
            self._checked = True

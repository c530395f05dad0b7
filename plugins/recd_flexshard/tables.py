"""The model's tables of sequences: those whose rows can have replicas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from recd_plugins.errors import RegistryError, nearest
from recd_plugins.planning.profile import Counted

if TYPE_CHECKING:
    from torch import nn

__all__ = ["ModelTable", "sequence_tables"]


@dataclass(frozen=True, kw_only=True)
class ModelTable:
    """One table of an EmbeddingCollection."""

    name: str
    num_rows: int
    dim: int
    element_bytes: int
    features: tuple[str, ...]

    @property
    def counted(self) -> Counted:
        """What to count for its distribution: the lookups of all its features."""
        return Counted(num_rows=self.num_rows, features=self.features)


def sequence_tables(model: nn.Module, chosen: Sequence[str]) -> Mapping[str, ModelTable]:
    """By name, those that a name or glob of `chosen` fits.

    Tables of an EmbeddingBagCollection are left out: their rows are summed before they travel,
    so a replica spares no traffic unless all of a bag's rows have one.
    """
    from torchrec.modules.embedding_configs import data_type_to_dtype
    from torchrec.modules.embedding_modules import EmbeddingCollection

    found = {
        config.name: ModelTable(
            name=config.name,
            num_rows=config.num_embeddings,
            dim=config.embedding_dim,
            element_bytes=data_type_to_dtype(config.data_type).itemsize,
            features=tuple(config.feature_names),
        )
        for module in model.modules()
        if isinstance(module, EmbeddingCollection)
        for config in module.embedding_configs()
    }
    for pattern in chosen:
        if pattern != "*" and not any(fnmatchcase(name, pattern) for name in found):
            raise RegistryError(
                f"sharding.tables: no table of sequences is named {pattern!r}; "
                f"{nearest(pattern, found)}"
            )
    return {
        name: table
        for name, table in found.items()
        if any(fnmatchcase(name, pattern) for pattern in chosen)
    }

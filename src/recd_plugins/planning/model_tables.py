"""The tables of a model whose rows can have replicas, and what of a batch looks them up."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from recd_plugins.errors import RegistryError
from recd_plugins.naming.patterns import check_patterns, matching
from recd_plugins.planning.access.access_profile import Counted
from recd_plugins.planning.access.distribution import RowDistribution
from recd_plugins.planning.table_sizes import SequenceTable

if TYPE_CHECKING:
    from torch import nn

__all__ = ["ModelTable", "check_collections", "model_tables"]


@dataclass(frozen=True, kw_only=True)
class ModelTable:
    """One table of an embedding collection."""

    name: str
    module: str
    """The path of its collection in the model."""
    pooled: bool
    """Whether its collection is an EmbeddingBagCollection."""
    num_rows: int
    dim: int
    element_bytes: int
    features: tuple[str, ...]

    @property
    def counted(self) -> Counted:
        """What to count for its distribution: the lookups of all its features."""
        return Counted(num_rows=self.num_rows, features=self.features)

    def with_rows(self, rows: RowDistribution) -> SequenceTable:
        """The table with its access distribution, as ledgers take it."""
        return SequenceTable(
            name=self.name,
            rows=rows,
            dim=self.dim,
            element_bytes=self.element_bytes,
            bags=len(self.features) if self.pooled else 0,
        )


def model_tables(
    model: nn.Module, chosen: Sequence[str] = ("*",), *, pooled: bool = True, where: str = "tables"
) -> Mapping[str, ModelTable]:
    """The tables that a name or glob of `chosen` fits, by name; without pooled ones unless
    `pooled`.

    `where` opens the error if one fits none.
    """
    from torchrec.modules.embedding_configs import data_type_to_dtype
    from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection

    found = {}
    for path, module in model.named_modules():
        if isinstance(module, EmbeddingCollection):
            configs = module.embedding_configs()
        elif isinstance(module, EmbeddingBagCollection) and pooled:
            configs = module.embedding_bag_configs()
        else:
            continue
        for config in configs:
            found[config.name] = ModelTable(
                name=config.name,
                module=path,
                pooled=isinstance(module, EmbeddingBagCollection),
                num_rows=config.num_embeddings,
                dim=config.embedding_dim,
                element_bytes=data_type_to_dtype(config.data_type).itemsize,
                features=tuple(config.feature_names),
            )
    kind = "table" if pooled else "table of sequences"
    check_patterns(chosen, found, kind=kind, where=where)
    return {name: found[name] for name in matching(chosen, found)}


def check_collections(
    every: Mapping[str, ModelTable], planned: Collection[str], *, slot: str
) -> None:
    """Refuse to coalesce only some bags of a collection: all of one are, or none."""
    modules = {every[name].module for name in planned if every[name].pooled}
    left = [t.name for t in every.values() if t.module in modules and t.name not in planned]
    if left:
        raise RegistryError(
            f"{slot}: tables {', '.join(left)} are left out, by {slot}.tables or by the "
            "planner's constraints, but others of their EmbeddingBagCollection are coalesced, "
            "which all of one collection are or none. Name all of them, or set "
            "`coalesce: none`."
        )

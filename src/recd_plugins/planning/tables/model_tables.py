"""The tables of a model whose rows can have replicas, and what of a batch looks them up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from recd_plugins.patterns import check_patterns, matching
from recd_plugins.planning.access.access_profile import Counted
from recd_plugins.planning.access.distribution import RowDistribution
from recd_plugins.planning.tables.embedding_collections import embedding_collections
from recd_plugins.planning.tables.planned_shards import PlannedShards
from recd_plugins.planning.tables.profiled_table import ProfiledTable

if TYPE_CHECKING:
    from torch import nn

    from recd_plugins.embedding.dedup import TablePart

__all__ = ["ModelTable", "ambiguous", "model_tables"]


@dataclass(frozen=True, kw_only=True)
class ModelTable:
    """One table of an embedding collection."""

    name: str
    module: str
    """The path of its collection in the model."""
    part: int = 0
    """The part of the collection that looks it up: each part exchanges by itself."""
    pooled: bool
    """Whether its collection is an EmbeddingBagCollection."""
    pooling: str = ""
    """What its bags are pooled by, as TorchRec names it; nothing where rows come one by one."""
    num_rows: int
    dim: int
    element_bytes: int
    features: tuple[str, ...]
    bags: float = 0
    """Bags of a sample. Bags of unique samples count by the share of samples that are unique, with
    the rows that pad them."""

    @property
    def counted(self) -> Counted:
        """What is counted for its distribution: the lookups of all its features."""
        return Counted(num_rows=self.num_rows, features=self.features, bags=bool(self.bags))

    def with_rows(
        self,
        rows: RowDistribution,
        shards: PlannedShards | None = None,
        *,
        mapped: bool = False,
    ) -> ProfiledTable:
        """The table with its access distribution, as ledgers take it; `shards` is where TorchRec's
        own plan has it, and it may lie in `mapped` files."""
        return ProfiledTable(
            name=self.name,
            rows=rows,
            dim=self.dim,
            element_bytes=self.element_bytes,
            bags=self.bags,
            collection=f"{self.module}/{self.part}",
            shards=shards,
            mapped=mapped,
        )


def model_tables(
    model: nn.Module, chosen: Sequence[str] = ("*",), *, pooled: bool = True, where: str = "tables"
) -> Mapping[str, ModelTable]:
    """The tables that a name or glob of `chosen` fits, by name; without pooled ones unless
    `pooled`.

    `where` opens the error if one fits none of the tables that there are.
    """
    from torchrec.modules.embedding_configs import EmbeddingBagConfig, data_type_to_dtype
    from torchrec.modules.embedding_modules import EmbeddingBagCollection

    found = {}
    for path, module, configs in embedding_collections(model):
        bags = isinstance(module, EmbeddingBagCollection)
        if bags and not pooled:
            continue
        # An adapted model's collections have parts, and shares of unique samples.
        shares: Mapping[str, float] = getattr(module, "unique_shares", {})
        parts: Sequence[TablePart] = getattr(module, "parts", ())
        part_of = {name: number for number, one in enumerate(parts) for name in one.tables}
        for config in configs:
            part = part_of.get(config.name, 0)
            padded = parts[part].share if parts else None
            found[config.name] = ModelTable(
                name=config.name,
                module=path,
                part=part,
                pooled=bags,
                pooling=config.pooling.name if isinstance(config, EmbeddingBagConfig) else "",
                num_rows=config.num_embeddings,
                dim=config.embedding_dim,
                element_bytes=data_type_to_dtype(config.data_type).itemsize,
                features=tuple(config.feature_names),
                bags=sum(
                    shares.get(feature, 1.0) if padded is None else padded
                    for feature in config.feature_names
                )
                if bags
                else 0,
            )
    if any(embedding_collections(model)):
        kind = "table" if pooled else "table of sequences"
        check_patterns(chosen, found, kind=kind, where=where)
    return {name: found[name] for name in matching(chosen, found)}


def ambiguous(model: nn.Module) -> set[str]:
    """The names that tables of several collections share. TorchRec tells them apart by module;
    profiles and tier plans, which go by names, cannot."""
    every = (configs for _, _, configs in embedding_collections(model))
    names = Counter(config.name for configs in every for config in configs)
    return {name for name, count in names.items() if count > 1}

"""DLRM: TorchRec's own two models, over tables made from the schema.

Naumov et al., Deep Learning Recommendation Model for Personalization and Recommendation
Systems (arXiv:1906.00091). DLRM_DCN has a cross network for its interaction: Wang et al.,
DCN V2 (arXiv:2008.13535), in its low-rank form.

TorchRec names a module after each table, so the module of table `item` is `t_item`: without the
prefix, a table called `items` or `values` would collide with the methods of `nn.ModuleDict`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import torch
from torch import nn

from recd_dlrm.models.click_model import click_model
from recd_plugins.api import (
    Config,
    Context,
    DataError,
    Range,
    RegistryError,
    check_patterns,
    matching,
    so_many,
)
from recd_plugins.api.data import Schema, SparseFeature

if TYPE_CHECKING:
    from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection

__all__ = [
    "DlrmConfig",
    "DlrmDcnConfig",
    "bag_tables",
    "build_dlrm",
    "build_dlrm_dcn",
    "dense_width",
    "sequence_tables",
    "taken_schema",
    "top_layers",
]


META = torch.device("meta")
"""Tables made on CPU would stay in memory in addition to the sharded ones."""


def bag_tables(
    schema: Schema, features: Iterable[SparseFeature], dim: int
) -> EmbeddingBagCollection:
    """Tables whose embeddings are summed per sample, [B, D] per feature; scored ids are
    weighted."""
    from torchrec.modules.embedding_configs import EmbeddingBagConfig
    from torchrec.modules.embedding_modules import EmbeddingBagCollection

    every = list(features)
    tables = [EmbeddingBagConfig(**table) for table in _tables(schema, every, dim)]
    scored = any(feature.scored for feature in every)
    return EmbeddingBagCollection(tables=tables, is_weighted=scored, device=META)


def sequence_tables(
    schema: Schema, features: Iterable[SparseFeature], dim: int
) -> EmbeddingCollection:
    """Tables whose embeddings come one by one: jagged [N, D] per feature."""
    from torchrec.modules.embedding_configs import EmbeddingConfig
    from torchrec.modules.embedding_modules import EmbeddingCollection

    tables = [EmbeddingConfig(**table) for table in _tables(schema, features, dim)]
    return EmbeddingCollection(tables=tables, device=META)


def check_table_names(names: Iterable[str]) -> None:
    """Raises `RegistryError` for a table whose name cannot be a module's."""
    if dotted := [name for name in names if "." in name]:
        raise RegistryError(
            f"table {dotted[0]!r} cannot have a dot in its name: PyTorch names a module after "
            "it. Set `table` of its features in the schema."
        )


def _tables(schema: Schema, features: Iterable[SparseFeature], dim: int) -> list[dict[str, object]]:
    """The arguments of each table's config; features that share a table share its config."""
    by_table: dict[str, list[str]] = {}
    for feature in features:
        by_table.setdefault(feature.table_name, []).append(feature.name)
    check_table_names(by_table)
    sizes = schema.table_sizes()
    return [
        {
            "name": f"t_{name}",
            "num_embeddings": sizes[name],
            "embedding_dim": dim,
            "feature_names": names,
        }
        for name, names in by_table.items()
    ]


@dataclass(frozen=True, kw_only=True)
class DlrmConfig(Config):
    """Defaults are the paper's Kaggle model: bottom 512-256-64-16, top 512-256-1, D = 16."""

    embedding_dim: Annotated[int, Range(ge=4)] = 16
    """D, the width of every table and of the bottom MLP's output; a multiple of 4."""
    bottom: Annotated[tuple[int, ...], Range(ge=1)] = (512, 256, 64)
    """The widths of the bottom MLP's layers. If the last is not embedding_dim, a layer of that
    width follows."""
    top: Annotated[tuple[int, ...], Range(ge=1)] = (512, 256)
    """The widths of the top MLP's layers. A layer with one output for each label follows, unless
    the last is that layer."""
    features: str | tuple[str, ...] = "*"
    """Names or globs of the sparse features and dense columns that the model takes; by default all.
    A column that is neither one of these nor made into one is not read."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.embedding_dim % 4:
            raise RegistryError(
                f"must be a multiple of 4, which fbgemm's tables need, but is "
                f"{self.embedding_dim}.",
                where="embedding_dim",
            )
        if len(self.top_layers) == 1:
            raise RegistryError("must have a layer before the last, say [512, 256].", where="top")

    def takes(self, schema: Schema) -> list[str]:
        """The features and dense columns of a schema that the model takes."""
        names = (*schema.dense, *schema.sparse_names)
        check_patterns(self.patterns, names, kind="feature or dense column", where="model.features")
        taken = matching(self.patterns, names)
        check_table_names(one.table_name for one in schema.having(taken).sparse)
        return taken

    @property
    def patterns(self) -> tuple[str, ...]:
        """`features`, as patterns."""
        return (self.features,) if isinstance(self.features, str) else self.features

    @property
    def bottom_layers(self) -> list[int]:
        last = () if self.bottom[-1:] == (self.embedding_dim,) else (self.embedding_dim,)
        return [*self.bottom, *last]

    @property
    def top_layers(self) -> list[int]:
        return self.top_layers_of(1)

    def top_layers_of(self, labels: int) -> list[int]:
        """The layers of the top MLP; the last has an output for each label."""
        is_last = self.top[-1:] in ((1,), (labels,))
        return [*(self.top[:-1] if is_last else self.top), labels]


def build_dlrm(config: DlrmConfig, context: Context) -> nn.Module:
    from torchrec.models.dlrm import DLRM

    schema = taken_schema("dlrm", config, context)
    net = DLRM(
        embedding_bag_collection=bag_tables(schema, schema.sparse, config.embedding_dim),
        dense_in_features=dense_width(schema),
        dense_arch_layer_sizes=config.bottom_layers,
        over_arch_layer_sizes=top_layers(config, schema),
    )
    return click_model(net, schema, context)


def taken_schema(model: str, config: DlrmConfig, context: Context) -> Schema:
    """The part of the context's schema that the model takes, with at least one sparse feature."""
    schema = context.require_schema()
    taken = matching(config.patterns, (*schema.dense, *schema.sparse_names))
    if not {*taken} & {*schema.sparse_names}:
        why = (
            "the schema has none. Name a dataset that has, or list its columns under the schema's "
            "`sparse`"
            if config.patterns == ("*",)
            else f"model.features, which is [{', '.join(config.patterns)}], names none. Name one "
            "in it, or take it out"
        )
        raise DataError(f"model {model} embeds sparse features, but {why}.")
    return schema.having(taken)


def top_layers(config: DlrmConfig, schema: Schema) -> list[int]:
    """The layers of the top MLP for the schema's labels, at least two."""
    layers = config.top_layers_of(len(schema.targets))
    if len(layers) == 1:
        raise RegistryError(
            f"has the outputs of {so_many(len(schema.targets), 'label')} alone: it must have a "
            "layer before the last, say [512, 256].",
            where="model.top",
        )
    return layers


def dense_width(schema: Schema) -> int:
    """The number of inputs of the bottom MLP: the dense floats, or ClickModel's constant."""
    return schema.dense_width or 1


@dataclass(frozen=True, kw_only=True)
class DlrmDcnConfig(DlrmConfig):
    """DLRM's options and the cross network's."""

    cross_layers: Annotated[int, Range(ge=1)] = 3
    """The number of cross layers: x_{l+1} = x_0 * (W_l (V_l x_l) + b_l) + x_l."""
    low_rank: Annotated[int, Range(ge=1)] = 64
    """The rank of W V."""


def build_dlrm_dcn(config: DlrmDcnConfig, context: Context) -> nn.Module:
    from torchrec.models.dlrm import DLRM_DCN

    schema = taken_schema("dlrm_dcn", config, context)
    net = DLRM_DCN(
        embedding_bag_collection=bag_tables(schema, schema.sparse, config.embedding_dim),
        dense_in_features=dense_width(schema),
        dense_arch_layer_sizes=config.bottom_layers,
        over_arch_layer_sizes=top_layers(config, schema),
        dcn_num_layers=config.cross_layers,
        dcn_low_rank_dim=config.low_rank,
    )
    return click_model(net, schema, context)

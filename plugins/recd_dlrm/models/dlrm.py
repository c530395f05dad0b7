"""DLRM: TorchRec's own two models, over tables made from the schema, with the loss of clicks.

Naumov et al., Deep Learning Recommendation Model for Personalization and Recommendation
Systems (arXiv:1906.00091). DLRM_DCN has a cross network for its interaction: Wang et al.,
DCN V2 (arXiv:2008.13535), in its low-rank form.

TorchRec names a module after each table, so the module of table `item` is `t_item`: without the
prefix, a table called `items` or `values` would collide with the methods of `nn.ModuleDict`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recd_plugins.api import (
    Config,
    Context,
    DataError,
    GivesNotices,
    Notice,
    Range,
    RegistryError,
    check_patterns,
    matching,
    so_many,
)
from recd_plugins.api.data import Label, Schema, SparseFeature

if TYPE_CHECKING:
    from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection

    from recd_plugins.api.batch import Batch

__all__ = [
    "ClickModel",
    "DlrmConfig",
    "DlrmDcnConfig",
    "bag_tables",
    "build_dlrm",
    "build_dlrm_dcn",
    "click_model",
    "dense_width",
    "sequence_tables",
    "taken_schema",
    "top_layers",
    "weighted_loss",
]


CLICK = Label(name="label")
"""The label of a model that is given no labels."""


class ClickModel(nn.Module, GivesNotices):
    """Any `net(dense, features) -> outputs [B] or [B, T]`, one for each of T labels, with its loss.

    The loss is the sum of the labels' losses, each times its label's weight. A schema without dense
    features has nothing for a bottom MLP to read; with `constant` the net gets a column of ones, so
    that the MLP becomes a learned vector. `places` are the positions of the batch's floats that the
    net gets, by default all. `found` are the notices of its options.
    """

    places: Tensor | None

    def __init__(
        self,
        net: nn.Module,
        *,
        constant: bool,
        labels: Sequence[Label] = (CLICK,),
        places: Sequence[int] | None = None,
        found: Sequence[Notice] = (),
    ) -> None:
        super().__init__()
        self.net = net
        chosen = None if places is None else torch.tensor([*places], dtype=torch.int64)
        self.register_buffer("places", chosen, persistent=False)
        self.constant = constant
        self.labels = tuple(labels)
        self._found = tuple(found)

    def notices(self) -> Sequence[Notice]:
        return self._found

    def forward(self, batch: Batch) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor, Tensor]]:
        """The loss, then (loss, outputs, labels, weights [B]), detached.

        Outputs and labels are [B], or [B, T] for T labels. An output is the logit of a click, the
        logit of a grade divided by the highest one, or the value itself of a regression.
        """
        # TorchRec's pipeline finds `batch.features` by tracing this: use only attribute accesses.
        dense = batch.dense if self.places is None else batch.dense[:, self.places]
        if self.constant:
            dense = F.pad(dense, (1, 0), value=1.0)
        outputs = self.net(dense, batch.features)
        if len(self.labels) == 1:
            outputs = outputs.squeeze(-1)
            loss = _label_loss(outputs, batch.labels, batch.weights, self.labels[0])
        else:
            losses = [
                _label_loss(outputs[:, task], batch.labels[:, task], batch.weights, label)
                for task, label in enumerate(self.labels)
            ]
            loss = torch.stack(losses).sum()
        return loss, (
            loss.detach(),
            outputs.detach(),
            batch.labels.detach(),
            batch.weights.detach(),
        )


def _label_loss(outputs: Tensor, labels: Tensor, weights: Tensor, label: Label) -> Tensor:
    """The loss of one label times its weight; samples that lack the label do not count. All tensors
    are [B]."""
    if label.nulls == "empty":
        lacking = labels.isnan()
        labels, weights = labels.masked_fill(lacking, 0.0), weights.masked_fill(lacking, 0.0)
    if label.kind == "regression":
        loss = (even_weights(weights) * (outputs - labels).square()).mean()
    else:
        loss = weighted_loss(outputs, labels if label.scale == 1 else labels / label.scale, weights)
    return loss if label.weight == 1 else label.weight * loss


def weighted_loss(logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """sum_i w_i BCE(logit_i, label_i) / N, all [B], N the samples of weight above 0; 0 without any.

    Its mean over ranks, which DDP's gradients follow, is the loss of the global batch if all ranks
    have equally many such samples: a padding row on only one rank breaks that.
    """
    # A mean with weights that average to 1: with weights of 1 this is exactly plain BCE.
    return F.binary_cross_entropy_with_logits(logits, labels, even_weights(weights))


def even_weights(weights: Tensor) -> Tensor:
    """[B] weights whose mean over the batch is their sum over the samples that have any."""
    share = (weights > 0).to(weights.dtype).mean()
    return weights / torch.where(share > 0, share, 1.0)


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


def click_model(
    net: nn.Module, schema: Schema, context: Context, found: Sequence[Notice] = ()
) -> ClickModel:
    """A net for the columns in `schema`, which are some of the context's, with the loss of its
    labels, and the notices `found` of its options."""
    whole = context.require_schema()
    widths = [whole.width(name) or 1 for name in whole.dense]
    names = [name for name, width in zip(whole.dense, widths, strict=True) for _ in range(width)]
    places = [place for place, name in enumerate(names) if name in schema.dense]
    return ClickModel(
        net,
        constant=not schema.dense,
        labels=schema.targets,
        places=None if schema.dense == whole.dense else places,
        found=found,
    )


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

"""DLRM: TorchRec's own, over tables made from the schema.

Naumov et al., Deep Learning Recommendation Model for Personalization and Recommendation
Systems (arXiv:1906.00091).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import nn

from recd_dlrm.models.click import ClickModel
from recd_dlrm.models.tables import bag_tables
from recd_plugins.api import Config, Context, DataError, Range, RegistryError
from recd_plugins.api.data import Schema

__all__ = ["DlrmConfig", "build_dlrm"]


@dataclass(frozen=True, kw_only=True)
class DlrmConfig(Config):
    """Defaults are the paper's Kaggle model: bottom 512-256-64-16, top 512-256-1, D = 16."""

    embedding_dim: Annotated[int, Range(ge=4)] = 16
    """D, of every table and of the bottom MLP's output; a multiple of 4."""
    bottom: Annotated[tuple[int, ...], Range(ge=1)] = (512, 256, 64)
    """Layers of the bottom MLP; one of embedding_dim follows if it is not the last."""
    top: Annotated[tuple[int, ...], Range(ge=1)] = (512, 256)
    """Layers of the top MLP; one of 1 follows if it is not the last."""

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

    @property
    def bottom_layers(self) -> list[int]:
        return _ending(self.bottom, self.embedding_dim)

    @property
    def top_layers(self) -> list[int]:
        return _ending(self.top, 1)


def _ending(layers: tuple[int, ...], last: int) -> list[int]:
    return list(layers if layers[-1:] == (last,) else (*layers, last))


def build_dlrm(config: DlrmConfig, context: Context) -> nn.Module:
    from torchrec.models.dlrm import DLRM

    schema = sparse_schema("dlrm", context)
    net = DLRM(
        embedding_bag_collection=bag_tables(schema, schema.sparse, config.embedding_dim),
        dense_in_features=dense_width(schema),
        dense_arch_layer_sizes=config.bottom_layers,
        over_arch_layer_sizes=config.top_layers,
    )
    return ClickModel(net, constant=not schema.dense)


def sparse_schema(model: str, context: Context) -> Schema:
    """The context's schema, which has a sparse feature for the model to embed."""
    schema = context.require_schema()
    if not schema.sparse:
        raise DataError(
            f"model {model} embeds sparse features, but the schema has none. "
            "Name a dataset that has, or list its columns under the schema's `sparse`."
        )
    return schema


def dense_width(schema: Schema) -> int:
    """Inputs of the bottom MLP: the dense features, or ClickModel's constant."""
    return len(schema.dense) or 1

"""DLRM with a cross network for its interaction: TorchRec's DLRM_DCN.

Wang et al., DCN V2 (arXiv:2008.13535), in its low-rank form.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import nn

from recd_dlrm.models.click import ClickModel
from recd_dlrm.models.dlrm import DlrmConfig, dense_width, sparse_schema
from recd_dlrm.models.tables import bag_tables
from recd_plugins.api import Context, Range

__all__ = ["DlrmDcnConfig", "build_dlrm_dcn"]


@dataclass(frozen=True, kw_only=True)
class DlrmDcnConfig(DlrmConfig):
    """DLRM's options and the cross network's."""

    cross_layers: Annotated[int, Range(ge=1)] = 3
    """Cross layers: x_{l+1} = x_0 * (W_l (V_l x_l) + b_l) + x_l."""
    low_rank: Annotated[int, Range(ge=1)] = 64
    """Rank of W V."""


def build_dlrm_dcn(config: DlrmDcnConfig, context: Context) -> nn.Module:
    from torchrec.models.dlrm import DLRM_DCN

    schema = sparse_schema("dlrm_dcn", context)
    net = DLRM_DCN(
        embedding_bag_collection=bag_tables(schema, schema.sparse, config.embedding_dim),
        dense_in_features=dense_width(schema),
        dense_arch_layer_sizes=config.bottom_layers,
        over_arch_layer_sizes=config.top_layers,
        dcn_num_layers=config.cross_layers,
        dcn_low_rank_dim=config.low_rank,
    )
    return ClickModel(net, constant=not schema.dense)

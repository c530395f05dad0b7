"""exact: samples of a feature group that are equal are kept once, as an IKJT."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recd_dedup.dedup.groups import GroupConverter, GroupsConfig
from recd_plugins.api import Context

if TYPE_CHECKING:
    from recd_plugins.api.batch import Columns, InverseKeyedJaggedTensor

__all__ = ["Exact", "build_exact"]


class Exact(GroupConverter):
    """To an IKJT."""

    def convert(self, features: Columns) -> InverseKeyedJaggedTensor:
        ikjt = features.to_ikjt(self.groups)
        return ikjt.validate() if self._validate else ikjt


def build_exact(config: GroupsConfig, context: Context) -> Exact:
    return Exact.chosen(config, context)

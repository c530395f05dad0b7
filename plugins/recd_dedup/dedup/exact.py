"""exact: samples of a feature group that are equal are kept once, as an IKJT."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recd_dedup.dedup.groups import GroupConverter, GroupsConfig
from recd_plugins.slots import Context

if TYPE_CHECKING:
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

    from recd_plugins.sparse.ikjt import InverseKeyedJaggedTensor

__all__ = ["Exact", "build_exact"]


class Exact(GroupConverter):
    """To an IKJT."""

    def deduplicated(self, features: KeyedJaggedTensor) -> InverseKeyedJaggedTensor:
        from recd_plugins.sparse.ikjt import InverseKeyedJaggedTensor

        return InverseKeyedJaggedTensor.from_kjt(features, self.groups, validate=self._validate)


def build_exact(config: GroupsConfig, context: Context) -> Exact:
    return Exact.chosen(config, context)

"""partial: samples that are equal or shifted share their values, as a partial IKJT."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recd_dedup.dedup.groups import GroupConverter, GroupsConfig
from recd_plugins.api import Context

if TYPE_CHECKING:
    from recd_plugins.api.batch import Columns, PartialInverseKeyedJaggedTensor

__all__ = ["Partial", "build_partial"]


class Partial(GroupConverter):
    """To a partial IKJT."""

    def convert(self, features: Columns) -> PartialInverseKeyedJaggedTensor:
        from recd_plugins.api.batch import PartialInverseKeyedJaggedTensor

        partial = PartialInverseKeyedJaggedTensor.from_kjt(features.to_kjt(), self.groups)
        if self._validate:
            partial.validate()
        return partial


def build_partial(config: GroupsConfig, context: Context) -> Partial:
    return Partial.chosen(config, context)

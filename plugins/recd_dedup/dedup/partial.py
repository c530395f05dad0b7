"""partial: samples that are equal or shifted share their values, as a partial IKJT."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from recd_dedup.dedup.exact import chosen_groups
from recd_plugins.config import Config, Range
from recd_plugins.slots import Context

if TYPE_CHECKING:
    from recd_plugins.data.batch import Batch
    from recd_plugins.sparse.groups import Groups

__all__ = ["Partial", "PartialConfig", "build_partial"]


@dataclass(frozen=True, kw_only=True)
class PartialConfig(Config):
    """Which features are deduplicated, and which of them together."""

    groups: tuple[tuple[str, ...], ...] | Literal["auto"] = "auto"
    """Lists of features (the paper's dedup_sparse_features); `auto`: as the advisor finds."""
    min_factor: Annotated[float, Range(ge=1)] = 1.5
    """With `auto`, the DedupeFactor from which on a feature is deduplicated, counting exact
    copies alone."""
    validate: bool = False
    """Check the rules of every partial IKJT made; slow, to find defects."""


class Partial:
    """Moves the features of its groups from `batch.features` to a partial IKJT in `dedup`."""

    def __init__(self, groups: Groups, *, validate: bool = False) -> None:
        self.groups = groups
        """None: batches stay as they are."""
        self._validate = validate
        self._keys = frozenset(key for group in groups for key in group)

    def convert(self, batch: Batch) -> Batch:
        from recd_plugins.sparse.partial import PartialInverseKeyedJaggedTensor
        from recd_plugins.sparse.weighted import without

        if not self.groups:
            return batch
        partial = PartialInverseKeyedJaggedTensor.from_kjt(batch.features, self.groups)
        if self._validate:
            partial.validate()
        left = without(batch.features, self._keys)
        return dataclasses.replace(batch, features=left, dedup=partial)


def build_partial(config: PartialConfig, context: Context) -> Partial:
    groups = chosen_groups(config.groups, config.min_factor, context)
    return Partial(groups, validate=config.validate)

"""exact: samples of a feature group that are equal are kept once, as an IKJT."""

from __future__ import annotations

import dataclasses
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from recd_plugins.config import Config, Range
from recd_plugins.errors import DataError, RegistryError
from recd_plugins.slots import Context

if TYPE_CHECKING:
    from recd_plugins.data.batch import Batch
    from recd_plugins.sparse.groups import Groups

__all__ = ["Exact", "ExactConfig", "build_exact", "chosen_groups"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ExactConfig(Config):
    """Which features are deduplicated, and which of them together."""

    groups: tuple[tuple[str, ...], ...] | Literal["auto"] = "auto"
    """Lists of features (the paper's dedup_sparse_features); `auto`: as the advisor finds."""
    min_factor: Annotated[float, Range(ge=1)] = 1.5
    """With `auto`, the DedupeFactor from which on a feature is deduplicated."""
    validate: bool = False
    """Check the rules of every IKJT made; slow, to find defects."""


class Exact:
    """Moves the features of its groups from `batch.features` to an IKJT in `batch.dedup`."""

    def __init__(self, groups: Groups, *, validate: bool = False) -> None:
        self.groups = groups
        """None: batches stay as they are."""
        self._validate = validate
        self._keys = frozenset(key for group in groups for key in group)

    def convert(self, batch: Batch) -> Batch:
        from recd_plugins.sparse.ikjt import InverseKeyedJaggedTensor
        from recd_plugins.sparse.weighted import without

        if not self.groups:
            return batch
        features = batch.features
        ikjt = InverseKeyedJaggedTensor.from_kjt(features, self.groups, validate=self._validate)
        return dataclasses.replace(batch, features=without(features, self._keys), dedup=ikjt)


def build_exact(config: ExactConfig, context: Context) -> Exact:
    groups = chosen_groups(config.groups, config.min_factor, context)
    return Exact(groups, validate=config.validate)


def chosen_groups(
    groups: tuple[tuple[str, ...], ...] | Literal["auto"], min_factor: float, context: Context
) -> Groups:
    """The groups as given, checked against the schema, or as advised for the training table."""
    if groups == "auto":
        from recd_dedup.dedup.advisor import advise

        table = context.require_tables().train
        advice = advise(table, batch_size=context.batch_size, min_factor=min_factor)
        for line in advice.lines():
            logger.info(line)
        return advice.groups
    from recd_plugins.sparse.groups import check_groups

    try:
        return check_groups(groups, context.require_schema().sparse_names)
    except DataError as error:
        raise RegistryError(str(error), "dedup.groups") from None

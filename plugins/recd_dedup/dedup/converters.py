"""The `dedup` converters, and which features they take.

- exact: samples of a feature group that are equal are kept once, as an IKJT.
- partial: samples that are equal or shifted share their values, as a partial IKJT.
- none: every sample keeps its own rows; the KJT that deduplication is measured against.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Self

from recd_plugins.api import Config, Context, DataError, Range, RegistryError

if TYPE_CHECKING:
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

    from recd_plugins.api.batch import (
        Columns,
        Groups,
        InverseKeyedJaggedTensor,
        PartialInverseKeyedJaggedTensor,
    )

__all__ = [
    "Exact",
    "GroupConverter",
    "GroupsConfig",
    "NoDedup",
    "NoneConfig",
    "Partial",
    "build_exact",
    "build_none",
    "build_partial",
    "chosen_groups",
]


@dataclass(frozen=True, kw_only=True)
class GroupsConfig(Config):
    """Which features are deduplicated, and which of them in one group."""

    groups: tuple[tuple[str, ...], ...] | Literal["auto"] = "auto"
    """Lists of features (the paper's dedup_sparse_features); `auto`: as the advisor finds."""
    min_factor: Annotated[float, Range(ge=1)] = 1.5
    """With `auto`, the DedupeFactor from which on a feature is deduplicated, counting exact
    copies alone."""
    validate: bool = False
    """Check the rules of every tensor made; slow, to find defects."""


class GroupConverter(ABC):
    """Takes the features of its groups out of batches; a `slots.DedupConverter`."""

    def __init__(
        self,
        groups: Groups,
        *,
        validate: bool = False,
        why: str = "",
        shares: Callable[[], tuple[float, ...] | None] | None = None,
    ) -> None:
        self.groups = groups
        """The features that are deduplicated; without any, batches stay as they are."""
        self._validate = validate
        self._shares = shares
        self._why = why

    @classmethod
    def chosen(cls, config: GroupsConfig, context: Context) -> Self:
        """Make one for the groups as given, or as advised."""
        groups, why, shares = chosen_groups(config, context)
        return cls(groups, validate=config.validate, why=why, shares=shares)

    @abstractmethod
    def convert(self, features: Columns) -> Any:
        """The groups' features of a batch, each value kept once."""

    def explain(self) -> str:
        """Why each feature is in its group or in none, where the advisor decided."""
        return self._why

    def __getstate__(self) -> dict[str, Any]:
        """What a worker of a loader needs: what measures tables or batches stays behind."""
        return {**self.__dict__, "_shares": None}

    @cached_property
    def unique_shares(self) -> tuple[float, ...] | None:
        """Each group's unique samples over the batch size, measured on a sample.

        None where there is no table to measure. Alike on all ranks; measured when first asked.
        """
        return None if self._shares is None else self._shares()


class ChosenGroups(NamedTuple):
    """The groups, and what is known of them."""

    groups: Groups
    why: str
    """The advisor's reasons, a line for each feature; empty where the groups were given."""
    shares: Callable[[], tuple[float, ...] | None] | None
    """Measures each group's unique samples over the batch size, where there is a table."""


def chosen_groups(config: GroupsConfig, context: Context) -> ChosenGroups:
    """The groups as given, or as advised for the trainer's batches or the training table.

    Those given are checked against the schema; where there is none, a trainer reads by itself,
    and its batches are held to the groups.
    """
    if config.groups == "auto":
        return _advised(config, context)
    from recd_plugins.api.batch import check_groups

    schema, named = context.schema, [name for group in config.groups for name in group]
    try:
        groups = check_groups(config.groups, named if schema is None else schema.sparse_names)
    except DataError as error:
        raise RegistryError(str(error), "dedup.groups") from None
    if context.looked_at:
        from recd_dedup.dedup.sample import shares_of_batches

        return ChosenGroups(groups, "", partial(shares_of_batches, context.looked_at, groups))
    if context.tables is None:
        return ChosenGroups(groups, "", None)
    from recd_dedup.dedup.sample import measured_shares

    return ChosenGroups(
        groups,
        "",
        partial(measured_shares, context.tables.train, groups, batch_size=context.batch_size),
    )


def _advised(config: GroupsConfig, context: Context) -> ChosenGroups:
    from recd_dedup.dedup.advisor import advise, advise_batches

    if context.looked_at:
        advice = advise_batches(context.looked_at, min_factor=config.min_factor)
    elif context.tables is not None:
        table = context.tables.train
        advice = advise(table, batch_size=context.batch_size, min_factor=config.min_factor)
    else:
        raise RegistryError(
            "auto: there is nothing to measure, neither a dataset in registry.yaml nor batches. "
            "Hand over your own: `stack.adapt(model, batches=loader, features=lambda batch: "
            "batch.sparse_features)`, before any batch is converted. Or name the groups.",
            "dedup.groups",
        )
    head, *reasons = advice.lines()
    why = "\n".join([f"dedup: {head}", *(f"  {line}" for line in reasons)])
    return ChosenGroups(advice.groups, why, partial(tuple, advice.unique_shares))


class Exact(GroupConverter):
    """Converts to an IKJT."""

    def convert(self, features: Columns) -> InverseKeyedJaggedTensor:
        ikjt = features.to_ikjt(self.groups)
        return ikjt.validate() if self._validate else ikjt


def build_exact(config: GroupsConfig, context: Context) -> Exact:
    return Exact.chosen(config, context)


class Partial(GroupConverter):
    """Converts to a partial IKJT."""

    def convert(self, features: Columns) -> PartialInverseKeyedJaggedTensor:
        from recd_plugins.api.batch import PartialInverseKeyedJaggedTensor

        partial = PartialInverseKeyedJaggedTensor.from_kjt(features.to_kjt(), self.groups)
        if self._validate:
            partial.validate()
        return partial


def build_partial(config: GroupsConfig, context: Context) -> Partial:
    return Partial.chosen(config, context)


@dataclass(frozen=True, kw_only=True)
class NoneConfig(Config):
    """There is nothing to choose."""


class NoDedup:
    """Leaves batches as they are."""

    groups: Groups = ()

    def convert(self, features: Columns) -> KeyedJaggedTensor:
        return features.to_kjt()


def build_none(config: NoneConfig, context: Context) -> NoDedup:
    return NoDedup()

"""The `dedup` converters, and which features they take.

- exact: equal samples of a feature group are kept once, as an IKJT.
- partial: samples that are equal or shifted share their values, as a partial IKJT.
- none: every sample keeps its own rows, as a KJT; deduplication is measured against this.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from recd_dedup.dedup.chosen import chosen_groups
from recd_plugins.api import (
    Config,
    Context,
    GivesNotices,
    Notice,
    Range,
    RegistryError,
    wrong_with_groups,
)

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
]


@dataclass(frozen=True, kw_only=True)
class GroupsConfig(Config):
    """The features that are deduplicated, and which of them in one group."""

    groups: tuple[tuple[str, ...], ...] | Literal["auto"] = "auto"
    """The lists of features that are deduplicated together (the paper's dedup_sparse_features).
    With `auto` the advisor chooses them."""
    features: tuple[str, ...] = ("*",)
    """With `auto`, names or globs of the features that the advisor may deduplicate; by default
    all."""
    min_factor: Annotated[float, Range(ge=1)] = 1.5
    """With `auto`, the least DedupeFactor of a feature that is deduplicated; exact copies alone
    count. Lower it to have features weighed that repeat less."""
    weigh: Literal["time", "bytes"] = "time"
    """With `auto`, what a group must save more of than it costs: `time` is the time of a step, as
    measured on this device and these links for this model; `bytes` are those of a batch. Take
    `bytes` if memory is short."""
    validate: bool = False
    """Whether every IKJT is checked against the rules of its class when it is made. That is slow;
    switch it on to find a defect."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.features:
            raise RegistryError(
                "names no feature, so that none would be deduplicated. Name some, or take `dedup` "
                "out.",
                "features",
            )
        if self.groups == "auto":
            return
        if wrong := wrong_with_groups(self.groups):
            raise RegistryError(wrong, "groups")

    def idle_options(self) -> Mapping[str, str]:
        if self.groups == "auto":
            return {}
        why = "it is for `groups: auto`, and here the groups are given"
        return dict.fromkeys(self.set_among("features", "min_factor", "weigh"), why)


class GroupConverter(GivesNotices, ABC):
    """Takes the features of its groups out of batches; a `slots.DedupConverter`."""

    def __init__(
        self,
        groups: Groups,
        *,
        validate: bool = False,
        why: str = "",
        shares: Callable[[], tuple[float, ...] | None] | None = None,
        notices: Sequence[Notice] = (),
        advised: bool = False,
    ) -> None:
        self.groups = groups
        """The features that are deduplicated; if there are none, batches stay as they are."""
        self.advised = advised
        """Whether the advisor chose the groups."""
        self._validate = validate
        self._shares = shares
        self._why = why
        self._notices = tuple(notices)

    @classmethod
    def chosen(cls, config: GroupsConfig, context: Context) -> Self:
        """Make a converter for the groups as given, or as advised."""
        chosen = chosen_groups(config, context, cls.deduplicated)
        return cls(
            chosen.groups,
            validate=config.validate,
            why=chosen.why,
            shares=chosen.shares,
            notices=chosen.notices,
            advised=config.groups == "auto",
        )

    @staticmethod
    @abstractmethod
    def deduplicated(features: KeyedJaggedTensor, groups: Sequence[Sequence[str]]) -> Any:
        """Deduplicate a KJT; the time of this is measured."""

    def notices(self) -> Sequence[Notice]:
        """Notices about what batches could gain, and about why nothing was measured."""
        return self._notices

    @abstractmethod
    def convert(self, features: Columns) -> Any:
        """The features of the groups in a batch, with repeats kept once."""

    def explain(self) -> str:
        """Why each feature is in its group or in none; empty if the groups were given."""
        return self._why

    def __getstate__(self) -> dict[str, Any]:
        """The state for a loader's worker, without the parts that measure tables or batches."""
        return {**self.__dict__, "_shares": None, "_notices": ()}

    @cached_property
    def unique_shares(self) -> tuple[float, ...] | None:
        """Each group's unique samples over the batch size, measured on a sample.

        None if there is nothing to measure. The values are the same on all ranks, and are measured
        on first use.
        """
        return None if self._shares is None else self._shares()


class Exact(GroupConverter):
    """Converts to an IKJT."""

    def convert(self, features: Columns) -> InverseKeyedJaggedTensor:
        ikjt = features.to_ikjt(self.groups)
        return ikjt.validate() if self._validate else ikjt

    @staticmethod
    def deduplicated(
        features: KeyedJaggedTensor, groups: Sequence[Sequence[str]]
    ) -> InverseKeyedJaggedTensor:
        from recd_plugins.api.batch import InverseKeyedJaggedTensor

        return InverseKeyedJaggedTensor.from_kjt(features, groups)


def build_exact(config: GroupsConfig, context: Context) -> Exact:
    return Exact.chosen(config, context)


class Partial(GroupConverter):
    """Converts to a partial IKJT."""

    def convert(self, features: Columns) -> PartialInverseKeyedJaggedTensor:
        partial = self.deduplicated(features.to_kjt(), self.groups)
        return partial.validate() if self._validate else partial

    @staticmethod
    def deduplicated(
        features: KeyedJaggedTensor, groups: Sequence[Sequence[str]]
    ) -> PartialInverseKeyedJaggedTensor:
        from recd_plugins.api.batch import PartialInverseKeyedJaggedTensor

        return PartialInverseKeyedJaggedTensor.from_kjt(features, groups)


def build_partial(config: GroupsConfig, context: Context) -> Partial:
    return Partial.chosen(config, context)


@dataclass(frozen=True, kw_only=True)
class NoneConfig(Config):
    """There are no options."""


class NoDedup:
    """Leaves batches as they are."""

    groups: Groups = ()

    def convert(self, features: Columns) -> KeyedJaggedTensor:
        return features.to_kjt()

    def explain(self) -> str:
        """One line, which says that nothing is deduplicated."""
        return "dedup: none, so that every feature stays a plain KJT"


def build_none(config: NoneConfig, context: Context) -> NoDedup:
    return NoDedup()

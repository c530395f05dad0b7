"""The draws of a session's feature: how long it is, how often it changes, which ids it has.

A feature's value is a pure function of (session, version): the version counts the changes so far. A
redraw takes new ids. A shift moves a window by one along the session's own endless list of ids, so
it drops the oldest id and appends a new one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from recd_dlrm.datasets.draws import salt, streams, uniforms
from recd_dlrm.datasets.flat_columns import I64, U64, offsets_of, ranges
from recd_dlrm.datasets.sessions.laws import CountLaw, Distribution, id_law
from recd_plugins.api import Config, Range, RegistryError
from recd_plugins.api.data import SparseFeature

__all__ = ["FeatureConfig", "FeatureDraws", "change_rates"]


@dataclass(frozen=True, kw_only=True)
class FeatureConfig(Config):
    """One sparse feature of the `sessions` dataset."""

    name: str
    """The column's name."""
    num_ids: Annotated[int, Range(ge=1)]
    """The number of ids: ids are in [0, num_ids)."""
    kind: Literal["user", "item"] = "item"
    """What the feature describes, a user or an item. The label depends on how users and items fit
    together."""
    table: str | None = None
    """The name of the feature's table. Features that name one table share its rows and its hot ids;
    by default a feature has a table of its own."""
    sequence: bool = False
    """Whether the feature is a history, so that the order of its ids has a meaning."""
    stay: Annotated[float, Range(ge=0, le=1)] = 0.0
    """d(f): the probability that the feature is unchanged in the next sample of its session. If a
    change of few ids, or of none, often leaves them as they were, that probability is higher."""
    shift: bool = False
    """Whether a change drops the oldest id and appends a new one. By default a change redraws all
    ids."""
    group: str | None = None
    """The name of the feature's group. Features of one group change together, and have the same
    `stay`."""
    length: Annotated[float, Range(ge=0)] = 1.0
    """l(f): the mean number of ids. Lengths are geometric, cut to [min_length, max_length]."""
    min_length: Annotated[int, Range(ge=0)] = 1
    """The smallest number of ids."""
    max_length: Annotated[int | None, Range(ge=0, le=100_000)] = None
    """The largest number of ids; by default four times `length`."""
    distribution: Distribution = "zipf"
    """The distribution from which ids are drawn: zipf, half_normal, exponential or uniform."""
    skew: Annotated[float | None, Range(gt=0)] = None
    """For zipf its exponent, by default 1.05; for half_normal and exponential their scale divided
    by num_ids, by default 0.1."""
    scattered: bool = True
    """Whether hot ids lie anywhere in the range. Otherwise ids are ranks, and 0 is the hottest."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.min_length <= self.length <= self.most_ids:
            raise RegistryError(
                f"of feature {self.name!r} is {self.length:g}, a mean outside "
                f"[{self.min_length}, {self.most_ids}]: change it, min_length or max_length.",
                where="length",
            )
        if self.distribution == "uniform" and self.skew is not None:
            raise RegistryError(
                f"of feature {self.name!r} does not apply to uniform ids: leave it out.",
                where="skew",
            )

    @property
    def most_ids(self) -> int:
        if self.max_length is not None:
            return self.max_length
        return max(self.min_length, math.ceil(4 * self.length))

    @property
    def group_name(self) -> str:
        """A feature without a group changes alone."""
        return f"feature {self.name}" if self.group is None else f"group {self.group}"

    @property
    def schema(self) -> SparseFeature:
        return SparseFeature(
            name=self.name,
            num_ids=self.num_ids,
            kind=self.kind,
            table=self.table,
            sequence=self.sequence,
        )


class FeatureDraws:
    """The values of one feature under one seed."""

    def __init__(self, config: FeatureConfig, seed: int) -> None:
        self.config = config
        table = config.schema.table_name
        self._law = id_law(
            config.distribution,
            config.num_ids,
            skew=config.skew,
            scatter=int(salt(seed, f"scatter/{table}")) if config.scattered else None,
        )
        self._lengths = CountLaw.geometric(config.length, config.min_length, config.most_ids)
        self._length_salt = salt(seed, f"length/{config.name}")
        self._id_salt = salt(seed, f"ids/{config.name}")

    def lists(self, sessions: U64, versions: I64) -> tuple[I64, I64]:
        """The ids [L] and offsets [N + 1] of N values."""
        shift = self.config.shift
        length_draws = np.zeros_like(versions) if shift else versions
        lengths = self._lengths.sample(uniforms(streams(self._length_salt, sessions), length_draws))
        # Where each value begins among its session's ids.
        first = versions if shift else versions * self.config.most_ids
        draws = np.repeat(streams(self._id_salt, sessions), lengths)
        ids = self._law.sample(uniforms(draws, ranges(first, lengths)))
        return ids, offsets_of(lengths)

    def repeats(self) -> float:
        """c: the chance that a change leaves the value as it was.

        With P(l) the law of lengths and A(m) the chance that m draws agree, a redraw repeats the
        value with chance sum of P(l)^2 A(2)^l, and a shift (all ids equal) with chance sum of
        P(l) A(l + 1).
        """
        chances = self._lengths.probabilities
        lengths = np.arange(chances.size) + self._lengths.least
        if not self.config.shift:
            return float((chances**2 * self._law.agreement(2)[2] ** lengths).sum())
        alike = self._law.agreement(int(lengths[-1]) + 1)[lengths + 1]
        return float((chances * np.where(lengths > 0, alike, 1.0)).sum())


def change_rates(features: Mapping[str, FeatureDraws]) -> dict[str, float]:
    """The probability of a change event between adjacent samples, per group.

    A group is unchanged if all its features are: 1 - d = e (1 - product of c), and so
    e = (1 - d) / (1 - product of c), at most 1. A feature in a group of its own then measures its
    own d; in a group of several it may repeat while others change, and measures 1 - e (1 - c).
    """
    stay: dict[str, float] = {}
    repeats: dict[str, float] = {}
    for feature in features.values():
        name = feature.config.group_name
        stay[name] = feature.config.stay
        repeats[name] = repeats.get(name, 1.0) * feature.repeats()
    return {
        name: min(1.0, (1 - d) / (1 - repeats[name])) if repeats[name] < 1 else 0.0
        for name, d in stay.items()
    }

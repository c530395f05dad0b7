"""The advisor: from a sample, it says which features to deduplicate, in which groups, and why.

A feature is considered if its DedupeFactor F is at least about 1.5 (RecD, section 4.2). Features
that change together form a group, unless one of them would lose by it. The advisor then compares
what a group saves in a step with what it costs, in seconds or in bytes (`worth`). A feature joins a
group only if the joined group saves, net, at least as much as the two do separately. Any group is
deduplicated only if it saves more than it costs.

Some batches choose the groups and others judge them, so the result is a forecast.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from recd_dedup.dedup.sample import SampledBatches, rows_of_batches, sample_batches
from recd_dedup.dedup.worth import Worth, WorthInBytes
from recd_plugins.api import so_many
from recd_plugins.api.batch import Groups
from recd_plugins.api.data import Table

if TYPE_CHECKING:
    from torch import Tensor
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

__all__ = [
    "Advice",
    "FeatureAdvice",
    "Limits",
    "Neighbour",
    "WorthOf",
    "advise",
    "advise_batches",
    "advise_sampled",
    "decide",
    "halves",
]

WorthOf = Callable[[SampledBatches, int, Sequence[str]], Worth]
"""A function that gives the worth of groups, from sampled batches, the batch size, and the features
that repeat enough."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits for features and groups."""

    min_factor: float
    """The least DedupeFactor that a feature must have by itself to be deduplicated."""
    features: tuple[str, ...] = ("*",)
    """Names or globs of the features that may be deduplicated."""
    without: frozenset[str] = frozenset()
    """Features that may not be, because modules of the model that look them up need all samples."""
    joined: tuple[tuple[str, ...], ...] = ()
    """Features that are deduplicated as one group or not at all, because a transform makes other
    features from all of them."""
    together: float = 0.9
    """Two features may share a group if both change in at least this share of the samples in which
    either changes."""
    tolerance: float = 0.05
    """The largest share of its DedupeFactor that a feature may lose to its group."""

    def allow(self, name: str, factor: float) -> bool:
        """Whether a feature with this DedupeFactor by itself may be deduplicated."""
        return factor >= self.min_factor and self.named(name) and name not in self.without

    def whole(self, groups: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
        """The groups, without features that are joined to a feature outside of their group."""
        kept = [*groups]
        while apart := {name for group in kept for name in self._apart(group)}:
            kept = [tuple(name for name in group if name not in apart) for group in kept]
        return [group for group in kept if group]

    def _apart(self, group: Sequence[str]) -> Iterator[str]:
        """The features of a group that are joined to a feature outside of it."""
        for name in group:
            if not {*self.joined_to(name)} <= {*group}:
                yield name

    def joined_to(self, name: str) -> tuple[str, ...]:
        """The features that a transform takes together with this one."""
        every = chain.from_iterable(one for one in self.joined if name in one)
        return tuple(one for one in dict.fromkeys(every) if one != name)

    def named(self, feature: str) -> bool:
        """Whether `features` names a feature."""
        return feature in self.features or any(fnmatchcase(feature, one) for one in self.features)


@dataclass(frozen=True, kw_only=True)
class Neighbour:
    """The group that a feature could have joined, but did not."""

    group: tuple[str, ...]
    agreement: float
    """The share of samples in which both change, among those in which either changes; measured with
    the feature of the group that agrees least."""
    loss: float
    """The largest share of its DedupeFactor that any of the features would lose."""


@dataclass(frozen=True, kw_only=True)
class FeatureAdvice:
    """The measurements of a feature, and what follows from them."""

    name: str
    length: float
    """l(f): ids per sample."""
    stay: float
    """d(f): how often it is unchanged in the next sample of its session."""
    formula_factor: float
    """DedupeFactor by the paper's formula, 1 / (1 - (S - 1) / S * d(f))."""
    factor: float
    """DedupeFactor, measured by itself."""
    group: tuple[str, ...] = ()
    """The features deduplicated with it, including itself; empty if it is left as it is."""
    group_factor: float | None = None
    """DedupeFactor, measured in its group; None if it has none."""
    saved: float = 0.0
    """What the feature saves: in its group, or by itself if it has none."""
    cost: float = 0.0
    """What its group costs, or the feature by itself if it has none."""
    saves: str = ""
    """`saved` in words, by kind."""
    costs: str = ""
    """`cost` in words, by kind."""
    neighbour: Neighbour | None = None
    """The other group that changes most like the feature; None if it has no group, or there is no
    other."""


@dataclass(frozen=True, kw_only=True)
class Advice:
    """The groups for a table's batches, and why."""

    groups: Groups
    unique_shares: tuple[float, ...]
    """The number of each group's unique samples over the batch size."""
    features: tuple[FeatureAdvice, ...]
    """The advice for each feature, in the schema's order."""
    limits: Limits
    batch_size: int
    batches: int
    """The number of batches that were measured."""
    samples_per_session: float | None
    """S: samples of a session in a batch; None if the sessions are unknown."""
    after_all: tuple[str, ...]
    """Why groups are left out although each of them saves more than it costs."""

    def lines(self) -> Iterator[str]:
        """The advice in words: what was measured, then each feature with the reason."""
        each = ""
        if self.samples_per_session is not None:
            each = f", {self.samples_per_session:.2f} samples of a session in each"
        yield (
            f"{so_many(self.batches, 'batch')} of {so_many(self.batch_size, 'sample')}{each}: "
            f"{so_many(len(self.groups), 'group')}"
        )
        for feature in self.features:
            measures = f"(l {feature.length:.1f})"
            if self.samples_per_session is not None:
                measures = _measures(feature)
            yield f"{feature.name}: {self._verdict(feature)} {measures}"
        yield from self.after_all

    def _verdict(self, feature: FeatureAdvice) -> str:
        grouped = ", ".join(name for name in feature.group if name != feature.name)
        weighed = f"saves {feature.saves}, costs {feature.costs}"
        if not self.limits.named(feature.name):
            return f"left as it is, factor {feature.factor:.2f}: it is not among dedup.features"
        if feature.name in self.limits.without:
            return (
                f"left as it is, factor {feature.factor:.2f}: the module of the model that looks "
                "it up takes no unique samples"
            )
        others = self.limits.joined_to(feature.name)
        if feature.factor >= self.limits.min_factor and others and not feature.group:
            return (
                f"left as it is, factor {feature.factor:.2f}: a transform makes other features "
                f"from it and from {', '.join(others)}, so all of them would have to be one group"
            )
        if feature.factor < self.limits.min_factor:
            return f"left as it is, factor {feature.factor:.2f} < {self.limits.min_factor:g}"
        if not feature.saves:
            return f"left as it is, factor {feature.factor:.2f}: no model is known to look it up"
        if not feature.group:
            return f"left as it is, factor {feature.factor:.2f} {weighed}"
        if grouped:
            return (
                f"deduplicated with {grouped}, factor {feature.group_factor:.2f}, alone "
                f"{feature.factor:.2f}; saves {feature.saves}, and all of them cost {feature.costs}"
            )
        return (
            f"deduplicated alone, factor {feature.factor:.2f}; {weighed}{self._why_alone(feature)}"
        )

    def _why_alone(self, feature: FeatureAdvice) -> str:
        other = feature.neighbour
        if other is None:
            return ""
        names = ", ".join(other.group)
        if other.agreement < self.limits.together:
            return (
                f"; changes most like {names}, in {other.agreement:.0%} of cases where "
                f"{self.limits.together:.0%} are asked for"
            )
        return f"; together with {names} one would lose {other.loss:.0%} of its factor"


def advise(
    table: Table,
    *,
    batch_size: int,
    features: tuple[str, ...] = ("*",),
    min_factor: float = 1.5,
    joined: tuple[tuple[str, ...], ...] = (),
    together: float = 0.9,
    tolerance: float = 0.05,
    sample_rows: int = 65_536,
    seed: int = 0,
) -> Advice:
    """Advise on a table in its stored order, by bytes; its batches repeat more if it is clustered.

    The limits are those of `Limits`. About `sample_rows` rows are read. The same table and options
    give the same advice. Training may read in another order: see `advise_sampled`.
    """
    limits = Limits(
        features=features,
        min_factor=min_factor,
        joined=joined,
        together=together,
        tolerance=tolerance,
    )
    parts = sample_batches(table, batch_size=batch_size, sample_rows=sample_rows, seed=seed)
    sample = SampledBatches(table.schema.sparse_names, parts)
    return decide(sample, min(batch_size, table.num_rows), limits, WorthInBytes(sample))


def advise_batches(
    features: Sequence[KeyedJaggedTensor],
    *,
    limits: Limits | None = None,
    worth_of: WorthOf | None = None,
) -> Advice:
    """Advise on the batches of a trainer's own reader, by the features of some of these batches.

    Their sessions are unknown. Two features change together if they do so from one sample of a
    batch to the next; what they would lose in one group is measured as for a table.
    """
    keys, limits = features[0].keys(), limits or Limits(min_factor=1.5)
    advice = advise_sampled(halves(features, keys), features[0].stride(), limits, worth_of)
    return dataclasses.replace(advice, samples_per_session=None)


def halves(
    features: Sequence[KeyedJaggedTensor],
    keys: Sequence[str],
    sessions: Sequence[Tensor] | None = None,
) -> tuple[SampledBatches, SampledBatches]:
    """Every second batch as training will read them, to choose groups, and the others, to judge
    them."""

    def every_second(first: int) -> SampledBatches:
        known = None if sessions is None else sessions[first::2]
        return SampledBatches(keys, rows_of_batches(features[first::2], keys, known))

    chosen_by = every_second(0)
    return chosen_by, every_second(1) if len(features) > 1 else chosen_by


def advise_sampled(
    sampled: tuple[SampledBatches, SampledBatches],
    batch_size: int,
    limits: Limits,
    worth_of: WorthOf | None,
) -> Advice:
    """Advise on the two `halves` of batches: the first chooses groups, the second judges them."""
    chosen_by, judged_by = sampled
    features = chosen_by.features
    repeating = [name for name in features if limits.allow(name, chosen_by.alone[name])]
    make = worth_of or (lambda sample, size, names: WorthInBytes(sample))
    groups = _found(chosen_by, limits, make(chosen_by, batch_size, repeating))
    advice = _judged(judged_by, batch_size, limits, make(judged_by, batch_size, repeating), groups)
    every = sum(one.repeats.batches for one in dict.fromkeys(sampled))
    return dataclasses.replace(advice, batches=every)


def decide(sample: SampledBatches, batch_size: int, limits: Limits, worth: Worth) -> Advice:
    """Decide on groups by sampled batches, which both choose and judge them."""
    return _judged(sample, batch_size, limits, worth, _found(sample, limits, worth))


def _found(sample: SampledBatches, limits: Limits, worth: Worth) -> list[tuple[str, ...]]:
    """The groups of the features that the limits allow.

    Features are taken in order. Each joins the group that changes most like it, among those that
    the limits and the worth allow, or starts its own.
    """
    found: list[tuple[str, ...]] = []
    nets: list[float] = []
    """What each group is worth."""
    for name in sample.features:
        if not limits.allow(name, sample.alone[name]):
            continue
        alone = worth.net((name,))
        agreements = sample.agreements(name, found)
        for index in _likest(agreements):
            if agreements[index] < limits.together:
                continue
            separate = max(0, nets[index]) + max(0, alone)
            if nets[index] + alone + worth.spared < separate:
                continue  # which is known without a look at them together
            joined = (*found[index], name)
            if sample.loss(joined) <= limits.tolerance and worth.net(joined) >= separate:
                found[index], nets[index] = joined, worth.net(joined)
                break
        else:
            found.append((name,))
            nets.append(alone)
    return limits.whole(found)


def _judged(
    sample: SampledBatches,
    batch_size: int,
    limits: Limits,
    worth: Worth,
    found: Sequence[tuple[str, ...]],
) -> Advice:
    """The advice for the groups that were found, without those that do not pay in these batches."""
    settled = worth.settled([group for group in found if worth.net(group) > 0])
    groups = settled.groups
    counts = sample.repeats
    return Advice(
        groups=groups,
        unique_shares=tuple(sample.unique_share(group) for group in groups),
        features=tuple(_advice(sample, name, groups, worth) for name in sample.features),
        limits=limits,
        batch_size=batch_size,
        batches=counts.batches,
        samples_per_session=counts.sizes.mean,
        after_all=settled.why,
    )


def _advice(
    sample: SampledBatches,
    name: str,
    groups: Sequence[tuple[str, ...]],
    worth: Worth,
) -> FeatureAdvice:
    counts = sample.repeats
    of_it = counts.features[name]
    group = next((group for group in groups if name in group), ())
    advice = FeatureAdvice(
        name=name,
        length=sample.length(name),
        stay=of_it.unchanged / max(1, of_it.pairs),
        formula_factor=counts.dedupe(name)["dedupe_factor"]["formula"],
        factor=sample.alone[name],
        group=group,
        group_factor=sample.factors(group)[name] if group else None,
        neighbour=_neighbour(sample, name, groups) if group else None,
    )
    if not worth.knows(name):
        return advice
    saved, cost = worth.saved(name, group or (name,)), worth.cost(group or (name,))
    return dataclasses.replace(
        advice,
        saved=sum(saved.values()),
        cost=sum(cost.values()),
        saves=worth.words(saved),
        costs=worth.words(cost),
    )


def _likest(agreements: NDArray[np.float64]) -> list[int]:
    """The indices of groups, by how far a feature agrees with each; the likest comes first."""
    found: list[int] = np.argsort(-agreements, kind="stable").tolist()
    return found


def _neighbour(
    sample: SampledBatches, name: str, groups: Sequence[tuple[str, ...]]
) -> Neighbour | None:
    others = [group for group in groups if name not in group]
    if not others:
        return None
    agreements = sample.agreements(name, others)
    first = _likest(agreements)[0]
    group = others[first]
    return Neighbour(
        group=group,
        agreement=float(agreements[first]),
        loss=sample.loss((*group, name)),
    )


def _measures(feature: FeatureAdvice) -> str:
    text = (
        f"(l {feature.length:.1f}, d {feature.stay:.2f}, by the formula "
        f"{feature.formula_factor:.2f}"
    )
    if feature.factor > 1.25 * feature.formula_factor:
        text += ": its lists also repeat across sessions"
    return f"{text})"

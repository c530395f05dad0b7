"""Which features to deduplicate, and which of them together: measured on a sample, with reasons.

A feature is worth it from a DedupeFactor of about 1.5 (RecD, section 4.2); features that
change together form a group, unless one of them would lose by it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from recd_dedup.dedup.sample import Sample, sample_batches
from recd_plugins.data.table import Table
from recd_plugins.sparse.groups import Groups

__all__ = ["Advice", "FeatureAdvice", "Limits", "Neighbour", "advise", "decide"]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What features and groups are held to."""

    min_factor: float
    """The least DedupeFactor of a feature, alone, that is deduplicated."""
    together: float
    """Two features may share a group if, of the samples in which either changes, both change
    in this share."""
    tolerance: float
    """The largest share of its DedupeFactor that a feature may lose to its group."""


@dataclass(frozen=True, kw_only=True)
class Neighbour:
    """The group that a feature could have been in, and is not."""

    group: tuple[str, ...]
    agreement: float
    """Of the samples in which either changes, the share in which both do; of the group, the
    feature counts that agrees least."""
    loss: float
    """The largest share of its DedupeFactor that one of them would lose."""


@dataclass(frozen=True, kw_only=True)
class FeatureAdvice:
    """What was measured of a feature, and what follows."""

    name: str
    length: float
    """l(f): ids a sample."""
    stay: float
    """d(f): how often it is unchanged in the next sample of its session."""
    formula_factor: float
    """DedupeFactor by the paper's formula, 1 / (1 - (S - 1) / S * d(f))."""
    factor: float
    """DedupeFactor measured, alone."""
    group: tuple[str, ...] = ()
    """The features deduplicated with it, itself included; none if it is left as it is."""
    group_factor: float | None = None
    """DedupeFactor measured, in its group."""
    neighbour: Neighbour | None = None
    """The other group that changes most like it."""


@dataclass(frozen=True, kw_only=True)
class Advice:
    """The groups for a table's batches, and why."""

    groups: Groups
    unique_shares: tuple[float, ...]
    """Of each group, its unique samples over the batch size."""
    features: tuple[FeatureAdvice, ...]
    """In the schema's order."""
    limits: Limits
    batch_size: int
    batches: int
    """How many were measured."""
    samples_per_session: float
    """S: samples of a session in a batch."""

    def lines(self) -> Iterator[str]:
        """The advice in words: what was measured, then each feature with its reason."""
        yield (
            f"{self.batches:,} batches of {self.batch_size:,} samples, "
            f"{self.samples_per_session:.2f} samples of a session in each: "
            f"{len(self.groups)} groups"
        )
        for feature in self.features:
            yield f"{feature.name}: {self._verdict(feature)} {_measures(feature)}"

    def _verdict(self, feature: FeatureAdvice) -> str:
        others = ", ".join(name for name in feature.group if name != feature.name)
        if not feature.group:
            return f"left as it is, factor {feature.factor:.2f} < {self.limits.min_factor:g}"
        if others:
            return (
                f"deduplicated with {others}, factor {feature.group_factor:.2f}, alone "
                f"{feature.factor:.2f}"
            )
        return f"deduplicated alone, factor {feature.factor:.2f}{self._why_alone(feature)}"

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
    min_factor: float = 1.5,
    together: float = 0.9,
    tolerance: float = 0.05,
    sample_rows: int = 65_536,
    seed: int = 0,
) -> Advice:
    """Advise on a table as it lies: clustered by session, its batches repeat more.

    The limits are those of `Limits`. About `sample_rows` rows are read. Same table and options,
    same advice: ranks need not ask each other.
    """
    limits = Limits(min_factor=min_factor, together=together, tolerance=tolerance)
    parts = sample_batches(table, batch_size=batch_size, sample_rows=sample_rows, seed=seed)
    sample = Sample(table.schema.sparse_names, parts)
    return decide(sample, min(batch_size, table.num_rows), limits)


def decide(sample: Sample, batch_size: int, limits: Limits) -> Advice:
    """From what a sample tells to groups.

    Features worth it are taken in order; each joins the group that changes most like it among
    those that the limits allow, or starts its own.
    """
    groups: list[tuple[str, ...]] = []
    for name in sample.features:
        if sample.alone[name] < limits.min_factor:
            continue
        for index in _likest(sample, name, groups):
            joined = (*groups[index], name)
            if (
                sample.agreement(name, groups[index]) >= limits.together
                and sample.loss(joined) <= limits.tolerance
            ):
                groups[index] = joined
                break
        else:
            groups.append((name,))
    group_of = {name: group for group in groups for name in group}
    counts = sample.repeats
    return Advice(
        groups=tuple(groups),
        unique_shares=tuple(sample.unique_share(group) for group in groups),
        features=tuple(
            FeatureAdvice(
                name=name,
                length=counts.features[name].ids / max(1, counts.rows),
                stay=counts.features[name].unchanged / max(1, counts.features[name].pairs),
                formula_factor=counts.dedupe(name)["dedupe_factor"]["formula"],
                factor=sample.alone[name],
                group=group_of.get(name, ()),
                group_factor=sample.factors(group_of[name])[name] if name in group_of else None,
                neighbour=_neighbour(sample, name, groups) if name in group_of else None,
            )
            for name in sample.features
        ),
        limits=limits,
        batch_size=batch_size,
        batches=counts.batches,
        samples_per_session=counts.sizes.mean,
    )


def _likest(sample: Sample, name: str, groups: list[tuple[str, ...]]) -> list[int]:
    """The groups' indices, those that change most like the feature first."""
    return sorted(range(len(groups)), key=lambda index: -sample.agreement(name, groups[index]))


def _neighbour(sample: Sample, name: str, groups: list[tuple[str, ...]]) -> Neighbour | None:
    others = [group for group in groups if name not in group]
    if not others:
        return None
    group = others[_likest(sample, name, others)[0]]
    return Neighbour(
        group=group,
        agreement=sample.agreement(name, group),
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

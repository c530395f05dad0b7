"""What a `preprocess` transform makes of a schema and of feature groups, known before any batch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from recd_plugins.data.schema import Schema, SparseFeature
from recd_plugins.errors import PluginError, RecdError, RegistryError
from recd_plugins.naming.patterns import check_patterns, matching

if TYPE_CHECKING:
    from recd_plugins.slots import Preprocess
    from recd_plugins.sparse.groups import Groups

__all__ = ["ChosenTransform", "Step", "schema_of_keys", "steps_of"]


@dataclass(frozen=True, kw_only=True)
class ChosenTransform:
    """A transform, and the features that registry.yaml chose it for, by name or glob."""

    who: str
    """The record and its place in registry.yaml, for error messages."""
    where: str
    """The place alone."""
    features: tuple[str, ...]
    transform: Preprocess


@dataclass(frozen=True, kw_only=True)
class Step:
    """One transform, and the features that it takes."""

    who: str
    """The record and its place in registry.yaml, for error messages."""
    transform: Preprocess
    before: Schema
    """The schema of what comes to the transform, and of what goes by."""
    takes: tuple[str, ...]

    def made(self, keys: Sequence[str]) -> tuple[SparseFeature, ...]:
        """The features that come out where some of those that it takes go in."""
        part = Schema(sparse=tuple(map(self.before.feature, keys)))
        try:
            after = self.transform.schema(part)
        except RecdError as error:
            raise PluginError(
                f"{self.who}: its `schema` takes no {', '.join(keys)}: {error}"
            ) from error
        if not isinstance(after, Schema) or not after.sparse:
            raise PluginError(
                f"{self.who}: its `schema` makes {after!r} of {', '.join(keys)}. Let it return a "
                "Schema of the features that come out."
            )
        return after.sparse

    def names(self, keys: Sequence[str]) -> tuple[str, ...]:
        """The names of those."""
        return tuple(feature.name for feature in self.made(keys))

    @property
    def changes_keys(self) -> bool:
        """Whether other features come out than go in: added, renamed or made one."""
        return bool(self.takes) and self.names(self.takes) != self.takes

    def after(self) -> Schema:
        """The schema behind the transform; features of a new name come last."""
        if not self.takes:
            return self.before
        made = self.made(self.takes)
        new = [feature for feature in made if feature.name not in self.takes]
        for feature in new:
            if feature.name in self.before.columns:
                raise RegistryError(
                    f"{self.who} makes a feature {feature.name!r} beside the one that is there. "
                    "Give it another name, or let the transform take that one too."
                )
        names = {feature.name for feature in made}
        kept = self.before.drop(name for name in self.takes if name not in names)
        return kept.replace(feature for feature in made if feature.name in self.takes).add(new)

    def groups(self, groups: Groups) -> Groups:
        """The feature groups behind the transform, which runs on each by itself.

        `RegistryError` where a new feature is made of several groups, or of one and of features
        that are in none: its unique samples would be neither's.
        """
        if not self.changes_keys:
            return groups
        grouped = frozenset(chain.from_iterable(groups))
        plain = tuple(name for name in self.takes if name not in grouped)
        taken = [tuple(name for name in group if name in self.takes) for group in groups]
        self._check_separate([part for part in (plain, *taken) if part])
        return tuple(
            self._behind(group, part) if part else group
            for group, part in zip(groups, taken, strict=True)
        )

    def _behind(self, group: tuple[str, ...], taken: tuple[str, ...]) -> tuple[str, ...]:
        made = self.names(taken)
        return group if made == taken else (*(n for n in group if n not in taken), *made)

    def _check_separate(self, parts: Sequence[tuple[str, ...]]) -> None:
        try:
            separately = [name for part in parts for name in self.names(part)]
        except Exception:  # whatever its author raises where a feature is missing
            separately = []
        if sorted(separately) != sorted(self.names(self.takes)):
            raise RegistryError(
                f"{self.who} makes features of several at a time, but dedup has them in different "
                f"groups: {' | '.join(', '.join(part) for part in parts)}. Deduplicate them as one "
                "group of dedup.groups, or leave all of them out."
            )


def steps_of(chosen: Sequence[ChosenTransform], schema: Schema) -> list[Step]:
    """Each transform on what the ones before it make of the schema."""
    steps: list[Step] = []
    for one in chosen:
        names = schema.sparse_names
        check_patterns(one.features, names, kind="feature", where=one.where)
        takes = tuple(matching(one.features, names))
        step = Step(who=one.who, transform=one.transform, before=schema, takes=takes)
        try:
            schema = step.after()
        except RecdError:
            raise
        except Exception as error:
            raise PluginError(
                f"{one.who} raised {type(error).__name__} when asked for its schema: {error}. Run "
                "with --debug for its traceback."
            ) from error
        steps.append(step)
    return steps


MOST_IDS = 2**62


def schema_of_keys(keys: Iterable[str]) -> Schema:
    """What is known of the features of batches that no table describes: their names."""
    features = tuple(SparseFeature(name=key, num_ids=MOST_IDS) for key in keys)
    return Schema(label="", session_id=None, timestamp=None, sparse=features)

"""What a `preprocess` transform does to a schema and to feature groups, known before any batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, cast

from recd_plugins.data.schema import Schema, SparseFeature
from recd_plugins.errors import CapabilityError, PluginError, RecdError, RegistryError
from recd_plugins.patterns import check_patterns, matching

if TYPE_CHECKING:
    from recd_plugins.slots import DensePreprocess, Preprocess
    from recd_plugins.sparse.groups import Groups

__all__ = [
    "ChosenTransform",
    "Step",
    "completed",
    "joined_by",
    "made_of",
    "narrowed",
    "needed",
    "schema_of_keys",
    "steps_of",
    "takes_dense",
]


MOST_IDS = 2**62
"""The ids of a feature of which only the name is known."""


@dataclass(frozen=True, kw_only=True)
class ChosenTransform:
    """A transform, and the features that registry.yaml applies it to, by name or glob."""

    who: str
    """The record and its place in registry.yaml, for error messages."""
    where: str
    """The place alone."""
    features: tuple[str, ...]
    """`*` if registry.yaml names none: then those that the transform itself names, or all."""
    transform: Preprocess | DensePreprocess
    label: str = ""
    """The record's name."""

    @property
    def dense(self) -> bool:
        """Whether it takes dense columns, in place of sparse features."""
        return takes_dense(self.transform)

    def taken(self, schema: Schema) -> tuple[str, ...]:
        """Which of the present features it takes."""
        names = schema.dense if self.dense else schema.sparse_names
        kind = "dense column" if self.dense else "feature"
        own: tuple[str, ...] | None = getattr(self.transform, "takes", None)
        if isinstance(own, str):
            raise PluginError(
                f"{self.who}: its `takes` is a text, where it must be a tuple of {kind}s: "
                f'`takes = ("{own}",)`.'
            )
        if own is not None and self.features != ("*",):
            raise RegistryError(
                f"{self.who} names the features that it takes with its own options "
                f"({', '.join(own)}). Take `features` out.",
            )
        wanted = self.features if own is None else own
        check_patterns(wanted, names, kind=kind, where=self.where)
        return tuple(matching(wanted, names))


def takes_dense(transform: Preprocess | DensePreprocess) -> bool:
    """Whether a transform takes dense columns: its attribute `dense` says so."""
    return bool(getattr(transform, "dense", False))


@dataclass(frozen=True, kw_only=True)
class Step:
    """One transform, and the features that it takes."""

    who: str
    """The record and its place in registry.yaml, for error messages."""
    transform: Preprocess | DensePreprocess
    before: Schema
    """The schema in front of the transform: what it takes, and what passes it by."""
    takes: tuple[str, ...]
    label: str = ""
    """The record's name, if it is a record's transform."""

    @property
    def dense(self) -> bool:
        """Whether it takes dense columns, in place of sparse features."""
        return takes_dense(self.transform)

    @property
    def on_ids(self) -> Preprocess:
        """The transform, which must take sparse features."""
        return cast("Preprocess", self.transform)

    def made(self, keys: Sequence[str]) -> tuple[SparseFeature, ...]:
        """The features that come out if only these of the features that it takes go in."""
        part = dataclasses.replace(
            self.before, dense=(), vectors=(), sparse=tuple(map(self.before.feature, keys))
        )
        after = self._asked(part, keys)
        if not after.sparse or after.dense:
            raise PluginError(
                f"{self.who}: its `schema` makes {after!r} of {', '.join(keys)}. Let it return a "
                "Schema of the features that come out."
            )
        return after.sparse

    @property
    def dense_part(self) -> Schema:
        """The schema of only the dense columns that it takes."""
        vectors = tuple(one for one in self.before.vectors if one.name in self.takes)
        return dataclasses.replace(self.before, dense=self.takes, vectors=vectors, sparse=())

    def made_of_dense(self) -> Schema:
        """The dense columns and the features that come out if dense columns go in."""
        after = self._asked(self.dense_part, self.takes)
        if not after.sparse and not after.dense:
            raise PluginError(
                f"{self.who}: its `schema` leaves nothing of {', '.join(self.takes)}. Let it "
                "return a Schema of the dense columns or features that come out."
            )
        return after

    def _asked(self, part: Schema, keys: Sequence[str]) -> Schema:
        try:
            after = self.transform.schema(part)
        except RecdError as error:
            raise PluginError(
                f"{self.who}: its `schema` takes no {', '.join(keys)}: {error}"
            ) from error
        if not isinstance(after, Schema):
            raise PluginError(
                f"{self.who}: its `schema` makes {after!r} of {', '.join(keys)}. Let it return a "
                "Schema of what comes out."
            )
        return after

    def names(self, keys: Sequence[str]) -> tuple[str, ...]:
        """The names of the features that come out if only these go in."""
        return tuple(feature.name for feature in self.made(keys))

    @property
    def weighs(self) -> bool:
        """Whether a feature that comes out is scored, or may be: for a trainer's own batches only
        the names are known."""
        if any(self.before.feature(name).num_ids == MOST_IDS for name in self.takes):
            return True
        return any(one.scored for one in (self.made(self.takes) if self.takes else ()))

    @property
    def weighed(self) -> tuple[str, ...]:
        """The features that come out scored, whether or not those that go in are."""
        bare = [dataclasses.replace(self.before.feature(name), scored=False) for name in self.takes]
        try:
            made = dataclasses.replace(self, before=self.before.replace(bare)).made(self.takes)
        except Exception:  # whatever its author raises if ids have no weights
            return ()
        return tuple(feature.name for feature in made if feature.scored)

    @property
    def changes_keys(self) -> bool:
        """Whether the features that come out differ from those that go in: added, renamed or
        merged."""
        return not self.dense and bool(self.takes) and self.names(self.takes) != self.takes

    @property
    def whole(self) -> bool:
        """Whether it needs everything that it takes: it makes other features, or takes dense
        columns side by side. Other transforms handle each feature by itself."""
        return self.dense or self.changes_keys

    def needed(self, wanted: Collection[str]) -> frozenset[str]:
        """The features and dense columns that it must be given so that `wanted` come out."""
        if not self.takes or not self.whole or not self._made_names & {*wanted}:
            return frozenset(wanted)
        return frozenset(wanted) - self._made_names | {*self.takes}

    def left(self, there: Collection[str]) -> frozenset[str]:
        """The features and dense columns after the transform, if `there` come to it: of those that
        it takes all or none, if it needs all."""
        if not self.whole or not {*self.takes} & {*there}:
            return frozenset(there)
        return frozenset(there) - {*self.takes} | self._made_names

    @property
    def _made_names(self) -> frozenset[str]:
        """The features and dense columns that come out if everything that it takes goes in."""
        if not self.dense:
            return frozenset(self.names(self.takes))
        made = self.made_of_dense()
        return frozenset((*made.dense, *made.sparse_names))

    def after(self) -> Schema:
        """The schema after the transform; features with a new name come last."""
        if not self.takes:
            return self.before
        if self.dense:
            return self._after_dense(self.made_of_dense())
        made = self.made(self.takes)
        new = [feature for feature in made if feature.name not in self.takes]
        self._check_free(feature.name for feature in new)
        names = {feature.name for feature in made}
        kept = self.before.drop(name for name in self.takes if name not in names)
        try:
            return kept.replace(feature for feature in made if feature.name in self.takes).add(new)
        except RegistryError as error:  # it names a column that the transform does not take
            raise RegistryError(f"{self.who}: {error.message}") from error

    def _after_dense(self, made: Schema) -> Schema:
        """The schema with what was made of dense columns, in their place or at the end."""
        new = [name for name in made.dense if name not in self.takes]
        self._check_free([*new, *made.sparse_names])
        gone = [name for name in self.takes if name not in made.dense]
        kept = [name for name in self.before.dense if name not in gone]
        vectors = [one for one in self.before.vectors if one.name not in self.takes]
        return dataclasses.replace(
            self.before,
            dense=(*kept, *new),
            vectors=(*vectors, *made.vectors),
            sparse=(*self.before.sparse, *made.sparse),
        )

    def _check_free(self, names: Iterable[str]) -> None:
        taken = {*self.before.columns} - ({*self.takes} if self.dense else set())
        for name in names:
            if name in taken:
                raise RegistryError(
                    f"{self.who} makes a feature {name!r} beside the one that is there. Give it "
                    "another name, or let the transform also take the feature that is there."
                )

    def groups(self, groups: Groups) -> Groups:
        """The feature groups after the transform, which runs on each by itself.

        Raises `RegistryError` if a new feature is made of several groups, or of a group and
        features that are in none: it would have the unique samples of neither.
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

    def makes_apart(self, parts: Sequence[tuple[str, ...]]) -> bool:
        """Whether the same features come out if these parts of what it takes go in separately."""
        try:
            separately = [name for part in parts for name in self.names(part)]
        except Exception:  # whatever its author raises if a feature is missing
            separately = []
        return sorted(separately) == sorted(self.names(self.takes))

    def _check_separate(self, parts: Sequence[tuple[str, ...]]) -> None:
        if not self.makes_apart(parts):
            raise RegistryError(
                f"{self.who} makes features of several at a time, but dedup has them in different "
                f"groups: {' | '.join(', '.join(part) for part in parts)}. Deduplicate them as one "
                "group of dedup.groups, or leave all of them out."
            )


def joined_by(steps: Sequence[Step]) -> tuple[tuple[str, ...], ...]:
    """For each step that makes other features of several: the features, before all steps, that it
    needs together. Unique samples of only some of them are not unique samples of what it makes."""
    found: dict[tuple[str, ...], None] = {}
    made_of: dict[str, tuple[str, ...]] = {}
    for step in steps:
        if not step.changes_keys:
            continue
        takes = {name: made_of.get(name, (name,)) for name in step.takes}
        if step.makes_apart([(name,) for name in takes]):
            made_of |= {new: of for name, of in takes.items() for new in step.names((name,))}
            continue
        together = tuple(dict.fromkeys(chain.from_iterable(takes.values())))
        made_of |= dict.fromkeys(step.names(step.takes), together)
        found[together] = None
    return tuple(one for one in found if len(one) > 1)


def made_of(steps: Sequence[Step]) -> dict[str, tuple[str, ...]]:
    """The features that the steps make under a new name, each with the features and dense columns,
    before all steps, that it is made of."""
    made: dict[str, tuple[str, ...]] = {}
    for step in steps:
        if not step.takes or not (step.dense or step.changes_keys):
            continue
        of = tuple(dict.fromkeys(chain(*(made.get(name, (name,)) for name in step.takes))))
        names = step.made_of_dense().sparse_names if step.dense else step.names(step.takes)
        made |= {name: of for name in names if name not in step.takes}
    return made


def steps_of(chosen: Sequence[ChosenTransform], schema: Schema) -> list[Step]:
    """Each transform, with the schema that the ones before it make."""
    steps: list[Step] = []
    for one in chosen:
        step = Step(
            who=one.who,
            transform=one.transform,
            before=schema,
            takes=one.taken(schema),
            label=one.label,
        )
        schema = _after(step)
        steps.append(step)
    return steps


def _after(step: Step) -> Schema:
    """The schema after a step; whatever its author's `schema` raises becomes a `PluginError`."""
    try:
        return step.after()
    except RecdError:
        raise
    except Exception as error:
        raise PluginError(
            f"{step.who} raised {type(error).__name__} when asked for its schema of "
            f"{', '.join(step.takes)}: {error}. Run recd with --debug for its traceback."
        ) from error


def needed(steps: Sequence[Step], wanted: Collection[str]) -> frozenset[str]:
    """The features and dense columns that must go into the steps so that `wanted` come out of the
    last."""
    found = frozenset(wanted)
    for step in reversed(steps):
        found = step.needed(found)
    return found


def completed(steps: Sequence[Step], read: Collection[str]) -> frozenset[str]:
    """The features and dense columns that are read, and those that must also be read so that a step
    which needs everything that it takes gets all of it or nothing. Then nothing comes out of the
    last step that would not come out if everything were read."""
    found, there, at = frozenset(read), frozenset(read), 0
    while at < len(steps):
        step = steps[at]
        lacking = {*step.takes} - there if step.whole and {*step.takes} & there else frozenset()
        if lacking:
            found |= needed(steps[:at], lacking)
            there, at = found, 0
        else:
            there, at = step.left(there), at + 1
    return found


def narrowed(steps: Sequence[Step], schema: Schema) -> list[Step]:
    """The same steps if only these features and dense columns, which must be `completed`, go in;
    steps with nothing left to take are dropped."""
    kept = []
    for step in steps:
        there = {*(schema.dense if step.dense else schema.sparse_names)}
        takes = tuple(name for name in step.takes if name in there)
        if step.whole and takes not in ((), step.takes):
            raise CapabilityError(
                f"{step.who} needs {', '.join(step.takes)} together, but only {', '.join(takes)} "
                "is read: the process that asks for it has another version of recd-plugins. "
                "Install the same one."
            )
        if takes:
            kept.append(dataclasses.replace(step, before=schema, takes=takes))
            schema = _after(kept[-1])
    return kept


def schema_of_keys(keys: Iterable[str]) -> Schema:
    """The schema of batches that no table describes: only the names of their features are known."""
    features = tuple(SparseFeature(name=key, num_ids=MOST_IDS) for key in keys)
    return Schema(label="", session_id=None, timestamp=None, sparse=features)

"""The steps that change a batch between reader and trainer: dedup, then transforms."""

from __future__ import annotations

import dataclasses
import mmap
import time
from collections.abc import Collection, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.compat.tracing import keep_traces_apart
from recd_plugins.data.batch import Batch
from recd_plugins.data.columns import ASKABLE, Columns, JoinedColumns
from recd_plugins.data.preprocess.converter_check import check_samples, copied_rows
from recd_plugins.data.preprocess.dense_step import DenseStep
from recd_plugins.data.preprocess.steps import Step
from recd_plugins.data.preprocess.transform_check import check_ids, check_rows
from recd_plugins.data.read_seconds import CONVERT, ReadSeconds
from recd_plugins.errors import PluginError, listed, naming, nearest
from recd_plugins.sparse.deduplicated import DeduplicatedFeatures
from recd_plugins.sparse.id_bounds import IdBounds
from recd_plugins.sparse.jagged import without
from recd_plugins.sparse.row_wise import RowWise
from recd_plugins.sparse.transformed import TransformedFeatures

if TYPE_CHECKING:
    from recd_plugins.slots import DedupConverter, Preprocess

__all__ = ["BatchTransform", "batch_steps", "row_wise"]


class BatchTransform:
    """Applies the `dedup` converter, then each `preprocess` transform to its features.

    Features are deduplicated before they are transformed, so each transform runs once per unique
    sample: on `batch.dedup` as on `batch.features`, with the same results as on all samples.
    """

    def __init__(
        self,
        steps: Sequence[tuple[Sequence[str], Preprocess | RowWise | DenseStep]],
        dedup: DedupConverter | None = None,
        bounds: IdBounds | None = None,
        who: str = "dedup",
    ) -> None:
        """All ids that it leaves in a batch are checked against `bounds`, if given. `who` opens the
        converter's messages: its record and its place in registry.yaml."""
        keep_traces_apart()  # a thread may read ahead, as the one for hot batches does
        self._taken_up = mmap.mmap(-1, 1)
        self._who = f"{who}: "
        self._bounds = bounds
        self._steps = [
            (names, step if isinstance(step, RowWise | DenseStep) else RowWise(step))
            for names, step in steps
        ]
        labels = _labels([step.name for _, step in self._steps])
        self._labels = labels
        self.parts = labels if dedup is None else (CONVERT, *labels)
        """The steps whose time it measures: the converter, and each transform."""
        self.seconds = ReadSeconds()
        self._dedup = dedup
        self._batches = 0
        """The batches that came so far."""
        self.takes = frozenset() if dedup is None else _taken(dedup, self._who)
        """The features that the converter takes."""
        self.asks = () if dedup is None else _asked(dedup, self._who)
        """The columns that the converter asks for beside these: some of `ASKABLE`."""

    @property
    def taken_up(self) -> bool:
        """Whether a batch went through it, here or in a process that was forked with it, or it was
        pickled for another process."""
        return self._taken_up[0] > 0

    def by_record(self) -> Iterator[tuple[str, object]]:
        """What it applies, each with what opens its messages: its record and its place."""
        if self._dedup is not None:
            yield self._who.removesuffix(": "), self._dedup
        for _, step in self._steps:
            yield step.who, step

    def __getstate__(self) -> dict[str, Any]:
        self._taken_up[0] = 1
        return {name: one for name, one in self.__dict__.items() if name != "_taken_up"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _taken_up=mmap.mmap(-1, 1))

    def __call__(self, batch: Batch, unjoined: Columns | None = None) -> Batch:
        """Transform a batch; a reader may hand over what the converter takes as `unjoined` columns.

        Then the batch's features are the others; without `unjoined` they are all features. What the
        converter asks for beside features is only in `unjoined`.
        """
        checks = self._comes()
        features, dedup, dense = batch.features, batch.dedup, batch.dense
        if self._dedup is not None and self.takes:
            with self.seconds.of(CONVERT):
                features, dedup = self._deduplicated(self._dedup, features, unjoined, checks)
        features, dedup, dense = self._transformed(features, dedup, dense, self.seconds, checks)
        if self._bounds is not None:
            shared = dedup.kjt if isinstance(dedup, DeduplicatedFeatures) else dedup
            for kjt in (features, shared):
                if isinstance(kjt, KeyedJaggedTensor):
                    self._bounds.check(kjt, "a batch has")
        return dataclasses.replace(batch, features=features, dedup=dedup, dense=dense)

    def of(
        self, features: KeyedJaggedTensor, unjoined: Columns | None = None, dedup: Any = None
    ) -> tuple[KeyedJaggedTensor, Any]:
        """The features that are not deduplicated, and what became of those that the converter took.

        Without a converter, `dedup` is what these became before. What transforms make of dense
        columns is not included.
        """
        checks = self._comes()
        if self._dedup is not None and self.takes:
            features, dedup = self._deduplicated(self._dedup, features, unjoined, checks)
        features, dedup, _ = self._transformed(features, dedup, None, ReadSeconds(), checks)
        return features, dedup

    def _comes(self) -> bool:
        """Note that a batch comes. Returns whether what is made of it is checked, as of the 1st,
        2nd, 4th, ... batch: what is wrong with one is wrong with most."""
        self._taken_up[0] = 1
        self._batches += 1
        return not self._batches & self._batches - 1

    def _transformed(
        self,
        features: KeyedJaggedTensor,
        dedup: Any,
        dense: Tensor | None,
        seconds: ReadSeconds,
        checks: bool,
    ) -> tuple[KeyedJaggedTensor, Any, Any]:
        """What the steps make of all three; without `dense`, steps on dense columns are skipped.
        Features that several steps in a row add are appended together; the time for that counts for
        the next step, or the last one."""
        plain, shared = TransformedFeatures(features), None
        if isinstance(dedup, KeyedJaggedTensor | DeduplicatedFeatures):
            shared = TransformedFeatures(dedup)
        began = time.perf_counter()
        for (names, step), label in zip(self._steps, self._labels, strict=True):
            if checks and shared is not None and not isinstance(step, DenseStep):
                _check_rows(step, shared.whole, names)
            if not isinstance(step, DenseStep):
                plain.apply(step, names)
                if shared is not None:
                    shared.apply(step, names)
                elif dedup is not None:
                    _check_reached(plain.whole, names, dedup, step)
            elif dense is not None:
                dense, features = step(dense, plain.whole)
                plain = TransformedFeatures(features)
            if label == self._labels[-1]:
                features, dedup = plain.whole, dedup if shared is None else shared.whole
            ended = time.perf_counter()
            seconds.add(label, ended - began)
            began = ended
        return features, dedup, dense

    def _deduplicated(
        self,
        dedup: DedupConverter,
        features: KeyedJaggedTensor,
        unjoined: Columns | None,
        checks: bool,
    ) -> tuple[KeyedJaggedTensor, Any]:
        """The features that the converter leaves, and what it makes of those that it takes."""
        features, taken = self._parted(dedup, features, unjoined)
        whose = f"{self._who}`convert` of {type(dedup).__name__}"
        given = copied_rows(taken.to_kjt()) if checks else {}
        with naming(whose, "when it was given columns", also_data=True):
            made = dedup.convert(taken)
        self._check_features(made, whose)
        if checks:
            check_samples(made, given, whose)
        return features, made

    def _parted(
        self, dedup: DedupConverter, features: KeyedJaggedTensor, unjoined: Columns | None
    ) -> tuple[KeyedJaggedTensor, Columns]:
        """The features that the converter leaves, and those that it takes; raises `PluginError` if
        it asks for what is not there."""
        if self.asks and unjoined is None:
            raise PluginError(
                f"{self._who}{type(dedup).__name__} asks for {' and '.join(self.asks)}, which did "
                "not come with these features. `reader: local` passes it on; a trainer's own "
                "batches have only a KJT, so there a converter must work without it."
            )
        there = features.keys() if unjoined is None else unjoined.keys
        for key in self.takes:
            if key not in there:
                raise PluginError(
                    f"{self._who}{type(dedup).__name__} takes feature {key!r}, which does not "
                    f"exist; {nearest(key, there)}"
                )
        if unjoined is not None:
            return features, unjoined
        taken = without(features, [key for key in there if key not in self.takes])
        return without(features, self.takes), JoinedColumns(taken)

    def _check_features(self, made: Any, whose: str) -> None:
        """Raises `PluginError` if what a converter made is not of the features that it takes."""
        if made is None:
            raise PluginError(
                f"{whose} returned None, though it takes {listed(self.takes, kind='feature')}. "
                "Return what the batch should have in place of these, or have no `groups`."
            )
        shared = made.kjt if isinstance(made, DeduplicatedFeatures) else made
        if isinstance(shared, KeyedJaggedTensor) and {*shared.keys()} != self.takes:
            raise PluginError(
                f"{whose} returned {listed(shared.keys(), kind='feature')}, where its `groups` "
                f"name {listed(sorted(self.takes))}. Let it return these, and no others."
            )


def row_wise(steps: Sequence[Step]) -> list[tuple[tuple[str, ...], RowWise]]:
    """Each step's transform, adapted to run on unique samples, with the features that it takes."""
    return [
        (
            step.takes,
            RowWise(
                step.on_ids,
                step.names if step.changes_keys else None,
                step.label,
                step.who,
                step.weighs,
            ),
        )
        for step in steps
        if not step.dense
    ]


def batch_steps(steps: Sequence[Step]) -> list[tuple[tuple[str, ...], RowWise | DenseStep]]:
    """The same, including the transforms of dense columns, in order."""
    found: list[tuple[tuple[str, ...], RowWise | DenseStep]] = []
    for step in steps:
        if not step.dense:
            found += row_wise([step])
        elif step.takes:
            found.append((step.takes, DenseStep(step)))
    return found


def _check_rows(
    step: RowWise, features: KeyedJaggedTensor | DeduplicatedFeatures, names: Collection[str]
) -> None:
    """Check what a step that is about to run on unique samples makes of all samples."""
    if not isinstance(features, DeduplicatedFeatures):
        return
    rows = features.to_kjt()
    check_rows(step, rows, names)
    if features.shares_values and step.elementwise:
        check_ids(step, rows, names)


def _labels(names: Sequence[str]) -> tuple[str, ...]:
    """Each name, with a number if it occurs several times."""
    return tuple(
        name if names.count(name) == 1 else f"{name} {names[: at + 1].count(name)}"
        for at, name in enumerate(names)
    )


def _taken(dedup: DedupConverter, who: str) -> frozenset[str]:
    groups = getattr(dedup, "groups", None)
    if groups is None:
        raise PluginError(
            f"{who}{type(dedup).__name__} does not say which features it takes. Give it an "
            "attribute `groups`, a tuple of tuples of features."
        )
    return frozenset(chain.from_iterable(groups))


def _asked(dedup: DedupConverter, who: str) -> tuple[str, ...]:
    asks = getattr(dedup, "asks", ())
    for name in (asks,) if isinstance(asks, str) else asks:
        if name not in ASKABLE:
            raise PluginError(
                f"{who}{type(dedup).__name__} asks for {name!r}; {nearest(name, ASKABLE)}"
            )
    if isinstance(asks, str):
        raise PluginError(
            f"{who}`asks` of {type(dedup).__name__} is a text, where it must be a tuple: "
            f'`asks = ("{asks}",)`.'
        )
    return tuple(asks)


def _check_reached(
    features: KeyedJaggedTensor, names: Sequence[str], dedup: object, transform: RowWise
) -> None:
    gone = [name for name in names if name not in features.keys()]  # noqa: SIM118  # no mapping
    if gone:
        raise PluginError(
            f"{transform.who} is for {', '.join(gone)}, which dedup put into a "
            f"{type(dedup).__name__}. Let the converter make an InverseKeyedJaggedTensor, or take "
            "the transform off these features."
        )

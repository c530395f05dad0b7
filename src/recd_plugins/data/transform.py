"""What happens to a batch between reader and trainer: dedup, then transforms."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.data.batch import Batch
from recd_plugins.data.columns import ASKABLE, Columns, JoinedColumns
from recd_plugins.data.preprocessing import ChosenTransform, Step, schema_of_keys, steps_of
from recd_plugins.errors import DataError, PluginError, nearest
from recd_plugins.sparse.features import SparseFeatures
from recd_plugins.sparse.ikjt import InverseKeyedJaggedTensor
from recd_plugins.sparse.jagged import without
from recd_plugins.sparse.partial import PartialInverseKeyedJaggedTensor
from recd_plugins.sparse.row_wise import RowWise

if TYPE_CHECKING:
    from recd_plugins.slots import DedupConverter, Preprocess

__all__ = ["BatchTransform", "Conversion", "row_wise"]

KINDS = (KeyedJaggedTensor, InverseKeyedJaggedTensor, PartialInverseKeyedJaggedTensor)


class BatchTransform:
    """Applies the `dedup` converter, then each `preprocess` transform to its features.

    What is deduplicated is so before it is transformed, and each transform runs once for every
    unique sample: on `batch.dedup` as on `batch.features`, with results as if on all samples.
    """

    def __init__(
        self,
        steps: Sequence[tuple[Sequence[str], Preprocess | RowWise]],
        dedup: DedupConverter | None = None,
    ) -> None:
        self._steps = [
            (names, step if isinstance(step, RowWise) else RowWise(step)) for names, step in steps
        ]
        self._dedup = dedup
        self.takes = frozenset() if dedup is None else _taken(dedup)
        """The features that the converter takes."""
        self.asks = () if dedup is None else _asked(dedup)
        """What it asks for beside them: some of `ASKABLE`."""

    def __call__(self, batch: Batch, unjoined: Columns | None = None) -> Batch:
        """A reader may hand over what the converter takes as `unjoined` columns.

        Then the batch's features are the others; without `unjoined` they are all. What the
        converter asks for beside features is in `unjoined` alone.
        """
        features, dedup = self.of(batch.features, unjoined, batch.dedup)
        return dataclasses.replace(batch, features=features, dedup=dedup)

    def of(
        self, features: KeyedJaggedTensor, unjoined: Columns | None = None, dedup: Any = None
    ) -> tuple[KeyedJaggedTensor, Any]:
        """The features that stay as they were, and what became of those that the converter took.

        Without a converter, `dedup` is what they became before.
        """
        if self._dedup is not None and self.takes:
            features, dedup = self._deduplicated(self._dedup, features, unjoined)
        for names, transform in self._steps:
            features = transform(features, names)
            if isinstance(dedup, KINDS):
                dedup = transform(dedup, names)
            elif dedup is not None:
                _check_reached(features, names, dedup, transform)
        return features, dedup

    def _deduplicated(
        self, dedup: DedupConverter, features: KeyedJaggedTensor, unjoined: Columns | None
    ) -> tuple[KeyedJaggedTensor, Any]:
        if self.asks and unjoined is None:
            raise PluginError(
                f"dedup: {type(dedup).__name__} asks for {' and '.join(self.asks)}, which "
                "this reader does not hand over. Choose one that does: `reader: local`."
            )
        taken = JoinedColumns(features) if unjoined is None else unjoined
        for key in self.takes:
            if key not in taken.keys:
                who = type(dedup).__name__
                raise PluginError(
                    f"dedup: {who} takes feature {key!r}, which there is not; "
                    f"{nearest(key, taken.keys)}"
                )
        if unjoined is None:
            keys = features.keys()
            taken = JoinedColumns(without(features, [key for key in keys if key not in self.takes]))
            features = without(features, self.takes)
        return features, dedup.convert(taken)


class Conversion:
    """The KJT of a trainer's own batch to what an adapted model takes in its place.

    That is `SparseFeatures` where features are deduplicated, else a KJT. Every worker of a loader
    may have a copy of it, pickled or forked: it holds the converter and the transforms alone.
    """

    def __init__(
        self, transforms: Sequence[ChosenTransform], dedup: DedupConverter | None = None
    ) -> None:
        self._transforms = tuple(transforms)
        self._dedup = dedup
        self._by_keys: dict[tuple[str, ...], BatchTransform] = {}

    def __call__(
        self, features: KeyedJaggedTensor | SparseFeatures
    ) -> KeyedJaggedTensor | SparseFeatures:
        """All samples' features, each id as it was; what is converted already stays."""
        if isinstance(features, SparseFeatures):
            return features
        if not isinstance(features, KeyedJaggedTensor):
            raise DataError(
                f"convert: takes a KeyedJaggedTensor, but was given a {type(features).__name__}. "
                "Of a batch that holds one, hand over that, or use stack.converting(collate) or "
                "stack.converted(loader)."
            )
        if features.variable_stride_per_key():
            raise DataError(
                "convert: the keys of this KeyedJaggedTensor differ in batch size (variable "
                "stride, VBE), so that no sample has a row under every key. Convert the features "
                "before they become such a one, or take `dedup` and `preprocess` out of "
                "registry.yaml."
            )
        keys = tuple(features.keys())
        if keys not in self._by_keys:
            self._by_keys[keys] = self._transform(keys)
        plain, dedup = self._by_keys[keys].of(features)
        if dedup is None:
            return plain
        made = SparseFeatures.of(plain, dedup)
        return dataclasses.replace(made, order=keys) if set(made.keys()) == set(keys) else made

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_by_keys": {}}

    def _transform(self, keys: Sequence[str]) -> BatchTransform:
        steps = steps_of(self._transforms, schema_of_keys(keys)) if self._transforms else []
        groups = getattr(self._dedup, "groups", ())
        for step in steps:
            groups = step.groups(groups)  # it refuses what unique samples do not allow
        return BatchTransform(row_wise(steps), self._dedup)


def row_wise(steps: Sequence[Step]) -> list[tuple[tuple[str, ...], RowWise]]:
    """Each step's transform, made to run on unique samples, with the features that it takes."""
    return [
        (step.takes, RowWise(step.transform, step.names if step.changes_keys else None))
        for step in steps
    ]


def _taken(dedup: DedupConverter) -> frozenset[str]:
    groups = getattr(dedup, "groups", None)
    if groups is None:
        raise PluginError(
            f"dedup: {type(dedup).__name__} does not say which features it takes. Give it an "
            "attribute `groups`, a tuple of tuples of features."
        )
    return frozenset(chain.from_iterable(groups))


def _asked(dedup: DedupConverter) -> tuple[str, ...]:
    asks: tuple[str, ...] = tuple(getattr(dedup, "asks", ()))
    for name in asks:
        if name not in ASKABLE:
            raise PluginError(
                f"dedup: {type(dedup).__name__} asks for {name!r}; {nearest(name, ASKABLE)}"
            )
    return asks


def _check_reached(
    features: KeyedJaggedTensor, names: Sequence[str], dedup: object, transform: RowWise
) -> None:
    gone = [name for name in names if name not in features.keys()]  # noqa: SIM118  # no mapping
    if gone:
        raise PluginError(
            f"preprocess: {transform.name} is for {', '.join(gone)}, which dedup put into a "
            f"{type(dedup).__name__}. Let the converter make an InverseKeyedJaggedTensor, or take "
            "the transform off these features."
        )

"""What happens to a batch between the table and the trainer: dedup, then transforms."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING

from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.data.batch import Batch
from recd_plugins.data.columns import ASKABLE, Columns, JoinedColumns
from recd_plugins.errors import PluginError, nearest
from recd_plugins.sparse.ikjt import InverseKeyedJaggedTensor
from recd_plugins.sparse.jagged import without
from recd_plugins.sparse.partial import PartialInverseKeyedJaggedTensor
from recd_plugins.sparse.row_wise import RowWise

if TYPE_CHECKING:
    from recd_plugins.slots import DedupConverter, Preprocess

__all__ = ["BatchTransform"]

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
        batch = self._deduplicated(batch, unjoined)
        features, dedup = batch.features, batch.dedup
        for names, transform in self._steps:
            features = transform(features, names)
            if isinstance(dedup, KINDS):
                dedup = transform(dedup, names)
            elif dedup is not None:
                _check_reached(features, names, dedup, transform)
        return dataclasses.replace(batch, features=features, dedup=dedup)

    def _deduplicated(self, batch: Batch, unjoined: Columns | None) -> Batch:
        if self._dedup is None or not self.takes:
            return batch
        features = batch.features
        if self.asks and unjoined is None:
            raise PluginError(
                f"dedup: {type(self._dedup).__name__} asks for {' and '.join(self.asks)}, which "
                "this reader does not hand over. Choose one that does: `reader: local`."
            )
        taken = JoinedColumns(features) if unjoined is None else unjoined
        for key in self.takes:
            if key not in taken.keys:
                who = type(self._dedup).__name__
                raise PluginError(
                    f"dedup: {who} takes feature {key!r}, which there is not; "
                    f"{nearest(key, taken.keys)}"
                )
        if unjoined is None:
            keys = features.keys()
            taken = JoinedColumns(without(features, [key for key in keys if key not in self.takes]))
            features = without(features, self.takes)
        return dataclasses.replace(batch, features=features, dedup=self._dedup.convert(taken))


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

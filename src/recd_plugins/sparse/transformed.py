"""Features on which several transforms run: each id is copied, and a KJT made, only where that has
to be."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Generic, TypeVar, cast

from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.sparse.deduplicated import DeduplicatedFeatures
from recd_plugins.sparse.ikjt import InverseKeyedJaggedTensor
from recd_plugins.sparse.keyed import (
    AddedFeature,
    KeyedRows,
    in_one_line,
    made_of_rows,
    rows_with_features,
    with_features,
    with_ids,
)
from recd_plugins.sparse.row_wise import RowWise

__all__ = ["TransformedFeatures"]

Features = TypeVar("Features", bound="KeyedJaggedTensor | DeduplicatedFeatures")


class TransformedFeatures(Generic[Features]):
    """Features on which transforms run one after another.

    The features that several transforms in a row add are appended when a later one needs them: then
    each id is copied, and a KJT is made, only once for all. No KJT is made between transforms with
    `of_rows`.
    """

    def __init__(self, features: Features) -> None:
        self._features: KeyedJaggedTensor | DeduplicatedFeatures = features
        if isinstance(features, KeyedJaggedTensor):
            self._features = in_one_line(features)
        self._added: list[AddedFeature] = []
        """Features that are still to be appended."""
        self._rows: KeyedRows | None = None
        """What became of the rows, if a KJT is still to be made of them; then no features are to be
        appended."""

    def apply(self, transform: RowWise, keys: Collection[str]) -> None:
        """Run the transform on those of `keys` that are present."""
        held, wanted = self._keys(), frozenset(keys)
        if wanted.isdisjoint(held):
            return
        kjt = transform.runs_on(self._features)
        if transform.of_rows is not None and kjt is not None and wanted.issuperset(held):
            self._rows = transform.on_rows(self._rows_of(kjt))
            self._added = []
            return
        added = {one.name for one in self._added}
        if self._rows is not None or transform.adds in added or not wanted.isdisjoint(added):
            self._lay()
            kjt = transform.runs_on(self._features)
        if kjt is None or transform.adds is None or transform.adds in held:
            self._lay()
            self._features = transform(self._features, wanted)
        else:
            one = transform.added(kjt, [key for key in kjt.keys() if key in wanted])  # noqa: SIM118
            self._added.append(one)
            weighs = one.weights is not None and kjt.weights_or_none() is None
            if weighs or one.values.dtype != kjt.values().dtype:
                self._lay()  # which changes the other features

    @property
    def whole(self) -> Features:
        """The features as they are now."""
        self._lay()
        return cast("Features", self._features)

    def _keys(self) -> list[str]:
        """The present keys; those still to be appended come last."""
        if self._rows is not None:
            return [*self._rows.keys]
        features = self._features
        kjt = features if isinstance(features, KeyedJaggedTensor) else features.kjt
        return [*kjt.keys(), *(one.name for one in self._added)]

    def _rows_of(self, kjt: KeyedJaggedTensor) -> KeyedRows:
        """The rows as they are now."""
        if self._rows is not None:
            return self._rows
        if self._added:
            return rows_with_features(kjt, self._added)
        weights, counts = kjt.weights_or_none(), kjt.length_per_key_or_none()
        return KeyedRows(kjt.keys(), kjt.values(), kjt.lengths(), weights, counts)

    def _lay(self) -> None:
        features, rows, added = self._features, self._rows, self._added
        if rows is None and not added:
            return
        kjt = features if isinstance(features, KeyedJaggedTensor) else features.kjt
        if rows is None:
            made = with_features(kjt, added)
        elif rows.keys == kjt.keys():
            kept = rows.lengths is kjt.lengths() and rows.weights is kjt.weights_or_none()
            lengths = None if kept else rows.lengths
            made = with_ids(kjt, rows.ids, lengths=lengths, weights=rows.weights)
        else:
            made = made_of_rows(kjt, rows)
        if isinstance(features, KeyedJaggedTensor):
            self._features = made
        else:  # of one group, which they belong to
            assert isinstance(features, InverseKeyedJaggedTensor)
            groups = (tuple(made.keys()),)
            self._features = dataclasses.replace(features, kjt=made, groups=groups)
        self._added, self._rows = [], None

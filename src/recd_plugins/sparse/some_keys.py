"""Some of an IKJT's keys, taken out as a KJT of unique samples and put back."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from itertools import groupby

import torch
from torch import Tensor
from torch.nn.functional import pad
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.sparse.groups import is_padded, real_rows
from recd_plugins.sparse.ikjt import InverseKeyedJaggedTensor
from recd_plugins.sparse.jagged import WeightedJagged
from recd_plugins.sparse.keyed import with_ids

__all__ = ["SomeKeys"]


class SomeKeys:
    """Some of an IKJT's keys: takes their unique samples out as a KJT, and puts back what became of
    them.

    There is at least one key; keys are in the order of the groups.
    """

    def __init__(self, features: InverseKeyedJaggedTensor, keys: Collection[str]) -> None:
        self._features = features
        self._groups, self._unique_counts = features.groups, features.unique_counts
        self._bands = [(True, range(len(keys)))]
        """The places of all keys, cut where the chosen ones begin and end."""
        if len(keys) < len(features.kjt.keys()):
            self._narrow(frozenset(keys))

    def _narrow(self, wanted: Collection[str]) -> None:
        features, stop = self._features, 0
        self._bands = []
        for taken, band in groupby(features.kjt.keys(), wanted.__contains__):
            start, stop = stop, stop + len(list(band))
            self._bands.append((taken, range(start, stop)))
        left = [
            (ours, count)
            for group, count in zip(features.groups, features.unique_counts, strict=True)
            if (ours := tuple(key for key in group if key in wanted))
        ]
        self._groups = tuple(ours for ours, _ in left)
        self._unique_counts = tuple(count for _, count in left)

    def take(self) -> KeyedJaggedTensor:
        """The keys' unique samples, padded to the largest of their groups."""
        kjt, stride = self._features.kjt, max(self._unique_counts)
        if len(self._bands) == 1:
            return kjt
        return _keyed(
            [key for group in self._groups for key in group],
            [_rows(kjt, band, stride) for taken, band in self._bands if taken],
            stride,
        )

    def without_padding(self, made: KeyedJaggedTensor) -> KeyedJaggedTensor:
        """`made`, which has a row for each one that was taken, without ids in the padding of
        groups."""
        lengths, weights = made.lengths(), made.weights_or_none()
        if is_padded(self._groups, self._unique_counts, lengths):
            return made
        real = real_rows(self._groups, self._unique_counts, lengths.device)
        kept = torch.repeat_interleave(real, lengths)
        return with_ids(
            made,
            made.values()[kept],
            lengths=lengths * real,
            weights=None if weights is None else weights[kept],
        )

    def put(self, made: KeyedJaggedTensor) -> InverseKeyedJaggedTensor:
        """The IKJT with `made`, rows of the same keys, in place of what was taken."""
        kjt, stride = self._features.kjt, self._features.kjt.stride()
        if len(self._bands) > 1:
            parts, done = [], 0
            for taken, band in self._bands:
                if taken:
                    parts.append(_rows(made, range(done, done + len(band)), stride))
                    done += len(band)
                else:
                    parts.append(_rows(kjt, band, stride))
            made = _keyed(kjt.keys(), parts, stride)
        return dataclasses.replace(self._features, kjt=made)


def _rows(kjt: KeyedJaggedTensor, band: range, stride: int) -> WeightedJagged:
    """`stride` rows for each key in these places, with less or more padding than they have."""
    ids = slice(None)
    if len(band) < len(kjt.keys()):
        offsets = kjt.offset_per_key()
        ids = slice(offsets[band.start], offsets[band.stop])
    lengths = kjt.lengths().view(len(kjt.keys()), -1)[band.start : band.stop]
    weights = kjt.weights_or_none()
    return WeightedJagged(
        kjt.values()[ids],
        _padded(lengths, stride).contiguous().view(-1),
        None if weights is None else weights[ids],
    )


def _padded(lengths: Tensor, stride: int) -> Tensor:
    """[K, stride]: lengths [K, S], cut or padded with zeros; a view if possible."""
    missing = stride - lengths.shape[1]
    return pad(lengths, (0, missing)) if missing > 0 else lengths[:, :stride]


def _keyed(keys: list[str], parts: list[WeightedJagged], stride: int) -> KeyedJaggedTensor:
    rows = parts[0] if len(parts) == 1 else WeightedJagged.joined(parts)
    return KeyedJaggedTensor(
        keys=keys, values=rows.values, lengths=rows.lengths, weights=rows.weights, stride=stride
    )

"""The rows of some features as one KJT: unique samples where deduplicated, else all samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.errors import DataError, nearest
from recd_plugins.sparse.features import SparseFeatures
from recd_plugins.sparse.rows.weighted import Weighted

__all__ = ["rows_of", "vbe_rows_of"]


def rows_of(features: SparseFeatures | KeyedJaggedTensor, keys: Sequence[str]) -> KeyedJaggedTensor:
    """The rows of `keys`, in this order, which TorchRec's modules rely on from batch to batch.

    Where keys differ in their number of rows, the shorter end in rows of length 0: no value is
    added. There is one row at least, since TorchRec's modules fail on none.
    """
    if isinstance(features, KeyedJaggedTensor):
        if _is_whole(features, keys, features.stride()):
            return features
        return _joined(Weighted.by_key(features), keys)
    dedup, group_of = features.dedup, features.group_of
    counts = [dedup.unique_counts[group_of[key]] for key in keys if key in group_of]
    if _is_whole(dedup.kjt, keys, max(counts, default=0)):
        return dedup.kjt
    return _joined(features.rows, keys)


def vbe_rows_of(
    features: SparseFeatures | KeyedJaggedTensor, keys: Sequence[str]
) -> KeyedJaggedTensor:
    """The rows of `keys` in TorchRec's variable-batch form, which TorchRec itself expands.

    No row pads. A feature that is not deduplicated has its own row for each sample.
    """
    unique = isinstance(features, SparseFeatures)
    parts = features.rows if unique else Weighted.by_key(features)
    group_of = features.group_of if unique else {}
    chosen = _chosen(parts, keys)
    rows = Weighted.joined(chosen)
    every = torch.arange(features.stride(), device=rows.lengths.device)
    lookups = [
        features.dedup.inverse_lookup[group_of[key]] if key in group_of else every for key in keys
    ]
    return KeyedJaggedTensor(
        keys=list(keys),
        values=rows.values,
        lengths=rows.lengths,
        weights=rows.weights,
        stride_per_key_per_rank=[[part.lengths.numel()] for part in chosen],
        inverse_indices=(list(keys), torch.stack(lookups)),
    )


def _is_whole(kjt: KeyedJaggedTensor, keys: Sequence[str], stride: int) -> bool:
    return bool(kjt.keys() == list(keys) and kjt.stride() == stride > 0)


def _joined(parts: Mapping[str, Weighted], keys: Sequence[str]) -> KeyedJaggedTensor:
    chosen = _chosen(parts, keys)
    stride = max(1, *(part.lengths.numel() for part in chosen))
    rows = Weighted.joined(chosen)
    return KeyedJaggedTensor(
        keys=list(keys),
        values=rows.values,
        lengths=_padded([part.lengths for part in chosen], stride),
        weights=rows.weights,
        stride=stride,
        length_per_key=[part.values.numel() for part in chosen],
    )


def _chosen(parts: Mapping[str, Weighted], keys: Sequence[str]) -> list[Weighted]:
    for key in keys:
        if key not in parts:
            raise DataError(f"the batch has no feature {key!r}; {nearest(key, parts)}")
    return [parts[key] for key in keys]


def _padded(lengths: Sequence[Tensor], stride: int) -> Tensor:
    """[F * stride]: each key's lengths, then zeros."""
    padded = lengths[0].new_zeros(len(lengths), stride)
    for row, part in zip(padded, lengths, strict=True):
        row[: part.numel()] = part
    return padded.view(-1)

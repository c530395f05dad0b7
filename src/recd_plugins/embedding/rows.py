"""The rows of some features as one KJT: unique samples where deduplicated, else all samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.errors import DataError, nearest
from recd_plugins.sparse.features import SparseFeatures
from recd_plugins.sparse.jagged import WeightedJagged
from recd_plugins.sparse.keyed import mark_of, marked

__all__ = ["rows_of", "vbe_rows_of"]


def rows_of(features: SparseFeatures | KeyedJaggedTensor, keys: Sequence[str]) -> KeyedJaggedTensor:
    """The rows of `keys`, in this order, which TorchRec's modules rely on from batch to batch.

    Where keys differ in their number of rows, the shorter end in rows of length 0: no value is
    added. There is one row at least, since TorchRec's modules fail on none. Those of a hot batch
    keep its mark.
    """
    of = features if isinstance(features, KeyedJaggedTensor) else features.plain
    return marked(_rows_of(features, keys), mark_of(of))


def _rows_of(
    features: SparseFeatures | KeyedJaggedTensor, keys: Sequence[str]
) -> KeyedJaggedTensor:
    if isinstance(features, KeyedJaggedTensor):
        if _is_whole(features, keys, features.stride()):
            return features
        return _joined(WeightedJagged.by_key(features), keys, [features])
    dedup, group_of = features.dedup, features.group_of
    counts = [dedup.unique_counts[group_of[key]] for key in keys if key in group_of]
    if _is_whole(dedup.kjt, keys, max(counts, default=0)):
        return dedup.kjt
    return _joined(features.rows, keys, [features.plain, dedup.kjt])


def vbe_rows_of(
    features: SparseFeatures | KeyedJaggedTensor, keys: Sequence[str]
) -> KeyedJaggedTensor:
    """The rows of `keys` in TorchRec's variable-batch form, which TorchRec itself expands.

    No row pads. A feature that is not deduplicated has its own row for each sample.
    """
    unique = isinstance(features, SparseFeatures)
    parts = features.rows if unique else WeightedJagged.by_key(features)
    group_of = features.group_of if unique else {}
    chosen = _chosen(parts, keys)
    rows = WeightedJagged.joined(chosen)
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


def _joined(
    parts: Mapping[str, WeightedJagged], keys: Sequence[str], of: Sequence[KeyedJaggedTensor]
) -> KeyedJaggedTensor:
    """The parts of `keys`, which are those of the KJTs `of`, without the rows that only pad."""
    chosen = _chosen(parts, keys)
    stride = max([1, *(part.lengths.numel() for part in chosen)])
    rows = WeightedJagged.joined(chosen)
    return KeyedJaggedTensor(
        keys=list(keys),
        values=rows.values,
        lengths=_lengths(of, keys, stride),
        weights=rows.weights,
        stride=stride,
        length_per_key=[part.values.numel() for part in chosen],
    )


def _chosen(parts: Mapping[str, WeightedJagged], keys: Sequence[str]) -> list[WeightedJagged]:
    for key in keys:
        if key not in parts:
            raise DataError(f"the batch has no feature {key!r}; {nearest(key, parts)}")
    return [parts[key] for key in keys]


def _lengths(of: Sequence[KeyedJaggedTensor], keys: Sequence[str], stride: int) -> Tensor:
    """[F * stride]: each key's lengths, then zeros; a few calls, however many keys there are."""
    known = [key for kjt in of for key in kjt.keys()]  # noqa: SIM118  # a KJT is no mapping
    blocks = [
        _cut(kjt.lengths().view(len(kjt.keys()), kjt.stride()), stride) for kjt in of if kjt.keys()
    ]
    place = {key: index for index, key in enumerate(known)}
    order = torch.tensor([place[key] for key in keys], device=blocks[0].device)
    return torch.cat(blocks).index_select(0, order).view(-1)


def _cut(lengths: Tensor, stride: int) -> Tensor:
    """[F, B] as [F, stride]: behind a key's rows there are rows of length 0, or none."""
    if lengths.shape[1] >= stride:
        return lengths[:, :stride]
    return F.pad(lengths, (0, stride - lengths.shape[1]))

"""The input that TorchRec's collections are handed to look up, and their output for unique samples.

A deduplicated feature is looked up with its unique samples, any other with all B. What comes
back is the dict or KeyedTensor of the unsharded module, its tensors not yet expanded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor, KeyedTensor

from recd_plugins.compat.torchrec import LazyKeyedTensor
from recd_plugins.embedding.unexpanded import Unexpanded
from recd_plugins.errors import DataError, nearest
from recd_plugins.sparse.features import SparseFeatures
from recd_plugins.sparse.jagged import WeightedJagged
from recd_plugins.sparse.keyed import mark_of, marked
from recd_plugins.sparse.rows.memory import numbers_on

__all__ = ["BatchSamples", "pooled", "rows_of", "sequences", "vbe_rows_of"]


def rows_of(features: SparseFeatures | KeyedJaggedTensor, keys: Sequence[str]) -> KeyedJaggedTensor:
    """The rows of `keys`, in this order, which TorchRec's modules rely on from batch to batch.

    Where keys differ in their number of rows, the shorter end in rows of length 0: no value is
    added. There is one row at least, since TorchRec's modules fail on none. Those of a hot batch
    keep its mark.
    """
    of = SparseFeatures.of(features)
    return marked(_rows_of(of, keys), mark_of(of.plain))


def _rows_of(features: SparseFeatures, keys: Sequence[str]) -> KeyedJaggedTensor:
    plain, dedup, lookups = features.plain, features.dedup, features.lookups
    if _is_whole(plain, keys, plain.stride()):
        return plain
    if dedup is None:
        return _joined(features.rows, keys, [plain])
    counts = [lookups[key].num_unique for key in keys if key in lookups]
    if _is_whole(dedup.kjt, keys, max(counts, default=0)):
        return dedup.kjt
    return _joined(features.rows, keys, [plain, dedup.kjt])


def vbe_rows_of(
    features: SparseFeatures | KeyedJaggedTensor, keys: Sequence[str]
) -> KeyedJaggedTensor:
    """The rows of `keys` in TorchRec's variable-batch form, which TorchRec itself expands.

    No row pads. A feature that is not deduplicated has its own row for each sample.
    """
    of = SparseFeatures.of(features)
    chosen = _chosen(of.rows, keys)
    rows = WeightedJagged.joined(chosen)
    every = torch.arange(of.stride(), device=rows.lengths.device)
    inverse = [of.lookups[key].inverse_lookup if key in of.lookups else every for key in keys]
    return KeyedJaggedTensor(
        keys=list(keys),
        values=rows.values,
        lengths=rows.lengths,
        weights=rows.weights,
        stride_per_key_per_rank=[[part.lengths.numel()] for part in chosen],
        inverse_indices=(list(keys), torch.stack(inverse)),
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
    order = numbers_on(blocks[0].device, [place[key] for key in keys])
    return torch.cat(blocks).index_select(0, order).view(-1)


def _cut(lengths: Tensor, stride: int) -> Tensor:
    """[F, B] as [F, stride]: behind a key's rows there are rows of length 0, or none."""
    if lengths.shape[1] >= stride:
        return lengths[:, :stride]
    return F.pad(lengths, (0, stride - lengths.shape[1]))


class BatchSamples:
    """The rows of a feature's output that are the batch's, and which samples have them."""

    def __init__(
        self, features: SparseFeatures | KeyedJaggedTensor, *, sequences: bool = False
    ) -> None:
        """Where `sequences` are looked up, their values are counted here, before anybody waits."""
        of = SparseFeatures.of(features)
        self.batch_size = of.stride()
        self.num_values: Mapping[str, int] = of.num_values if sequences else {}
        self._lookups = of.lookups

    def of(self, key: str) -> tuple[int, Tensor | None]:
        """The number of rows that a feature has, and the inverse lookup [B] if they are unique
        samples."""
        return self._lookups.get(key, (self.batch_size, None))

    def record_stream(self, stream: torch.Stream) -> None:
        for _, lookup in self._lookups.values():
            lookup.record_stream(stream)


def sequences(
    embedded: Mapping[str, JaggedTensor], key_of: Mapping[str, str], samples: BatchSamples
) -> dict[str, JaggedTensor]:
    """Each embedding's values and lengths, those of unique samples as `Unexpanded`.

    `key_of` is the feature of each embedding.
    """
    every = {}
    for name, jagged in embedded.items():
        key = key_of[name]
        rows, lookup = samples.of(key)
        lengths, ids = jagged.lengths()[:rows], jagged.weights_or_none()
        if lookup is None:
            every[name] = JaggedTensor(jagged.values(), lengths=lengths, weights=ids)
            continue
        count = samples.num_values[key]
        values = Unexpanded.values(jagged.values(), lengths, lookup, count)
        every[name] = JaggedTensor(
            values,
            lengths=Unexpanded.rows(lengths, lookup),
            weights=None if ids is None else Unexpanded.values(ids, lengths, lookup, count),
        )
    return every


def pooled(
    found: Mapping[str, Tensor], key_of: Mapping[str, str], samples: BatchSamples
) -> KeyedTensor:
    """Each embedding's rows, those of unique samples as `Unexpanded`; in the order of `key_of`."""
    tensors = {}
    for name, key in key_of.items():
        rows, lookup = samples.of(key)
        tensor = found[name]
        if len(tensor) > rows:  # else the slice would cost its gradient a copy
            tensor = tensor[:rows]
        tensors[name] = tensor if lookup is None else Unexpanded.rows(tensor, lookup)
    return LazyKeyedTensor(tensors)

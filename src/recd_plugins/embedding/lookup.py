"""What TorchRec's collections are given to look up, and their output for unique samples.

A deduplicated feature is looked up with its unique samples, any other with all B samples. The
output is the dict or KeyedTensor of the unsharded module; its tensors are not expanded yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import Proxy
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor, KeyedTensor

from recd_plugins.compat.outputs import LazyKeyedTensor
from recd_plugins.embedding.expand import first_rows
from recd_plugins.embedding.unexpanded import StandsFor, Unexpanded
from recd_plugins.errors import CapabilityError, DataError, nearest
from recd_plugins.sparse.features import FeatureCounts, SparseFeatures
from recd_plugins.sparse.jagged import WeightedJagged, numels_of
from recd_plugins.sparse.keyed import mark_of, marked
from recd_plugins.sparse.rows.counted import note_counted

__all__ = ["BatchSamples", "pooled", "rows_of", "sequences", "vbe_rows_of"]


def rows_of(features: SparseFeatures | KeyedJaggedTensor, keys: Sequence[str]) -> KeyedJaggedTensor:
    """The rows of `keys`, in this order, which TorchRec's modules rely on from batch to batch.

    Where keys differ in their number of rows, the shorter ones end in rows of length 0, so no value
    is added. There is one row at least, since TorchRec's modules fail on none. The rows of a hot
    batch keep its mark.
    """
    if isinstance(features, Proxy):
        raise CapabilityError(
            "stack.adapt: a pipeline traces the model, as far as DistributedModelParallel has not "
            "sharded it, and comes to a collection that takes unique samples: none can be traced. "
            "Write `DistributedModelParallel(model, plan=plan, sharders=stack.sharders())`, with "
            "`plan = stack.plan(model, ...)` of the model that stack.adapt returned."
        )
    of = SparseFeatures.of(features)
    of.check_not_written()
    return marked(_rows_of(of, keys), mark_of(of.plain))


def _rows_of(features: SparseFeatures, keys: Sequence[str]) -> KeyedJaggedTensor:
    plain, dedup, lookups = features.plain, features.dedup, features.lookups
    if _is_whole(plain, keys, plain.stride()):
        return plain
    counts = [lookups[key].num_unique for key in keys if key in lookups]
    most = max(counts, default=0)
    if dedup is None:
        return _joined([plain], keys, plain.stride())
    if _is_whole(dedup.kjt, keys, most):
        return dedup.kjt
    all_are_unique = len(counts) == len(keys)
    return _joined([plain, dedup.kjt], keys, most if all_are_unique else max(most, plain.stride()))


def vbe_rows_of(
    features: SparseFeatures | KeyedJaggedTensor, keys: Sequence[str]
) -> KeyedJaggedTensor:
    """The rows of `keys` in TorchRec's variable-batch form, which TorchRec itself expands.

    No row pads. A feature that is not deduplicated has its own row for each sample.
    """
    of = SparseFeatures.of(features)
    of.check_not_written()
    for key in keys:
        if key not in of.rows:
            raise DataError(f"the batch has no feature {key!r}; {nearest(key, of.rows)}")
    chosen = [of.rows[key] for key in keys]
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


def _joined(of: Sequence[KeyedJaggedTensor], keys: Sequence[str], stride: int) -> KeyedJaggedTensor:
    """The rows of `keys` from the KJTs `of`: `stride` rows for each key, and one at least."""
    stride, numels = max(stride, 1), [numels_of(kjt) for kjt in of]
    bands = _bands(tuple(keys), *[tuple(kjt.keys()) for kjt in of])
    rows = [_rows_of_band(of[band.of], numels[band.of], band, stride) for band in bands]
    joined = WeightedJagged.joined(rows)
    return KeyedJaggedTensor(
        keys=list(keys),
        values=joined.values,
        lengths=joined.lengths,
        weights=joined.weights,
        stride=stride,
        length_per_key=[
            numel for band in bands for numel in numels[band.of][band.start : band.stop]
        ],
    )


class _KeyBand(NamedTuple):
    """Keys that are wanted in the order in which a KJT has them next to each other."""

    of: int
    """The KJT's number."""
    start: int
    """The place of the first key."""
    stop: int


@lru_cache(maxsize=1024)  # every step of a job asks for the same
def _bands(keys: tuple[str, ...], *of: tuple[str, ...]) -> tuple[_KeyBand, ...]:
    """The fewest bands that yield `keys` of KJTs with these keys."""
    places = {key: (kjt, at) for kjt, held in enumerate(of) for at, key in enumerate(held)}
    bands: list[_KeyBand] = []
    for key in keys:
        if key not in places:
            raise DataError(f"the batch has no feature {key!r}; {nearest(key, places)}")
        kjt, at = places[key]
        if bands and bands[-1].of == kjt and bands[-1].stop == at:
            bands[-1] = bands[-1]._replace(stop=at + 1)
        else:
            bands.append(_KeyBand(kjt, at, at + 1))
    return tuple(bands)


def _rows_of_band(
    kjt: KeyedJaggedTensor, numels: Sequence[int], band: _KeyBand, stride: int
) -> WeightedJagged:
    """The rows of all keys of a band: the first `stride` of each, filled up with rows of length
    0."""
    first = sum(numels[: band.start])
    ids = slice(first, first + sum(numels[band.start : band.stop]))
    weights, lengths = kjt.weights_or_none(), kjt.lengths().view(len(numels), kjt.stride())
    return WeightedJagged(
        kjt.values()[ids],
        _cut(lengths[band.start : band.stop], stride).reshape(-1),
        None if weights is None else weights[ids],
    )


def _cut(lengths: Tensor, stride: int) -> Tensor:
    """[F, B] as [F, stride]: each key is cut, or filled up with rows of length 0."""
    if lengths.shape[1] >= stride:
        return lengths[:, :stride]
    return F.pad(lengths, (0, stride - lengths.shape[1]))


class BatchSamples:
    """For each feature, how many rows of its output belong to the batch, and which samples have
    them."""

    def __init__(
        self, features: SparseFeatures | KeyedJaggedTensor, *, sequences: bool = False
    ) -> None:
        """Where `sequences` are looked up, their values are counted now, before the output is
        waited for."""
        of = SparseFeatures.of(features)
        self.batch_size = of.stride()
        self.counts: Mapping[str, FeatureCounts] = of.counts if sequences else {}
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
    found: dict[str, tuple[Tensor, Tensor, Tensor | None, bool]] = {}
    unique: list[StandsFor] = []
    for name, jagged in embedded.items():
        rows, lookup = samples.of(key_of[name])
        values, ids = jagged.values(), jagged.weights_or_none()
        lengths = first_rows(jagged.lengths(), rows)
        found[name] = values, lengths, ids, lookup is not None
        if lookup is not None:
            count, counted = samples.counts[key_of[name]]
            if counted is not None:
                note_counted(lengths, counted)
            unique += (values, lookup, lengths, count), (lengths, lookup, None, lookup.numel())
            if ids is not None:
                unique.append((ids, lookup, lengths, count))
    stands = iter(Unexpanded.each(unique))
    every = {}
    for name, (values, lengths, ids, is_unique) in found.items():
        if is_unique:
            values, lengths = next(stands), next(stands)
            ids = None if ids is None else next(stands)
        every[name] = JaggedTensor(values, lengths=lengths, weights=ids)
    return every


def pooled(
    found: Mapping[str, Tensor], key_of: Mapping[str, str], samples: BatchSamples
) -> KeyedTensor:
    """Each embedding's rows, those of unique samples as `Unexpanded`; in the order of `key_of`."""
    tensors: dict[str, Tensor] = {}
    unique: dict[str, StandsFor] = {}
    for name, key in key_of.items():
        rows, lookup = samples.of(key)
        tensors[name] = found[name]
        # The rows that pad one group's unique samples to another's are in no lookup, and to cut
        # them off costs the gradient more than they do.
        if lookup is None or len(found[name]) >= samples.batch_size:
            tensors[name] = first_rows(found[name], rows)
        if lookup is not None:
            unique[name] = tensors[name], lookup, None, lookup.numel()
    widths = [tensor.shape[1] for tensor in tensors.values()]
    tensors |= zip(unique, Unexpanded.each([*unique.values()]), strict=True)
    return LazyKeyedTensor(tensors, widths)

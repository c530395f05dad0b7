"""Transforms of whole rows: which ids a row keeps, in which places and with which weights."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from recd_dsi.transforms.in_place import InPlace, InRows
from recd_dsi.transforms.mixing import fold_by_torch, key_of, mix
from recd_plugins.api import Config, Context, Range
from recd_plugins.api.data import Schema
from recd_plugins.api.rows import kernel, spread_rows, with_ids

if TYPE_CHECKING:
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

__all__ = [
    "ComputeScore",
    "ComputeScoreConfig",
    "FirstX",
    "FirstXConfig",
    "Sampling",
    "SamplingConfig",
    "build_compute_score",
    "build_first_x",
    "build_sampling",
    "lengths_kept",
    "places_in_rows",
]


def places_in_rows(lengths: Tensor) -> Tensor:
    """[lengths.sum()] int64: the place of each id in its row, from 0."""
    begins = lengths.long().cumsum(0) - lengths
    behind = torch.repeat_interleave(begins, lengths)
    return torch.arange(len(behind), device=lengths.device) - behind


def lengths_kept(lengths: Tensor, kept: Tensor) -> Tensor:
    """[B] int64: how many ids each row keeps; `kept` [lengths.sum()] says which are kept."""
    if kept.is_cpu:
        left = torch.empty(len(lengths), dtype=torch.int64, device="cpu")
        _count(lengths.contiguous().numpy(), kept.numpy(), left.numpy())
        return left
    before = torch.nn.functional.pad(kept.cumsum(0), (1, 0))
    ends = lengths.long().cumsum(0)
    return before[ends] - before[ends - lengths]


@kernel
def _count(
    lengths: npt.NDArray[Any], kept: npt.NDArray[np.bool_], left: npt.NDArray[np.int64]
) -> None:
    at = 0
    for row in range(len(lengths)):
        count = 0
        for i in range(at, at + lengths[row]):
            count += kept[i]
        left[row] = count
        at += lengths[row]


@dataclass(frozen=True, kw_only=True)
class FirstXConfig(Config):
    """The length at which rows are cut."""

    n: Annotated[int, Range(ge=0, le=2**31 - 1)]
    """The number of ids that a row keeps, the first ones. Shorter rows stay as they are."""


class FirstX(InPlace):
    """Row [x_1, ..., x_k] -> [x_1, ..., x_min(k, n)], its weights likewise."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.n = n

    def of_rows(self, ids: Tensor, lengths: Tensor, weights: Tensor | None) -> InRows:
        if weights is None and ids.is_cpu:
            before = lengths.contiguous().numpy()
            left = np.minimum(before, before.dtype.type(self.n))
            kept = _first(ids.contiguous().numpy(), before, left, left.sum())
            return torch.from_numpy(kept), torch.from_numpy(left), None
        starts = lengths.long().cumsum(0) - lengths
        lengths = lengths.clamp(max=self.n)
        return (
            spread_rows(ids, starts, lengths),
            lengths,
            None if weights is None else spread_rows(weights, starts, lengths),
        )

    def schema(self, schema: Schema) -> Schema:
        return schema

    def extra_repr(self) -> str:
        return f"n={self.n}"


@kernel
def _first(
    ids: npt.NDArray[Any], lengths: npt.NDArray[Any], left: npt.NDArray[Any], numel: int
) -> npt.NDArray[Any]:
    kept = np.empty(numel, ids.dtype)
    at = begin = 0
    for row in range(len(lengths)):
        source, target = ids[begin : begin + left[row]], kept[at : at + left[row]]
        for i in range(len(source)):
            target[i] = source[i]
        begin += lengths[row]
        at += left[row]
    return kept


def build_first_x(config: FirstXConfig, context: Context) -> FirstX:
    """The record's build."""
    return FirstX(config.n)


@dataclass(frozen=True, kw_only=True)
class SamplingConfig(Config):
    """The number of ids of a row that stay."""

    share: Annotated[float, Range(gt=0, le=1)]
    """The probability that an id stays."""
    salt: Annotated[int, Range(ge=0, le=2**62)] = 0
    """A number that changes the draw."""


class Sampling(InPlace):
    """Row [x_0, x_1, ...] -> those x_i for which u(x_i, i) < share, with their weights.

    u(x, i) in [0, 1) is the upper 53 bits of fmix64(fmix64(x ^ fmix64(salt)) ^ i), times 2^-53. The
    draw depends only on the id, its place in the row and the salt, so equal rows keep the same ids
    wherever they occur.
    """

    def __init__(self, share: float, salt: int) -> None:
        super().__init__()
        self.share = share
        self.salt = salt
        self._key = key_of(salt)

    def of_rows(self, ids: Tensor, lengths: Tensor, weights: Tensor | None) -> InRows:
        kept = self._drawn(ids.long(), lengths)
        left = lengths_kept(lengths, kept).to(lengths.dtype)
        return ids[kept], left, None if weights is None else weights[kept]

    def _drawn(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """[N] bool: which ids stay."""
        if not ids.is_cpu:
            return self.by_torch(ids, lengths)
        kept = torch.empty(len(ids), dtype=torch.bool, device="cpu")
        _draw(
            ids.contiguous().numpy().view(np.uint64),
            lengths.contiguous().numpy(),
            np.int64(self._key),
            self.share,
            kept.numpy(),
        )
        return kept

    def by_torch(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """[N] bool: which ids stay; on any device."""
        drawn = fold_by_torch([ids, places_in_rows(lengths)], self._key)
        return ((drawn >> 11) & (2**53 - 1)).double() * 2.0**-53 < self.share

    def schema(self, schema: Schema) -> Schema:
        return schema

    def extra_repr(self) -> str:
        return f"share={self.share}, salt={self.salt}"


@kernel
def _draw(
    ids: npt.NDArray[np.uint64],
    lengths: npt.NDArray[Any],
    key: np.int64,
    share: float,
    kept: npt.NDArray[np.bool_],
) -> None:
    at = 0
    for row in range(len(lengths)):
        for place in range(lengths[row]):
            h = mix(mix(np.uint64(key) ^ ids[at]) ^ np.uint64(place))
            kept[at] = np.float64(h >> ELEVEN) * 2.0**-53 < share
            at += 1


ELEVEN = np.uint64(11)


def build_sampling(config: SamplingConfig, context: Context) -> Sampling:
    """The record's build."""
    return Sampling(config.share, config.salt)


@dataclass(frozen=True, kw_only=True)
class ComputeScoreConfig(Config):
    """The function that an id's weight goes through."""

    scale: float = 1.0
    """The factor of the weight's power."""
    power: Annotated[float, Range(ge=0)] = 1.0
    """The exponent of the weight."""
    offset: float = 0.0
    """The number that is added last."""


class ComputeScore(nn.Module):
    """An id's weight w -> scale * |w|^power * sign(w) + offset; w = 1 if ids have no weights.

    The resulting features are scored.
    """

    def __init__(self, scale: float = 1.0, power: float = 1.0, offset: float = 0.0) -> None:
        super().__init__()
        self.scale, self.power, self.offset = scale, power, offset

    def forward(self, features: KeyedJaggedTensor) -> KeyedJaggedTensor:
        weights = features.weights_or_none()
        if weights is None:
            weights = torch.ones_like(features.values(), dtype=torch.float32)
        if self.power != 1:
            weights = weights.abs().pow(self.power) * weights.sign()
        return with_ids(
            features,
            features.values(),
            lengths=features.lengths(),
            weights=weights * self.scale + self.offset,
        )

    def schema(self, schema: Schema) -> Schema:
        return schema.replace(
            dataclasses.replace(feature, scored=True) for feature in schema.sparse
        )

    def extra_repr(self) -> str:
        return f"scale={self.scale}, power={self.power}, offset={self.offset}"


def build_compute_score(config: ComputeScoreConfig, context: Context) -> ComputeScore:
    """The record's build."""
    return ComputeScore(config.scale, config.power, config.offset)

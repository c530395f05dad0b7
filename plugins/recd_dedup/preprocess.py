"""Transforms of ids: cut to a range, cut to the first of each row, hashed into a range."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import numba
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from recd_plugins.api import Config, Context, Range, RegistryError
from recd_plugins.api.data import Schema
from recd_plugins.api.rows import spread_rows, with_ids

if TYPE_CHECKING:
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

__all__ = [
    "Clamp",
    "ClampConfig",
    "FirstX",
    "FirstXConfig",
    "SigridHash",
    "SigridHashConfig",
    "build_clamp",
    "build_first_x",
    "build_sigrid_hash",
    "fmix64",
]


@dataclass(frozen=True, kw_only=True)
class ClampConfig(Config):
    """The range, its ends in it."""

    low: Annotated[int, Range(ge=0, le=2**62)] = 0
    """Smaller ids become this one."""
    high: Annotated[int, Range(ge=0, le=2**62)]
    """Larger ids become this one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.low > self.high:
            raise RegistryError(f"must be at least low ({self.low}), but is {self.high}.", "high")


class Clamp(nn.Module):
    """id -> min(max(id, low), high); int32 ids stay int32 where the range allows it."""

    elementwise = True

    def __init__(self, low: int, high: int) -> None:
        super().__init__()
        self.low = low
        self.high = high

    def forward(self, features: KeyedJaggedTensor) -> KeyedJaggedTensor:
        ids = features.values()
        if self.low > torch.iinfo(ids.dtype).max:
            ids = ids.long()
        return with_ids(features, ids.clamp(self.low, min(self.high, torch.iinfo(ids.dtype).max)))

    def schema(self, schema: Schema) -> Schema:
        return schema.replace(
            dataclasses.replace(
                feature, num_ids=max(self.low, min(self.high, feature.num_ids - 1)) + 1
            )
            for feature in schema.sparse
        )

    def extra_repr(self) -> str:
        return f"low={self.low}, high={self.high}"


def build_clamp(config: ClampConfig, context: Context) -> Clamp:
    """The record's build."""
    return Clamp(config.low, config.high)


@dataclass(frozen=True, kw_only=True)
class FirstXConfig(Config):
    """Where rows are cut."""

    n: Annotated[int, Range(ge=0, le=2**31 - 1)]
    """Ids that a row keeps: its first; shorter rows stay."""


class FirstX(nn.Module):
    """Row [x_1, ..., x_k] -> [x_1, ..., x_min(k, n)], its weights likewise."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.n = n

    def forward(self, features: KeyedJaggedTensor) -> KeyedJaggedTensor:
        starts, weights = features.offsets()[:-1], features.weights_or_none()
        lengths = features.lengths().clamp(max=self.n)
        return with_ids(
            features,
            spread_rows(features.values(), starts, lengths),
            lengths=lengths,
            weights=None if weights is None else spread_rows(weights, starts, lengths),
        )

    def schema(self, schema: Schema) -> Schema:
        return schema

    def extra_repr(self) -> str:
        return f"n={self.n}"


def build_first_x(config: FirstXConfig, context: Context) -> FirstX:
    """The record's build."""
    return FirstX(config.n)


Words = npt.NDArray[np.uint64]

# MurmurHash3's finalizer.
FACTORS = (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53)
FIRST, SECOND = (np.uint64(factor) for factor in FACTORS)
SHIFT = np.uint64(33)


@dataclass(frozen=True, kw_only=True)
class SigridHashConfig(Config):
    """Which hash, and how many ids come out."""

    modulo: Annotated[int, Range(ge=1, le=2**62)]
    """Ids come out in [0, modulo): the rows that an embedding table needs."""
    salt: Annotated[int, Range(ge=0, le=2**62)] = 0
    """Another salt is another hash: features that share a table collide in other places."""


class SigridHash(nn.Module):
    """id -> fmix64(id ^ fmix64(salt)) mod modulo, alike on every machine and in every version.

    fmix64 is MurmurHash3's finalizer, a bijection of 64 bits:
    `h ^= h >>> 33; h *= 0xFF51AFD7ED558CCD; h ^= h >>> 33; h *= 0xC4CEB9FE1A85EC53; h ^= h >>> 33`.
    Its result is read as a signed number, of which the remainder in [0, modulo) is taken.
    int32 ids stay int32 where modulo allows it.
    """

    elementwise = True

    def __init__(self, modulo: int, salt: int = 0) -> None:
        super().__init__()
        self.modulo = modulo
        self.salt = salt
        self._key = int(fmix64(torch.tensor([salt])))

    def forward(self, features: KeyedJaggedTensor) -> KeyedJaggedTensor:
        ids = features.values()
        hashed = self._hashed(ids.long())
        fits = self.modulo - 1 <= torch.iinfo(ids.dtype).max
        return with_ids(features, hashed.to(ids.dtype) if fits else hashed)

    def _hashed(self, ids: Tensor) -> Tensor:
        """[N] int64 ids, hashed; on CPU in one pass, on the thread that calls it."""
        if not ids.is_cpu:
            return fmix64(ids ^ self._key).remainder_(self.modulo)
        hashed = torch.empty_like(ids)
        words = ids.contiguous().numpy().view(np.uint64)
        _hash(words, np.int64(self._key), np.int64(self.modulo), hashed.numpy())
        return hashed

    def schema(self, schema: Schema) -> Schema:
        return schema.replace(
            dataclasses.replace(feature, num_ids=self.modulo) for feature in schema.sparse
        )

    def extra_repr(self) -> str:
        return f"modulo={self.modulo}, salt={self.salt}"


def fmix64(ids: Tensor) -> Tensor:
    """fmix64 of int64 ids, on any device."""
    low = 2**31 - 1  # what a shift by 33 leaves, without the sign that it drags along
    for factor in FACTORS:
        ids = ((ids >> 33) & low ^ ids) * (factor - 2**64)  # products wrap as unsigned ones do
    return (ids >> 33) & low ^ ids


@numba.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _hash(ids: Words, key: np.int64, modulo: np.int64, hashed: npt.NDArray[np.int64]) -> None:
    for i in range(ids.size):
        h = ids[i] ^ np.uint64(key)
        h = (h ^ (h >> SHIFT)) * FIRST
        h = (h ^ (h >> SHIFT)) * SECOND
        hashed[i] = np.int64(h ^ (h >> SHIFT)) % modulo  # as Python's: in [0, modulo)


def build_sigrid_hash(config: SigridHashConfig, context: Context) -> SigridHash:
    """The record's build."""
    return SigridHash(config.modulo, config.salt)

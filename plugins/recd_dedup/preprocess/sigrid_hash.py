"""SigridHash: ids of any range into [0, modulo)."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.config import Config, Range
from recd_plugins.data.schema import Schema
from recd_plugins.slots import Context
from recd_plugins.sparse.keyed import with_ids

__all__ = ["SigridHash", "SigridHashConfig", "build_sigrid_hash", "mix"]

# MurmurHash3's finalizer, its constants as int64: products wrap alike.
FIRST = 0xFF51AFD7ED558CCD - 2**64
SECOND = 0xC4CEB9FE1A85EC53 - 2**64
LOW_31 = 2**31 - 1
IN_CACHE = 2**15
"""Ids that are mixed at a time, so that the passes over them stay in the cache."""


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
        self._key = int(mix(torch.tensor([salt])))

    def forward(self, features: KeyedJaggedTensor) -> KeyedJaggedTensor:
        ids = features.values()
        hashed = ids.long() ^ self._key
        for part in hashed.split(IN_CACHE if hashed.is_cpu else max(1, hashed.numel())):
            mix(part).remainder_(self.modulo)
        fits = self.modulo - 1 <= torch.iinfo(ids.dtype).max
        return with_ids(features, hashed.to(ids.dtype) if fits else hashed)

    def schema(self, schema: Schema) -> Schema:
        return schema.replace(
            dataclasses.replace(feature, num_ids=self.modulo) for feature in schema.sparse
        )

    def extra_repr(self) -> str:
        return f"modulo={self.modulo}, salt={self.salt}"


def mix(ids: Tensor) -> Tensor:
    """fmix64 of int64 ids, in place."""
    for factor in (FIRST, SECOND):
        ids.bitwise_xor_((ids >> 33).bitwise_and_(LOW_31)).mul_(factor)
    return ids.bitwise_xor_((ids >> 33).bitwise_and_(LOW_31))


def build_sigrid_hash(config: SigridHashConfig, context: Context) -> SigridHash:
    """The record's build."""
    return SigridHash(config.modulo, config.salt)

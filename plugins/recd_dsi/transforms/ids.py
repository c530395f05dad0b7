"""Transforms of one id at a time: rows keep their lengths, and ids their weights."""

from __future__ import annotations

import dataclasses
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from recd_dsi.transforms.in_place import IdWise
from recd_dsi.transforms.mixing import SPREAD, fold, key_of
from recd_plugins.api import Config, Context, Range, RegistryError, so_many
from recd_plugins.api.data import Schema
from recd_plugins.api.rows import kernel

__all__ = [
    "Clamp",
    "ClampConfig",
    "GetLocalHour",
    "GetLocalHourConfig",
    "MapId",
    "MapIdConfig",
    "PositiveModulus",
    "PositiveModulusConfig",
    "SigridHash",
    "SigridHashConfig",
    "build_clamp",
    "build_get_local_hour",
    "build_map_id",
    "build_positive_modulus",
    "build_sigrid_hash",
]

I64 = npt.NDArray[np.int64]


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


class Clamp(IdWise):
    """id -> min(max(id, low), high); int32 ids stay int32 if the range allows it."""

    def __init__(self, low: int, high: int) -> None:
        super().__init__()
        self.low = low
        self.high = high

    def of_ids(self, ids: Tensor) -> Tensor:
        if self.low > torch.iinfo(ids.dtype).max:
            ids = ids.long()
        return ids.clamp(self.low, min(self.high, torch.iinfo(ids.dtype).max))

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
class SigridHashConfig(Config):
    """The hash, and how many ids come out."""

    modulo: Annotated[int, Range(ge=1, le=2**62)]
    """The number of ids that come out, which are in [0, modulo): as many rows as an embedding table
    needs."""
    salt: Annotated[int, Range(ge=0, le=2**62)] = 0
    """A number that changes the hash. Give features that share a table different ones, and their
    ids collide in other places."""


class SigridHash(IdWise):
    """id -> fmix64(id ^ fmix64(salt)) mod modulo, the same on every machine and in every version.

    fmix64 is MurmurHash3's finalizer (`mixing.py`). Its result is read as a signed number, and the
    remainder in [0, modulo) is taken. int32 ids stay int32 if modulo allows it.
    """

    def __init__(self, modulo: int, salt: int = 0) -> None:
        super().__init__()
        self.modulo = modulo
        self.salt = salt
        self._key = key_of(salt)

    def of_ids(self, ids: Tensor) -> Tensor:
        return _narrowed(fold([ids.long()], self._key, self.modulo), ids, self.modulo)

    def schema(self, schema: Schema) -> Schema:
        return _with_num_ids(schema, self.modulo)

    def extra_repr(self) -> str:
        return f"modulo={self.modulo}, salt={self.salt}"


def build_sigrid_hash(config: SigridHashConfig, context: Context) -> SigridHash:
    """The record's build."""
    return SigridHash(config.modulo, config.salt)


@dataclass(frozen=True, kw_only=True)
class PositiveModulusConfig(Config):
    """The number of ids that come out."""

    modulo: Annotated[int, Range(ge=1, le=2**62)]
    """The number of ids that come out, which are in [0, modulo)."""


class PositiveModulus(IdWise):
    """id -> id - modulo * floor(id / modulo): the remainder in [0, modulo), even if id < 0."""

    def __init__(self, modulo: int) -> None:
        super().__init__()
        self.modulo = modulo

    def of_ids(self, ids: Tensor) -> Tensor:
        if not ids.is_cpu:
            return _narrowed(ids.long().remainder(self.modulo), ids, self.modulo)
        left = torch.empty_like(ids, memory_format=torch.contiguous_format).long()
        _remainders(ids.contiguous().numpy(), np.int64(self.modulo), left.numpy())
        return _narrowed(left, ids, self.modulo)

    def schema(self, schema: Schema) -> Schema:
        return _with_num_ids(schema, self.modulo)

    def extra_repr(self) -> str:
        return f"modulo={self.modulo}"


@kernel
def _remainders(ids: npt.NDArray[Any], modulo: np.int64, out: I64) -> None:
    # Where the quotient of float64 is at most one off, a product is faster than a division.
    by, exact = 1.0 / modulo, 1 << 50
    for i in range(len(ids)):
        id_ = np.int64(ids[i])
        if -exact < id_ < exact:
            left = id_ - np.int64(id_ * by) * modulo
            if left < 0:
                left += modulo
            elif left >= modulo:
                left -= modulo
            out[i] = left
        else:
            out[i] = id_ % modulo


def build_positive_modulus(config: PositiveModulusConfig, context: Context) -> PositiveModulus:
    """The record's build."""
    return PositiveModulus(config.modulo)


@dataclass(frozen=True, kw_only=True)
class MapIdConfig(Config):
    """The ids that become others."""

    ids: Mapping[int, int] = field(default_factory=dict)
    """For an id, what it becomes: `{17: 1, 4: 2}`."""
    file: Path | None = None
    """A Parquet file with the columns `id` and `becomes`, both integers, instead of `ids`. Take it
    for long maps."""
    other: Annotated[int, Range(ge=0, le=2**62)] = 0
    """What every id becomes that the map does not name."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.file is None) != bool(self.ids):
            raise RegistryError("needs either `ids` or `file`.", "ids")
        for id_, becomes in self.ids.items():
            if not -(2**63) <= id_ < 2**63:
                raise RegistryError(f"no id is {id_}: ids are integers of 64 bits.", "ids")
            if not 0 <= becomes <= 2**62:
                raise RegistryError(f"id {id_} cannot become {becomes}: ids count from 0.", "ids")


class MapId(IdWise):
    """id -> ids[id], or `other` if `ids` does not name it.

    Ids that lie close together are looked up in an array, others in a hash table with at least
    twice as many cells; on CUDA, all are looked up by binary search.
    """

    def __init__(self, ids: Mapping[int, int], other: int = 0) -> None:
        super().__init__()
        self.other = other
        self.num_ids = max((other, *ids.values())) + 1
        named = np.array(sorted(ids), np.int64)
        becomes = np.array([ids[id_] for id_ in sorted(ids)], np.int64)
        self._named, self._becomes = torch.from_numpy(named), torch.from_numpy(becomes)
        self._dense = bool(
            len(named) and named[0] >= 0 and int(named[-1]) <= ARRAY_SHARE * len(named) + ARRAY
        )
        if self._dense:
            self._array = np.full(int(named[-1]) + 1, other, np.int64)
            self._array[named] = becomes
        else:
            self._cells = _hash_table(named, becomes)

    def of_ids(self, ids: Tensor) -> Tensor:
        if not ids.is_cpu:
            return self.by_search(ids.long())
        made = torch.empty(ids.numel(), dtype=torch.int64, device="cpu")
        given = ids.long().contiguous().numpy()
        if self._dense:
            _look_up(given, self._array, np.int64(self.other), made.numpy())
        else:
            _find(given, *self._cells, np.int64(self.other), made.numpy())
        return made

    def by_search(self, ids: Tensor) -> Tensor:
        """[N] int64 ids to mapped ids [N]; on any device."""
        named, becomes = (part.to(ids.device) for part in (self._named, self._becomes))
        if not len(named):
            return torch.full_like(ids, self.other)
        at = torch.searchsorted(named, ids).clamp_(max=len(named) - 1)
        return torch.where(named[at] == ids, becomes[at], self.other)

    def schema(self, schema: Schema) -> Schema:
        return _with_num_ids(schema, self.num_ids)

    def extra_repr(self) -> str:
        return f"{so_many(len(self._named), 'id')}, other={self.other}"


ARRAY, ARRAY_SHARE = 1 << 16, 8
"""An array is used if it needs at most `ARRAY_SHARE` cells per named id, and `ARRAY` more."""


def _hash_table(named: I64, becomes: I64) -> tuple[I64, I64, npt.NDArray[np.bool_]]:
    """A hash table as three arrays: ids, what they become, and whether a cell is used.

    It has at least twice as many cells as ids, a power of two; each id is in the first free cell
    from its hash on.
    """
    size = 1 << max(4, (2 * max(len(named), 1) - 1).bit_length())
    cells = np.zeros(size, np.int64), np.zeros(size, np.int64), np.zeros(size, np.bool_)
    _fill(named, becomes, *cells)
    return cells


@kernel
def _cell(id_: np.int64, mask: np.int64) -> Any:
    h = np.uint64(id_) * SPREAD
    return np.int64(h >> np.uint64(32)) & mask


@kernel
def _fill(named: I64, becomes: I64, ids: I64, made: I64, used: npt.NDArray[np.bool_]) -> None:
    mask = len(ids) - 1
    for n in range(len(named)):
        cell = _cell(named[n], mask)
        while used[cell]:
            cell = (cell + 1) & mask
        ids[cell], made[cell], used[cell] = named[n], becomes[n], True


@kernel
def _find(
    given: I64, ids: I64, made: I64, used: npt.NDArray[np.bool_], other: np.int64, out: I64
) -> None:
    mask = len(ids) - 1
    for i in range(len(given)):
        cell = _cell(given[i], mask)
        while used[cell] and ids[cell] != given[i]:
            cell = (cell + 1) & mask
        out[i] = made[cell] if used[cell] else other


@kernel
def _look_up(given: I64, array: I64, other: np.int64, out: I64) -> None:
    for i in range(len(given)):
        at = given[i]
        out[i] = array[at] if 0 <= at < len(array) else other


def build_map_id(config: MapIdConfig, context: Context) -> MapId:
    """The record's build."""
    if config.file is None:
        return MapId(config.ids, config.other)
    try:
        rows = pq.read_table(config.file, columns=["id", "becomes"])
        ids, becomes = (rows[name].cast(pa.int64()).to_pylist() for name in rows.column_names)
    except (OSError, pa.ArrowException) as error:
        raise RegistryError(
            f"{config.file} cannot be read as a Parquet file with columns `id` and `becomes` of "
            f"integers: {error}",
            "file",
        ) from error
    if not ids:
        raise RegistryError(f"{config.file} has no row, where each names an id.", "file")
    if len(set(ids)) < len(ids) or None in ids or None in becomes:
        raise RegistryError(
            f"{config.file} names an id twice, or has nulls. Have each row name another id, and "
            "what it becomes.",
            "file",
        )
    return MapId(MapIdConfig(ids=dict(zip(ids, becomes, strict=True))).ids, config.other)


@dataclass(frozen=True, kw_only=True)
class GetLocalHourConfig(Config):
    """The meaning of ids as times, and where their clock hangs."""

    zone: str
    """The name of the time zone in the IANA database: `Europe/Berlin`."""
    unit: Literal["s", "ms"] = "s"
    """The unit of the ids, which are times since 1970 in UTC."""

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            ZoneInfo(self.zone)
        except (OSError, ValueError) as error:  # ZoneInfoNotFoundError is a KeyError
            raise RegistryError(
                f"no time zone {self.zone!r} ({error}). Write one as `Europe/Berlin`.", "zone"
            ) from error
        except KeyError as error:
            raise RegistryError(
                f"no time zone {self.zone!r} is known here. Write one as `Europe/Berlin`; where "
                "the system has no zones, `pip install tzdata`.",
                "zone",
            ) from error


class GetLocalHour(IdWise):
    """A time in UTC -> the local hour, 0 to 23: floor((t + offset(t)) / 3600 s) mod 24.

    offset(t) is the zone's offset, including summer time, from 1970 to 2100; earlier and later
    times have the offset at these ends.
    """

    def __init__(self, zone: str, unit: Literal["s", "ms"] = "s") -> None:
        super().__init__()
        self.zone = zone
        self.unit = unit
        self._scale = 1000 if unit == "ms" else 1
        changes, offsets = _offsets(zone)
        self._changes, self._offsets = np.array(changes, np.int64), np.array(offsets, np.int64)

    def of_ids(self, ids: Tensor) -> Tensor:
        times = ids.long()
        if not times.is_cpu:
            return self.by_search(times)
        hours = torch.empty(times.numel(), dtype=torch.int64, device="cpu")
        _hours(
            times.contiguous().numpy(),
            np.int64(self._scale),
            self._changes,
            self._offsets,
            hours.numpy(),
        )
        return hours

    def by_search(self, times: Tensor) -> Tensor:
        """[N] int64 times to hours; on any device."""
        seconds = times.div(self._scale, rounding_mode="floor")
        changes, offsets = (
            torch.from_numpy(part).to(times.device) for part in (self._changes, self._offsets)
        )
        local = seconds + offsets[torch.searchsorted(changes, seconds, right=True)]
        return local.div(3600, rounding_mode="floor").remainder(24)

    def schema(self, schema: Schema) -> Schema:
        return _with_num_ids(schema, 24)

    def extra_repr(self) -> str:
        return f"{self.zone}, unit={self.unit}"


DAY = 86_400
LAST = 47_481 * DAY
"""2100-01-01 in UTC."""


@cache  # it takes a tenth of a second, and each reader of a process calls it
def _offsets(zone: str) -> tuple[list[int], list[int]]:
    """The times at which a zone's offset changes, and the offsets before each change and after the
    last one, all in seconds."""
    info, epoch = ZoneInfo(zone), datetime(1970, 1, 1, tzinfo=UTC)

    def offset(second: int) -> int:
        local = (epoch + timedelta(seconds=second)).astimezone(info).utcoffset()
        assert local is not None  # a zone has one
        return int(local.total_seconds())

    changes, offsets = [], [offset(0)]
    for day in range(DAY, LAST + 1, DAY):
        if (after := offset(day)) == offsets[-1]:
            continue
        # No zone changes twice a day: the old offset holds up to some second of the day.
        before = offsets[-1]
        seconds = range(day - DAY, day + 1)
        changes.append(seconds[bisect_left(seconds, True, key=lambda s: offset(s) != before)])
        offsets.append(after)
    return changes, offsets


@kernel
def _hours(times: I64, scale: np.int64, changes: I64, offsets: I64, hours: I64) -> None:
    at = 0  # times that follow each other mostly lie between the same changes
    for i in range(len(times)):
        second = times[i] if scale == 1 else times[i] // 1000
        if (at and second < changes[at - 1]) or (at < len(changes) and second >= changes[at]):
            at = np.searchsorted(changes, second, side="right")
        hours[i] = (second + offsets[at]) // 3600 % 24


def build_get_local_hour(config: GetLocalHourConfig, context: Context) -> GetLocalHour:
    """The record's build."""
    return GetLocalHour(config.zone, config.unit)


def _with_num_ids(schema: Schema, num_ids: int) -> Schema:
    return schema.replace(
        dataclasses.replace(feature, num_ids=num_ids) for feature in schema.sparse
    )


def _narrowed(ids: Tensor, like: Tensor, num_ids: int) -> Tensor:
    """The ids, as int32 again if `like` is int32 and the range allows it."""
    if like.dtype == ids.dtype:
        return ids
    return ids.to(like.dtype) if num_ids - 1 <= torch.iinfo(like.dtype).max else ids

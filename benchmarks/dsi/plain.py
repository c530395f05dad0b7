"""Each transform in plain Python, row by row, as its formula says: what it is held to in the tests,
and what it is measured against."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

__all__ = [
    "PLAIN",
    "PLAIN_DENSE",
    "box_cox",
    "bucketize",
    "cartesian",
    "clamp",
    "clamp_dense",
    "compute_score",
    "enumerated",
    "first_x",
    "get_local_hour",
    "intersection",
    "logit",
    "map_id",
    "n_gram",
    "onehot",
    "positive_modulus",
    "sampling",
    "sigrid_hash",
    "union",
]

Row = Sequence[int]
Rows = list[list[int]]

WORD = 2**64 - 1


def fmix64(h: int) -> int:
    """MurmurHash3's finalizer, as it is published."""
    h = (h ^ (h >> 33)) * 0xFF51AFD7ED558CCD & WORD
    h = (h ^ (h >> 33)) * 0xC4CEB9FE1A85EC53 & WORD
    return h ^ (h >> 33)


def mixed(ids: Sequence[int], salt: int) -> int:
    """h = fmix64(salt); for x of ids: h = fmix64(h ^ x)."""
    h = fmix64(salt)
    for id_ in ids:
        h = fmix64(h ^ (id_ & WORD))
    return h


def signed(h: int) -> int:
    return h - 2**64 if h >= 2**63 else h


def sigrid_hash(rows: Sequence[Row], modulo: int, salt: int = 0) -> Rows:
    return [[signed(mixed((id_,), salt)) % modulo for id_ in row] for row in rows]


def positive_modulus(rows: Sequence[Row], modulo: int) -> Rows:
    return [[id_ % modulo for id_ in row] for row in rows]


def clamp(rows: Sequence[Row], low: int, high: int) -> Rows:
    return [[min(max(id_, low), high) for id_ in row] for row in rows]


def map_id(rows: Sequence[Row], ids: Mapping[int, int], other: int = 0) -> Rows:
    return [[ids.get(id_, other) for id_ in row] for row in rows]


def get_local_hour(rows: Sequence[Row], zone: str, unit: str = "s") -> Rows:
    info, epoch = ZoneInfo(zone), datetime(1970, 1, 1, tzinfo=UTC)
    scale = 1000 if unit == "ms" else 1
    return [
        [(epoch + timedelta(seconds=time // scale)).astimezone(info).hour for time in row]
        for row in rows
    ]


def first_x(rows: Sequence[Row], n: int) -> Rows:
    return [list(row[:n]) for row in rows]


def sampling(rows: Sequence[Row], share: float, salt: int = 0) -> Rows:
    return [
        [
            id_
            for place, id_ in enumerate(row)
            if (mixed((id_, place), salt) >> 11) * 2.0**-53 < share
        ]
        for row in rows
    ]


def compute_score(
    weights: Sequence[Sequence[float]], scale: float, offset: float
) -> list[list[float]]:
    """Of a power of 1."""
    return [[weight * scale + offset for weight in row] for row in weights]


def n_gram(rows: Sequence[Row], n: int, modulo: int, salt: int = 0) -> Rows:
    return [
        [signed(mixed(row[i : i + n], salt)) % modulo for i in range(len(row) - n + 1)]
        for row in rows
    ]


def cartesian(left: Sequence[Row], right: Sequence[Row], modulo: int, salt: int = 0) -> Rows:
    return [
        [signed(mixed((a, b), salt)) % modulo for a in one for b in other]
        for one, other in zip(left, right, strict=True)
    ]


def intersection(left: Sequence[Row], right: Sequence[Row]) -> Rows:
    found = []
    for one, other in zip(left, right, strict=True):
        there = set(other)
        found.append([id_ for id_ in one if id_ in there])
    return found


def union(left: Sequence[Row], right: Sequence[Row]) -> Rows:
    found = []
    for one, other in zip(left, right, strict=True):
        there = set(one)
        found.append([*one, *(id_ for id_ in other if id_ not in there)])
    return found


def enumerated(rows: Sequence[Row], longest: int) -> Rows:
    return [[min(place, longest - 1) for place, _ in enumerate(row)] for row in rows]


def float32(number: float) -> float:
    """The nearest float32."""
    rounded: float = struct.unpack("f", struct.pack("f", number))[0]
    return rounded


def bucketize(column: Sequence[float], borders: Sequence[float]) -> list[int]:
    return [sum(border < number for border in borders) for number in column]


def logit(column: Sequence[float], eps: float = 1e-6) -> list[float]:
    found = []
    for number in column:
        p = min(max(number, eps), 1 - eps)
        found.append(math.log(p / (1 - p)))
    return found


def box_cox(
    column: Sequence[float], lam: float = 0.0, shift: float = 0.0, least: float = 1e-6
) -> list[float]:
    found = []
    for number in column:
        log = math.log(max(number + shift, least))
        found.append(math.expm1(lam * log) / lam if lam else log)
    return found


def onehot(column: Sequence[float], n: int) -> list[list[float]]:
    return [[float(number == i) for i in range(n)] for number in column]


def clamp_dense(column: Sequence[float], low: float, high: float) -> list[float]:
    return [min(max(number, low), high) for number in column]


PLAIN: dict[str, Callable[..., Any]] = {
    "sigrid_hash": sigrid_hash,
    "positive_modulus": positive_modulus,
    "clamp": clamp,
    "map_id": map_id,
    "get_local_hour": get_local_hour,
    "first_x": first_x,
    "sampling": sampling,
    "n_gram": n_gram,
    "cartesian": cartesian,
    "intersection": intersection,
    "union": union,
    "enumerate": enumerated,
}
"""By record; those of pairs take two features."""

PLAIN_DENSE: dict[str, Callable[..., Any]] = {
    "bucketize": bucketize,
    "logit": logit,
    "box_cox": box_cox,
    "onehot": onehot,
    "clamp_dense": clamp_dense,
}

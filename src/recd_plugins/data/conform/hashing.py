"""XXH64 of ids: 64 bits that are the same in every process, on every machine, forever.

An integer is hashed as its 8 bytes, lowest first (two's complement if signed). A text is hashed as
its UTF-8 bytes, except that a text that spells a 64-bit integer the way `str` does is hashed as
that integer: 12 and "12" are one id, because one file of a table may hold the integer and the next
the text. So `hash_integers` of 12 is `xxhash.xxh64(struct.pack("<q", 12), seed)`, and `hash_texts`
of "ab" is `xxhash.xxh64(b"ab", seed)`.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from recd_plugins.compat.kernels import kernel
from recd_plugins.sparse.rows.bits import word_of

__all__ = ["combine", "hash_integers", "hash_texts"]

U64: TypeAlias = npt.NDArray[np.uint64]

P1 = np.uint64(11400714785074694791)
P2 = np.uint64(14029467366897019727)
P3 = np.uint64(1609587929392839161)
P4 = np.uint64(9650029242287828579)
P5 = np.uint64(2870177450012600261)
BITS = np.uint64(64)
BYTE = np.uint64(8)
TEN = np.uint64(10)
MOST = np.uint64(2**64 - 1)
LEAST = np.uint64(2**63)
MINUS, ZERO, NINE = np.uint8(45), np.uint8(48), np.uint8(57)
LONGEST = 20
"""The number of digits of 2^64 - 1, and of characters of -2^63."""


@kernel
def _rotate(x: Any, by: int) -> Any:
    return (x << np.uint64(by)) | (x >> (BITS - np.uint64(by)))


@kernel
def _round(lane: Any, word: Any) -> Any:
    return _rotate(lane + word * P2, 31) * P1


@kernel
def _avalanche(x: Any) -> Any:
    x = (x ^ (x >> np.uint64(33))) * P2
    x = (x ^ (x >> np.uint64(29))) * P3
    return x ^ (x >> np.uint64(32))


@kernel
def _hash_word(word: Any, seed: Any) -> Any:
    """XXH64 of 8 bytes: a bijection, so that no two integers share a hash."""
    x = (seed + P5 + BYTE) ^ _round(np.uint64(0), word)
    return _avalanche(_rotate(x, 27) * P1 + P4)


@kernel
def _hash_bytes(data: npt.NDArray[np.uint8], start: int, stop: int, seed: Any) -> Any:
    at = start
    if stop - start >= 32:
        one, two, three, four = seed + P1 + P2, seed + P2, seed, seed - P1
        while stop - at >= 32:
            one = _round(one, word_of(data, at, 8))
            two = _round(two, word_of(data, at + 8, 8))
            three = _round(three, word_of(data, at + 16, 8))
            four = _round(four, word_of(data, at + 24, 8))
            at += 32
        x = _rotate(one, 1) + _rotate(two, 7) + _rotate(three, 12) + _rotate(four, 18)
        for lane in (one, two, three, four):
            x = (x ^ _round(np.uint64(0), lane)) * P1 + P4
    else:
        x = seed + P5
    x += np.uint64(stop - start)
    while stop - at >= 8:
        x = _rotate(x ^ _round(np.uint64(0), word_of(data, at, 8)), 27) * P1 + P4
        at += 8
    if stop - at >= 4:
        x = _rotate(x ^ (word_of(data, at, 4) * P1), 23) * P2 + P3
        at += 4
    while at < stop:
        x = _rotate(x ^ (np.uint64(data[at]) * P5), 11) * P1
        at += 1
    return _avalanche(x)


@kernel
def _spelt(data: npt.NDArray[np.uint8], start: int, stop: int) -> tuple[bool, np.uint64]:
    """Whether a text is what `str` makes of an integer in [-2^63, 2^64), and the 64 bits of that
    integer."""
    none = (False, np.uint64(0))
    at = start
    negative = stop > start and data[start] == MINUS
    if negative:
        at += 1
    if not 0 < stop - at <= LONGEST:
        return none
    if data[at] == ZERO and (negative or stop - at > 1):
        return none
    number = np.uint64(0)
    while at < stop:
        if not ZERO <= data[at] <= NINE:
            return none
        digit = np.uint64(data[at] - ZERO)
        if number > (MOST - digit) // TEN:
            return none
        number = number * TEN + digit
        at += 1
    if negative:
        if number > LEAST:
            return none
        number = np.uint64(0) - number
    return True, number


@kernel
def _hash_words(words: U64, seed: np.uint64, out: U64) -> None:
    for i in range(len(words)):
        out[i] = _hash_word(words[i], seed)


@kernel
def _hash_slices(
    data: npt.NDArray[np.uint8], offsets: npt.NDArray[Any], seed: np.uint64, out: U64
) -> None:
    for i in range(len(out)):
        start, stop = offsets[i], offsets[i + 1]
        spells, number = _spelt(data, start, stop)
        out[i] = _hash_word(number, seed) if spells else _hash_bytes(data, start, stop, seed)


def hash_integers(words: npt.NDArray[Any], seed: int = 0) -> U64:
    """The hash of each of [N] 64-bit integers."""
    out = np.empty(len(words), np.uint64)
    _hash_words(np.ascontiguousarray(words).view(np.uint64), np.uint64(seed), out)
    return out


def hash_texts(data: npt.NDArray[np.uint8], offsets: npt.NDArray[Any], seed: int = 0) -> U64:
    """The hash of each text; text i is `data[offsets[i] : offsets[i + 1]]`."""
    out = np.empty(len(offsets) - 1, np.uint64)
    _hash_slices(data, offsets, np.uint64(seed), out)
    return out


def combine(parts: list[U64]) -> U64:
    """One hash of several, which depends on their order: h = XXH64(h) ^ part, from the first on."""
    whole = parts[0]
    for part in parts[1:]:
        whole = hash_integers(whole) ^ part
    return whole

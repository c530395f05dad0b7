"""Kernels that read a page of a column of lists: where each list begins, and its numbers.

Parquet stores two levels with each value. The repetition level is 0 where a list begins. The
definition level is `full` where there is a number; if it is lower, the list is empty or missing, or
the number is missing. Levels are stored as bands of one level and as groups of eight levels. Here
each bit of the levels becomes a plane: 64 values a word.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from recd_plugins.compat.kernels import kernel
from recd_plugins.data.parquet.page_bytes import call_zstd, crc32
from recd_plugins.sparse.rows.bits import first_one, ones, word_at, word_of
from recd_plugins.sparse.rows.memory import array8

__all__ = ["DecodedLists", "StoredPages", "read_page", "read_zstd_pages"]

I64 = npt.NDArray[np.int64]
I32 = npt.NDArray[np.int32]
U64 = npt.NDArray[np.uint64]
U8 = npt.NDArray[np.uint8]
Bools = npt.NDArray[np.bool_]
Numbers = npt.NDArray[Any]

WORD = 64
ALL = np.uint64(2**64 - 1)
FAILED = (-1, 0, 0)
WIDEST = 32
"""The most bits of a place in a dictionary."""


# numba keeps the types of arguments with what it compiled: were they classes of ours, an older
# version's would not be found. So kernels take what these hold as plain tuples.


class DecodedLists(NamedTuple):
    """The lists of a column of N rows, to be filled by its pages."""

    full: int
    """The definition level of a number."""
    may_lack: bool
    """Whether lists may be missing: those of definition level 0."""
    dictionary: Numbers
    """The numbers that pages may look up."""
    offsets: I32
    """[N + 1] where in the numbers each list begins."""
    there: U8
    """A bit for each list, set before: cleared where it is missing."""
    numbers: Numbers
    """The numbers of all lists."""


class StoredPages(NamedTuple):
    """P pages as they lie in a file, compressed."""

    places: I64
    """[P, 3] the places of their bytes, as in `Addresses`."""
    sizes: I64
    """[P] how many bytes they are decompressed."""
    checksums: I64
    """[P] the CRC-32 of the stored bytes, or -1."""
    counts: I64
    """[P] how many values they have."""
    coded: Bools
    """[P] whether their values are places in the dictionary."""


@kernel
def read_zstd_pages(zstd: int, pages: Any, scratch: U8, lists: Any) -> Any:
    """`read_page` for all of a column's `StoredPages`. `zstd` is the address of libzstd's function,
    and a page decompressed fits in `scratch`."""
    places, sizes, checksums, counts, coded = pages
    done = (np.int64(0), np.int64(0), np.int64(0))
    for page in range(len(places)):
        data, size = array8(places[page]), sizes[page]
        if checksums[page] >= 0 and crc32(data) != checksums[page]:
            return FAILED
        if call_zstd(zstd, scratch.ctypes.data, size, places[page, 0], len(data)) != size:
            return FAILED
        done = read_page(scratch[:size], counts[page], coded[page], lists, done)
        if done[0] < 0:
            break
    return done


@kernel
def read_page(data: U8, count: int, coded: bool, lists: Any, done: Any) -> Any:
    """Reads a page of `count` values into the `DecodedLists`.

    `done` are the lists, the numbers and the missing lists that were read before. Returns those
    that are read then: -1 lists if the page is damaged, a number is missing, or there is no room.
    """
    full, may_lack, dictionary, offsets, there, numbers = lists
    words = count // WORD + 2
    goes_on, low = np.empty(words, np.uint64), np.empty(words, np.uint64)
    high = np.zeros(words, np.uint64)
    at = _read_levels(data, np.int64(0), 1, count, goes_on, high)
    if at >= 0:
        at = _read_levels(data, at, 1 if full == 1 else 2, count, low, high)
    if at < 0:
        return FAILED
    now = _note_lists(goes_on, low, high, count, full, may_lack, offsets, there, done)
    if now[0] < 0 or now[1] > len(numbers):
        return FAILED
    if not _read_numbers(data, at, coded, dictionary, numbers[done[1] : now[1]]):
        return FAILED
    offsets[now[0]] = now[1]
    return now


@kernel
def _read_levels(data: U8, at: int, width: int, count: int, low: U64, high: U64) -> Any:
    """Sets the planes to the levels, of `width` bits, that begin at a place with their size in
    bytes. Returns where they end, or -1."""
    if at + 4 > len(data):
        return -1
    end = at + 4 + np.int64(word_of(data, at, 4))
    at += 4
    if end > len(data):
        return -1
    words = count // WORD + 2
    low[:words] = 0
    if width == 2:
        high[:words] = 0
    value = np.int64(0)
    while value < count:
        head, at = _read_number(data, at, end)
        if at < 0:
            return -1
        if head & 1:
            if (head >> 1) * width > end - at:
                return -1
            for _ in range(min(head >> 1, (count - value + 7) // 8)):
                packed = np.uint64(data[np.uintp(at)])
                if width == 2:
                    packed |= np.uint64(data[np.uintp(at + 1)]) << np.uint64(8)
                    _put(high, value, _every_other(packed >> np.uint64(1)))
                    packed = _every_other(packed)
                _put(low, value, packed)
                value += 8
                at += width
        else:
            band = min(head >> 1, count - value)
            if band == 0 or at >= end or data[at] >= 1 << width:
                return -1
            if data[at] & 1:
                _fill(low, value, band)
            if data[at] & 2:
                _fill(high, value, band)
            value += band
            at += 1
    return end


@kernel
def _read_number(data: U8, at: int, end: int) -> Any:
    """A number of 7 bits a byte, and where it ends, or -1."""
    number = shift = np.int64(0)
    while at < end and shift < 35:
        byte = np.int64(data[at])
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at
        shift += 7
    return number, -1


@kernel
def _every_other(packed: np.uint64) -> np.uint64:
    """Bits 0, 2, …, 14 of a word, side by side."""
    packed &= np.uint64(0x5555)
    packed = (packed | packed >> np.uint64(1)) & np.uint64(0x3333)
    packed = (packed | packed >> np.uint64(2)) & np.uint64(0x0F0F)
    return (packed | packed >> np.uint64(4)) & np.uint64(0xFF)


@kernel
def _put(plane: U64, first: int, byte: np.uint64) -> None:
    """Sets 8 bits, which are 0, of a plane."""
    word, shift = np.uintp(first // WORD), np.uint64(first % WORD)
    plane[word] |= byte << shift
    if shift > np.uint64(WORD - 8):
        plane[word + np.uintp(1)] |= byte >> (np.uint64(WORD) - shift)


@kernel
def _fill(plane: U64, first: int, count: int) -> None:
    """Sets bits of a plane to 1."""
    end = first + count
    while first < end:
        shift = first % WORD
        some = min(WORD - shift, end - first)
        plane[first // WORD] |= (ALL >> np.uint64(WORD - some)) << np.uint64(shift)
        first += some


@kernel
def _note_lists(
    goes_on: U64,
    low: U64,
    high: U64,
    count: int,
    full: int,
    may_lack: bool,
    offsets: I32,
    there: U8,
    done: Any,
) -> Any:
    """Notes where the lists of a page begin, and which are missing; its levels are in planes."""
    rows, numel, missing = done
    for word in range((count + WORD - 1) // WORD):
        within = ALL >> np.uint64(max(0, WORD - (count - WORD * word)))
        begins = ~goes_on[word] & within
        number = _of_level(low[word], high[word], full) & within
        lacks = _of_level(low[word], high[word], 0) & within
        empty = lacks
        if may_lack:
            empty |= _of_level(low[word], high[word], 1) & within
        else:
            lacks = np.uint64(0)
        # A value is a number, or all there is of its list.
        if number | (empty & begins) != within:
            return FAILED
        # The first list of all begins with the first value.
        if rows == 0 and not begins & np.uint64(1):
            return FAILED
        if rows + int(ones(begins)) >= len(offsets):
            return FAILED
        while begins:
            bit = first_one(begins)
            below = (np.uint64(1) << bit) - np.uint64(1)
            offsets[np.uintp(rows)] = numel + int(ones(number & below))
            if (lacks >> bit) & np.uint64(1):
                there[rows >> 3] &= ~np.uint8(1 << (rows & 7))
                missing += 1
            rows += 1
            begins &= begins - np.uint64(1)
        numel += int(ones(number))
    return rows, numel, missing


@kernel
def _of_level(low: np.uint64, high: np.uint64, level: int) -> np.uint64:
    """The values of one level, of the 64 of a word."""
    return (low if level & 1 else ~low) & (high if level & 2 else ~high)


@kernel
def _read_numbers(data: U8, at: int, coded: bool, dictionary: Numbers, into: Numbers) -> Any:
    """Reads the numbers of a page, which begin at a place; False if they are others than the levels
    say, or not in the dictionary."""
    if coded:
        return _look_up(data, at, dictionary, into)
    if len(data) - at != len(into) * into.itemsize:
        return False
    whole = into.view(np.uint8)
    for i in range(np.uintp(len(whole))):
        whole[i] = data[np.uintp(at) + i]
    return True


@kernel
def _look_up(data: U8, at: int, dictionary: Numbers, into: Numbers) -> Any:
    """Reads numbers that are stored as places in the dictionary."""
    if at >= len(data):
        return len(into) == 0
    width, end = np.int64(data[at]), np.int64(len(data))
    at += 1
    if width > WIDEST:
        return False
    mask = (np.uint64(1) << np.uint64(width)) - np.uint64(1)
    known = np.uint64(len(dictionary))
    value, count = 0, len(into)
    while value < count:
        head, at = _read_number(data, at, end)
        if at < 0:
            return False
        if head & 1:
            if (head >> 1) * width > end - at:
                return False
            some = min(8 * (head >> 1), count - value)
            for i in range(some):
                bit = i * width
                byte = at + (bit >> 3)
                # In this loop and not in a function: it would take four times as long.
                if byte + WORD // 8 <= end:
                    word = word_at(data, byte)
                else:
                    word = word_of(data, byte, end - byte)
                place = word >> np.uint64(bit & 7) & mask
                if place >= known:
                    return False
                into[np.uintp(value + i)] = dictionary[place]
            at += (head >> 1) * width
        else:
            some = min(head >> 1, count - value)
            size = (width + 7) // 8
            if some == 0 or size > end - at:
                return False
            place = word_of(data, at, size)
            if place > mask or place >= known:
                return False
            into[value : value + some] = dictionary[place]
            at += int(size)
        value += some
    return True

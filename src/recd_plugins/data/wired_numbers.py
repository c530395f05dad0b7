"""Packs the numbers of many tensors into one body, in as few bytes as each tensor needs, and
unpacks them.

One call packs, and one unpacks, all tensors of a batch: in every call a thread gives up Python's
lock, and in a worker others wait for it.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recd_plugins.compat.kernels import kernel
from recd_plugins.errors import PluginError
from recd_plugins.sparse.rows.memory import array8, array32, array64

__all__ = ["ALIGNED", "NARROW", "Layout", "Narrowed", "Stored"]

Numbers = NDArray[Any]
I64 = NDArray[np.int64]

ALIGNED = 64
"""Bytes: tensors begin at multiples of this, in the body and, like torch's own, in memory."""
INTEGERS = (np.uint8, np.int8, np.uint16, np.int16, np.uint32, np.int32)
NARROW: tuple[np.dtype[Any], ...] = tuple(map(np.dtype, INTEGERS))
"""The types in which wider whole numbers may be sent: the first one that can hold all of them."""
ALONE, AS_THEY_ARE = len(NARROW), len(NARROW) + 1
"""How numbers may be sent other than in a type of `NARROW`: one number that stands for all, or all
of them as they are."""
LEAST = np.array([np.iinfo(kind).min for kind in INTEGERS])
MOST = np.array([np.iinfo(kind).max for kind in INTEGERS])
SIZES = np.array([kind.itemsize for kind in NARROW])
LARGEST = 1 << 30
"""The most bytes that the tensors of a body may have in memory."""
IN_BODY, COPIED, KEPT = range(3)
"""Whose memory the numbers of a tensor have: the body's, that of the copies, or that of the copies
which are kept."""
BYTES, WHOLE = 0, 1
"""The kinds of numbers: those whose bits are compared, and integers."""
KINDS = {torch.int32: WHOLE, torch.int64: WHOLE}
TYPES = {
    kind: torch.empty(0, dtype=kind, device="cpu").numpy().dtype
    for kind in (
        *(torch.bool, torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.uint8, torch.uint16, torch.uint32, torch.uint64),
        *(torch.float16, torch.float32, torch.float64),
    )
}
"""numpy's of torch's."""


class Narrowed:
    """Tensors that are to be packed into one body."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._held = [tensor.contiguous() for tensor in tensors]
        kinds = [tensor.dtype for tensor in self._held]
        if other := {*kinds} - TYPES.keys():
            raise PluginError(
                f"a tensor of {', '.join(map(str, other))} cannot be sent between processes. Make "
                "another, or choose `reader: local`."
            )
        self.types = [TYPES[kind] for kind in kinds]
        """The types of their numbers."""
        places = [
            (tensor.data_ptr(), tensor.numel(), kind.itemsize, KINDS.get(of, BYTES))
            for tensor, kind, of in zip(self._held, self.types, kinds, strict=True)
        ]
        self._places = np.array(places, np.int64).reshape(-1, 4)
        self._begins = np.empty((len(places) + 1, 2), np.int64)
        _lay_out(self._places, self._begins)
        self.stored = [
            None if code == ALONE else kind if code == AS_THEY_ARE else NARROW[code]
            for kind, code in zip(self.types, self._begins[1:, 1].tolist(), strict=True)
        ]
        """The types in which they are sent; None if all numbers are the same, which is sent
        once."""

    def body(self, sides: Sequence[int]) -> Numbers:
        """The shapes, and all numbers after them."""
        first = -(-8 * len(sides) // ALIGNED) * ALIGNED
        body: Numbers = np.empty(first + int(self._begins[-1, 0]), np.uint8)
        _write(np.array(sides, np.int64), self._places, self._begins, body)
        return body


class Stored(NamedTuple):
    """What a head says of a tensor in a body."""

    name: str
    wide: np.dtype[Any]
    """The type of its numbers."""
    narrow: np.dtype[Any] | None
    """The type that they have in the body; None if all are the same number, which is sent once."""
    dimensions: int


class Layout:
    """How the tensors of a head lie in each body that comes with it.

    Numbers are copied where they have another type in the body, or are not aligned there. Copies
    share one block of memory, but those of the tensors that are `kept`, which are always copied,
    have another: a trainer that keeps them keeps nothing else.
    """

    def __init__(self, tensors: Sequence[Stored], *, kept: Container[str]) -> None:
        self._tensors = tensors
        self._num_sides = sum(one.dimensions for one in tensors)
        rows = []
        for one in tensors:
            stored, apart = one.narrow or one.wide, one.name in kept
            sizes = one.wide.itemsize, stored.itemsize
            kinds = stored.kind == "i", one.narrow is None, apart or one.narrow != one.wide, apart
            rows.append((one.dimensions, *sizes, *kinds))
        self._table = np.array(rows, np.int64).reshape(-1, 7)
        """By tensor: its dimensions, the bytes of a number in memory and in the body, and whether
        it is signed, one stands for all, it is copied in any case, and kept."""

    def numbers(self, body: Tensor) -> tuple[list[Numbers], int]:
        """The numbers of each tensor, and how many bytes they have in their own types; raises
        `ValueError` if a body has others than these."""
        source = body.numpy()
        if len(source) < 8 * self._num_sides:
            raise ValueError(f"it has {len(source)} bytes, which its sizes alone need")
        shapes = source[: 8 * self._num_sides].view(np.int64)
        places = np.empty((len(self._table) + 1, 4), np.int64)
        wrong = _find(source, shapes, self._table, body.data_ptr() % ALIGNED == 0, places)
        sides = shapes.tolist()
        if wrong >= 0:
            raise ValueError(self._why(wrong, sides, len(source)))
        *found, (_, room, num_bytes, room_of_kept) = places.tolist()
        # Aligned as torch's own: with floats that lie otherwise, sums differ in their last bits.
        blocks = [
            torch.empty(size, dtype=torch.uint8, device="cpu") for size in (room, room_of_kept)
        ]
        memories = [source, *(block.numpy() for block in blocks)]
        numbers, at = [], 0
        for (_, wide, _, dimensions), (_, first, _, whose) in zip(
            self._tensors, found, strict=True
        ):
            shape = sides[at : at + dimensions]
            at += dimensions
            numbers.append(np.ndarray(shape, wide, memories[whose], first))
        _widen(source, self._table, places, *(block.data_ptr() for block in blocks))
        return numbers, num_bytes

    def _why(self, wrong: int, sides: Sequence[int], size: int) -> str:
        """Why a body of this size has other tensors: the first of them that does not fit, or all
        together."""
        if wrong == len(self._tensors):
            return f"it has {size} bytes, and its tensors do not end there"
        first = sum(one.dimensions for one in self._tensors[:wrong])
        one = self._tensors[wrong]
        return (
            f"with {one.name}, of shape {[*sides[first : first + one.dimensions]]}, it takes over "
            f"the {size} bytes that are there, or over {LARGEST} in memory"
        )


@kernel
def _lay_out(places: I64, begins: I64) -> None:
    """Where the numbers of each tensor begin, and in which form they travel. The last row has where
    they end."""
    begins[0, 0] = 0
    for t in range(len(places)):
        count, size, kind = places[t, 1], places[t, 2], places[t, 3]
        code = AS_THEY_ARE
        if count * size > ALIGNED and size == 8:
            code = _whole(array64(places[t]), size) if kind == WHOLE else _bits(array64(places[t]))
        elif count * size > ALIGNED and size == 4:
            code = _whole(array32(places[t]), size) if kind == WHOLE else _bits(array32(places[t]))
        begins[t + 1, 1] = code
        stored = 1 if code == ALONE else count
        stored *= size if code >= ALONE else SIZES[code]
        begins[t + 1, 0] = begins[t, 0] + (stored + ALIGNED - 1) // ALIGNED * ALIGNED


@kernel
def _whole(numbers: Numbers, size: int) -> int:
    low = high = numbers[0]
    for number in numbers:
        low, high = min(low, number), max(high, number)
    if low == high:
        return ALONE
    for code in range(len(SIZES)):
        if LEAST[code] <= low and high <= MOST[code] and SIZES[code] < size:
            return code
    return AS_THEY_ARE


@kernel
def _bits(numbers: Numbers) -> int:
    first = numbers[0]
    if numbers[-1] == first:
        differ = False
        for number in numbers:
            differ |= number != first
        if not differ:
            return ALONE
    return AS_THEY_ARE


@kernel
def _write(sides: I64, places: I64, begins: I64, body: Numbers) -> None:
    """Write sizes and numbers, with zeros between them, so that the same tensors make the same
    bytes."""
    first = len(body) - begins[-1, 0]
    body[: 8 * len(sides)].view(np.int64)[:] = sides
    body[8 * len(sides) : first] = 0
    for t in range(len(places)):
        count, size, code = places[t, 1], places[t, 2], begins[t + 1, 1]
        out = body[first + begins[t, 0] : first + begins[t + 1, 0]]
        if code >= ALONE:
            end = size if code == ALONE else count * size
            out[:end] = array8(places[t])[:end]
        else:
            end = count * SIZES[code]
            if size == 8:
                _narrow(array64(places[t]), SIZES[code], out)
            else:
                _narrow(array32(places[t]), SIZES[code], out)
        out[end:] = 0


@kernel
def _narrow(numbers: Numbers, size: int, out: Numbers) -> None:
    """Write the lowest bytes of each number, which hold the whole number."""
    if size == 1:
        for i in range(len(numbers)):
            out[i] = np.uint8(numbers[i])
    elif size == 2:
        out16 = out.view(np.uint16)
        for i in range(len(numbers)):
            out16[i] = np.uint16(numbers[i])
    else:
        out32 = out.view(np.uint32)
        for i in range(len(numbers)):
            out32[i] = np.uint32(numbers[i])


@kernel
def _find(body: Numbers, sides: I64, table: I64, aligned: bool, places: I64) -> int:
    """Write a row of places for each tensor: where its numbers begin in the body, and in the memory
    that they are to have, how many there are, and whose memory that is. The last row has where the
    body ends, the bytes of all tensors, and those of both blocks of copies.

    Returns the first tensor that does not fit, one behind the last if the body does not end with
    them, or -1.
    """
    first = (8 * len(sides) + ALIGNED - 1) // ALIGNED * ALIGNED
    side = num_bytes = 0
    rooms = np.zeros(3, np.int64)
    for t in range(len(table)):
        dimensions, size, stored, _, alone, copied, kept = table[t]
        count = 1
        for _ in range(dimensions):
            if not 0 <= sides[side] <= LARGEST or count > LARGEST:
                return t
            count *= sides[side]
            side += 1
        num_bytes += min(count, LARGEST + 1) * size
        stop = first + (1 if alone else min(count, LARGEST + 1)) * stored
        if num_bytes > LARGEST or stop > len(body):
            return t
        whose = IN_BODY if aligned and not copied else KEPT if kept else COPIED
        places[t] = first, first if whose == IN_BODY else rooms[whose], count, whose
        rooms[whose] += (count * size + ALIGNED - 1) // ALIGNED * ALIGNED
        first = (stop + ALIGNED - 1) // ALIGNED * ALIGNED
    places[-1] = first, rooms[COPIED], num_bytes, rooms[KEPT]
    return -1 if first == len(body) else len(table)


@kernel
def _widen(body: Numbers, table: I64, places: I64, copies: int, kept: int) -> None:
    """Copy the numbers that are not used where they lie in the body to the blocks at two
    addresses."""
    for t in range(len(table)):
        size, stored, signed, alone = table[t, 1], table[t, 2], table[t, 3], table[t, 4]
        begin, to, count, whose = places[t]
        if whose == IN_BODY:
            continue
        place = np.array([(kept if whose == KEPT else copies) + to, count, size])
        source = body[begin : begin + (1 if alone else count) * stored]
        if alone and size == 8:
            array64(place)[:] = source.view(np.int64)[0]
        elif alone and size == 4:
            array32(place)[:] = source.view(np.int32)[0]
        elif alone:
            out = array8(place)
            for i in range(len(out)):
                out[i] = source[i % size]
        elif stored == size:
            array8(place)[:] = source
        elif size == 8:
            _copy_wide(source, stored, signed, array64(place))
        else:
            _copy_wide(source, stored, signed, array32(place))


@kernel
def _copy_wide(source: Numbers, stored: int, signed: int, out: Numbers) -> None:
    if stored == 1 and signed:
        _copy(source.view(np.int8), out)
    elif stored == 1:
        _copy(source, out)
    elif stored == 2 and signed:
        _copy(source.view(np.int16), out)
    elif stored == 2:
        _copy(source.view(np.uint16), out)
    elif signed:
        _copy(source.view(np.int32), out)
    else:
        _copy(source.view(np.uint32), out)


@kernel
def _copy(source: Numbers, out: Numbers) -> None:
    for i in range(len(source)):
        out[i] = source[i]

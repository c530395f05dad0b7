"""Packs the numbers of many tensors into one body, in as few bytes as each tensor needs, and
unpacks them.

One call packs, and one unpacks, all tensors of a batch: in every call a thread gives up Python's
lock, and in a worker others wait for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recd_plugins.compat.kernels import kernel
from recd_plugins.errors import PluginError
from recd_plugins.sparse.rows.memory import array8, array32, array64

__all__ = ["ALIGNED", "NARROW", "Narrowed", "widen"]

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
BYTES, WHOLE = 0, 1
"""The kinds of numbers: those whose bits are compared, and integers."""
KINDS = {torch.int32: WHOLE, torch.int64: WHOLE}
TYPES = {
    kind: torch.empty(0, dtype=kind).numpy().dtype
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
        """Of their numbers."""
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


def widen(body: Numbers, jobs: Sequence[tuple[int, int, int, bool, bool, int, int]]) -> None:
    """Copy numbers out of a body. Given for each tensor: where its numbers begin there, how many
    there should be, the bytes of each number there, whether some may be negative, whether one
    stands for all, the address to copy them to, and the bytes of each number at that address: as
    many, or 4 or 8."""
    if jobs:
        _widen(body, np.array(jobs, np.int64))


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
def _widen(body: Numbers, jobs: I64) -> None:
    for job in range(len(jobs)):
        begin, count, stored, signed, alone = jobs[job, :5]
        place = jobs[job, 4:].copy()
        place[0], place[1] = jobs[job, 5], count
        place[2] = size = jobs[job, 6]
        source = body[begin : begin + (1 if alone else count) * stored]
        if alone:
            out = array8(place)
            for i in range(count):
                for byte in range(size):
                    out[i * size + byte] = source[byte]
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

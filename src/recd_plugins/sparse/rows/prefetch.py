"""Memory that is wanted soon, asked for now, where the processor cannot guess it."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import numpy.typing as npt
from llvmlite import ir  # type: ignore[import-untyped]  # numba's own, without stubs
from numba.core import cgutils, types
from numba.extending import intrinsic

__all__ = ["prefetch"]

LINE = 64
"""Bytes that come together."""
LINES = 4
"""Asked for of one row at most: of a longer one, the processor guesses the rest."""
READ, KEEP, DATA = 0, 3, 1


@numba.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def prefetch(numbers: npt.NDArray[Any], start: np.uintp, stop: np.uintp) -> None:
    """Begin to fetch `numbers[start:stop]`; nothing waits for it, and no place is out of bounds."""
    step = np.uintp(LINE // numbers.itemsize)
    stop = min(stop, start + np.uintp(LINES) * step)
    while start < stop:
        _prefetch_line(numbers, start)
        start += step


@intrinsic  # type: ignore[untyped-decorator]
def _prefetch_line(_typing: Any, numbers: Any, _place: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, place = arguments
        data = context.make_array(signature.args[0])(context, builder, array).data
        address = builder.bitcast(builder.gep(data, [place]), cgutils.voidptr_t)
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, number, number, number])
        call = builder.module.declare_intrinsic("llvm.prefetch", [cgutils.voidptr_t], kind)
        builder.call(call, [address, number(READ), number(KEEP), number(DATA)])
        return context.get_dummy_value()

    return types.void(numbers, types.uintp), generate

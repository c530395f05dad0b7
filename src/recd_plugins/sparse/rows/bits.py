"""Bits of words, and words of bytes, for numba kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir  # type: ignore[import-untyped]  # numba's own, without stubs
from numba.core import cgutils, types
from numba.extending import intrinsic

from recd_plugins.compat.kernels import kernel

__all__ = ["first_one", "ones", "word_at", "word_of"]


@intrinsic  # type: ignore[untyped-decorator]
def ones(_typing: Any, _word: Any) -> Any:
    """The bits that are set in a uint64: one instruction, and in vectors where there are any."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.uint64(types.uint64), generate


@intrinsic  # type: ignore[untyped-decorator]
def first_one(_typing: Any, _word: Any) -> Any:
    """The number of the lowest bit that is set in a uint64, which is not 0: one instruction."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], cgutils.true_bit)  # 0 need not give 64

    return types.uint64(types.uint64), generate


@intrinsic  # type: ignore[untyped-decorator]
def word_at(_typing: Any, data: Any, _place: Any) -> Any:
    """The 8 bytes of an array of bytes that begin at a place, aligned or not, as a uint64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, place = arguments
        first = context.make_array(signature.args[0])(context, builder, array).data
        word = builder.bitcast(builder.gep(first, [place]), ir.IntType(64).as_pointer())
        return builder.load(word, align=1)

    return types.uint64(data, types.int64), generate


@kernel
def word_of(data: npt.NDArray[np.uint8], at: int, count: int) -> np.uint64:
    """The number that `count` bytes from `at` on make, the lowest first."""
    word = np.uint64(0)
    for i in range(count):
        word |= np.uint64(data[at + i]) << np.uint64(8 * i)
    return word

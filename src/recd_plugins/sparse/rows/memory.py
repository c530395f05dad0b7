"""Memory for numba kernels: many tensors by their addresses, and cache lines fetched ahead.

A kernel cannot take a list of tensors. Without addresses, each feature would need a call, which
costs as much as the work on a feature of single ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numba
import numpy as np
import numpy.typing as npt
from llvmlite import ir  # type: ignore[import-untyped]  # numba's own, without stubs
from numba.core import cgutils, types
from numba.extending import intrinsic

from recd_plugins.compat.kernels import kernel
from recd_plugins.errors import DataError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = [
    "Addresses",
    "all_below",
    "array8",
    "array16",
    "array32",
    "array64",
    "array_like",
    "numbers_on",
    "prefetch",
    "prefetch_behind",
]

I64: TypeAlias = npt.NDArray[np.int64]


class Addresses(NamedTuple):
    """C tensors of numbers of 2, 4 or 8 bytes each, on CPU."""

    places: I64
    """[C, 3] each tensor's address, its number of elements, and the bytes of an element."""
    tensors: Sequence[Tensor]
    """The tensors, kept here so that their memory stays."""

    @classmethod
    def of(cls, tensors: Sequence[Tensor]) -> Addresses:
        held: list[Tensor] = []
        places: list[int] = []
        for tensor in tensors:
            size = tensor.element_size()
            if size not in (2, 4, 8) or not tensor.is_cpu:
                raise DataError(
                    f"ids, lengths and weights cannot be {tensor.dtype} on {tensor.device.type} "
                    "here. Make ids and lengths int32 or int64."
                )
            one = tensor.contiguous()
            held.append(one)
            places += (one.data_ptr(), one.numel(), size)
        return cls(np.array(places, np.int64).reshape(-1, 3), held)

    def every(self, step: int, first: int) -> Addresses:
        """The tensors numbered `first`, `first + step`, and so on."""
        return Addresses(self.places[first::step], self.tensors[first::step])


@intrinsic  # type: ignore[untyped-decorator]
def _pointer(_typing: Any, address: Any) -> Any:
    """An address as a pointer that numba's `carray` takes."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), generate


@kernel
def array64(place: I64) -> Any:
    """The numbers of one of `places`, of 8 bytes each, as an array on their memory."""
    return numba.carray(_pointer(place[0]), (place[1],), np.int64)


@kernel
def array32(place: I64) -> Any:
    """The numbers of one of `places`, of 4 bytes each."""
    return numba.carray(_pointer(place[0]), (place[1],), np.int32)


@kernel
def array16(place: I64) -> Any:
    """The numbers of one of `places`, of 2 bytes each."""
    return numba.carray(_pointer(place[0]), (place[1],), np.int16)


@kernel
def array8(place: I64) -> Any:
    """The bytes of the numbers of one of `places`."""
    return numba.carray(_pointer(place[0]), (place[1] * place[2],), np.uint8)


@kernel
def array_like(place: I64, like: npt.NDArray[Any]) -> Any:
    """The numbers of one of `places`, of the type of those of `like`."""
    return numba.carray(_pointer(place[0]), (place[1],), like.dtype)


@kernel
def all_below(numbers: npt.NDArray[Any], count: int) -> bool:
    """Whether all of these int32 or int64 numbers are in [0, count). Check with it places to which
    a kernel is to write."""
    most = np.uint64(0)
    for number in numbers:
        most = max(most, np.uint64(number))  # a negative one is huge
    return len(numbers) == 0 or bool(most < np.uint64(count))


LINE = 64
"""How many bytes the processor fetches at once."""
LINES = 4
"""How many lines of a row are prefetched at most; the processor predicts the rest."""
READ, KEEP, DATA = 0, 3, 1


@kernel
def prefetch(numbers: npt.NDArray[Any], start: np.uintp, stop: np.uintp) -> None:
    """Begin to fetch `numbers[start:stop]`, which are needed soon, and which the processor cannot
    predict.

    Nothing waits for it, and no place is out of bounds.
    """
    step = np.uintp(LINE // numbers.itemsize)
    stop = min(stop, start + np.uintp(LINES) * step)
    while start < stop:
        _prefetch_line(numbers, start)
        start += step


FAR = 4096
"""How many bytes ahead numbers are prefetched that are read in sequence. This is the length of a
page: the processor by itself does not fetch past the end of one."""


@kernel
def prefetch_behind(numbers: npt.NDArray[Any], start: np.uintp, stop: np.uintp) -> None:
    """Begin to fetch the numbers that are `FAR` behind `numbers[start:stop]`, if numbers are read
    from first to last."""
    step, far = np.uintp(LINE // numbers.itemsize), np.uintp(FAR // numbers.itemsize)
    start, stop = start + far, stop + far
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


def numbers_on(
    device: torch.device, numbers: Sequence[int] | Sequence[Sequence[int]] | I64
) -> Tensor:
    """Numbers as an int64 tensor on a device, without waiting for the device: CUDA copies from
    pinned memory while the CPU goes on."""
    import torch  # which readers of tables do without: its import takes seconds

    made = torch.tensor(numbers, dtype=torch.int64, device="cpu")
    return made if device.type == "cpu" else made.pin_memory().to(device, non_blocking=True)

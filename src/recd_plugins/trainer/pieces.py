"""Tensors of a checkpoint, read and written in pieces: a table may be larger than memory.

torch.distributed.checkpoint reads a stored tensor whole before it copies from it, and copies a
tensor that is a view, as fbgemm's tables are of a kernel's, before it writes it.
"""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Sequence
from typing import IO, BinaryIO, cast

import torch
from torch import Tensor
from torch.distributed._shard._utils import narrow_tensor_by_index

from recd_plugins.errors import DataError

__all__ = ["Part", "alone", "read_into"]

PIECE = 1 << 20
"""Bytes in memory at a time, or one row if that is more."""


class Part(io.RawIOBase):
    """`length` bytes of a file from `first` on, as a file."""

    def __init__(self, file: BinaryIO, first: int, length: int) -> None:
        super().__init__()
        self._file, self._first, self._length = file, first, length
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._length}[whence]
        self._at = max(0, start + offset)
        return self._at

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]
        wanted = min(len(buffer), max(0, self._length - self._at))
        self._file.seek(self._first + self._at)
        read = self._file.readinto(memoryview(buffer)[:wanted])  # type: ignore[attr-defined]
        self._at += read
        return int(read)


def read_into(target: Tensor, file: Part, offsets: Sequence[int], sizes: Sequence[int]) -> None:
    """Fill `target` with the part at `offsets`, of `sizes`, of the tensor that torch.save wrote.

    Rows come piece by piece, where they are stored one after another. A whole tensor is held to the
    checksum that was written with it.
    """
    # On the meta device: no number is read.
    stored = torch.load(cast("IO[bytes]", file), map_location="meta", weights_only=True)
    part = narrow_tensor_by_index(stored, offsets, sizes)
    if part.size() != target.size():
        raise DataError(f"a tensor of {list(target.size())} is stored as {list(part.size())}.")
    if not part.numel():
        return
    rows, into = (one.reshape(1) if one.dim() == 0 else one for one in (part, target))
    size, step = rows.element_size(), rows.stride(0)
    extent = 1 + sum((n - 1) * by for n, by in zip(rows.shape[1:], rows.stride()[1:], strict=True))
    apart = extent <= step
    each = max(1, (PIECE // size - extent) // step + 1) if apart else len(rows)
    file.seek(0)
    with zipfile.ZipFile(file) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/data/0"))
        with archive.open(name) as numbers:
            if start := int(rows.storage_offset()):
                numbers.seek(start * size)
            for first in range(0, len(rows), each):
                count = min(each, len(rows) - first)
                last = first + count == len(rows)
                # Up to the next piece; of the last one no more than there is.
                wanted = ((count - 1) * step + extent if last else count * step) * size
                read = bytearray(numbers.read(wanted))
                flat = torch.frombuffer(read, dtype=rows.dtype)
                into[first : first + count].copy_(
                    flat.as_strided([count, *rows.shape[1:]], rows.stride())
                )
            if part.numel() == stored.numel():
                numbers.read()  # to the end, where the checksum is compared


def alone(tensor: Tensor) -> Tensor:
    """The same numbers, as a tensor that is all of its storage, where that needs no copy."""
    storage = tensor.untyped_storage()
    if not tensor.is_cpu or not tensor.is_contiguous() or len(storage) == tensor.nbytes:
        return tensor
    first = tensor.storage_offset() * tensor.element_size()
    own = storage[first : first + tensor.nbytes]
    return torch.empty(0, dtype=tensor.dtype).set_(own, 0, tensor.size(), tensor.stride())

"""Batches of a trainer's own that are kept while its loader reads on, which may overwrite them.

If a loader fills the same memory for every batch, each batch must be used before the next one is
read. Code that keeps some of them would then hold the ids of later ones.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor, KeyedTensor

from recd_plugins.errors import DataError
from recd_plugins.sparse.features import SparseFeatures
from recd_plugins.sparse.own_batches import walk

__all__ = ["KeptBatches"]

SEEN = 1024
"""About this many numbers of a tensor are compared."""
FEW = 8
"""When this many batches, plus twice those that are kept, have been in memory of their own, the
loader counts as one that makes every batch in new memory."""


class _Memory(NamedTuple):
    """The memory of a tensor that a batch holds, and what was seen in it."""

    path: str
    tensor: Tensor
    storage: int
    start: int
    stop: int
    seen: bytes

    @classmethod
    def of(cls, path: str, tensor: Tensor) -> _Memory:
        start = tensor.data_ptr()
        stop = start + tensor.numel() * tensor.element_size()
        storage = tensor.untyped_storage().data_ptr()
        return cls(path, tensor, storage, start, stop, _some_of(tensor))

    def shares(self, other: _Memory) -> bool:
        return self.start < other.stop and other.start < self.stop

    @property
    def is_changed(self) -> bool:
        return _some_of(self.tensor) != self.seen


class KeptBatches:
    """Batches that are kept, first in, first out; raises `DataError` once the loader has
    overwritten one.

    A kept batch is looked at again only if a later batch lies in its memory: a loader may yield the
    same batch many times. If the loader makes every batch in new memory, nothing more is looked at
    after a time.
    """

    def __init__(self, who: str, cure: str) -> None:
        """`who` is the code that keeps batches, `cure` a sentence on how to do without it."""
        self._who, self._cure = who, cure
        self._kept: deque[list[_Memory]] = deque()
        self._by_storage: dict[int, list[_Memory]] = defaultdict(list)
        self._apart = 0
        """The number of latest batches that did not lie in the memory of a kept one."""

    def keep(self, batch: Any) -> None:
        """Keep a batch that the loader has just yielded."""
        if self._apart > 2 * len(self._kept) + FEW:
            return
        taken = [_Memory.of(path, one) for path, one in _tensors(batch)]
        shared = [
            other
            for one in taken
            for other in self._by_storage.get(one.storage, ())
            if other.shares(one)
        ]
        if changed := next((one for one in shared if one.is_changed), None):
            raise DataError(
                "the loader writes batches over earlier ones, which lie in the same memory "
                f"({changed.path}). {self._who} keeps batches until training takes them, so "
                "training would get the ids of later batches instead. Let the loader make each "
                f"batch in new memory, for example from clones of its tensors{self._cure}."
            )
        self._apart = 0 if shared else self._apart + 1
        self._kept.append(taken)
        for one in taken:
            self._by_storage[one.storage].append(one)

    def take(self) -> None:
        """The first batch goes to training, and is no longer kept."""
        for one in self._kept.popleft() if self._kept else ():
            of_storage = self._by_storage[one.storage]
            of_storage.pop(0)  # the first that was kept goes first
            if not of_storage:
                del self._by_storage[one.storage]


def _tensors(batch: Any) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a batch that have memory of their own, with the paths to them."""
    for path, part in walk(batch):
        for one in _held(part):
            plain = one.layout is torch.strided and not (one.is_quantized or one.is_meta)
            if plain and one.numel() and one.is_contiguous():
                yield path, one.detach()


def _held(part: Any) -> Iterator[Tensor]:
    if isinstance(part, SparseFeatures):
        yield from _held(part.plain)
    elif isinstance(part, KeyedJaggedTensor | JaggedTensor):
        given = (part.lengths_or_none(), part.offsets_or_none(), part.weights_or_none())
        yield from (part.values(), *(one for one in given if one is not None))
    elif isinstance(part, KeyedTensor):
        yield part.values()
    elif isinstance(part, np.ndarray):
        if part.flags.writeable and part.dtype in NUMBERS:
            yield torch.from_numpy(part)
    elif type(part) is Tensor:
        yield part


NUMBERS = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")


def _some_of(tensor: Tensor) -> bytes:
    """Numbers from all over the tensor, as bytes, since a NaN does not equal itself."""
    flat = tensor.flatten()
    some = flat[:: max(1, len(flat) // SEEN)].contiguous()
    return some.view(torch.uint8).cpu().numpy().tobytes()

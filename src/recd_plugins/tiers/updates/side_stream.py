"""On CUDA a stream of the replicas' own: their reduction runs beside the rest of backward."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor

__all__ = ["SideStream", "side_stream"]


class SideStream:
    """A stream beside the current one; on the CPU there is but one, and it does nothing."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    @contextmanager
    def after(self, *made: Tensor | None) -> Iterator[None]:
        """Launch on it, once the current stream has `made` these."""
        if self._stream is None:
            yield
            return
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        self.keep(*made)
        with torch.cuda.stream(self._stream):
            yield

    def keep(self, *used: Tensor | None) -> None:
        """Have the memory of these, of other streams, until what it was asked so far is done."""
        if self._stream is not None:
            for tensor in used:
                if tensor is not None:
                    tensor.record_stream(self._stream)

    def join(self) -> None:
        """Have the current stream wait for it."""
        if self._stream is not None:
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)


@cache
def side_stream(device: torch.device) -> SideStream:
    """That of a device."""
    return SideStream(device)

"""The stream of CUDA on which gradients of replicas are summed, beside the rest of backward."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor

__all__ = ["SideStream", "side_stream"]


class SideStream:
    """The replicas' own stream on CUDA: their reduction runs beside the rest of backward.

    On the CPU there is only one stream, and this does nothing.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    @contextmanager
    def after(self, *made: Tensor | None) -> Iterator[None]:
        """Inside, launch on this stream, after the current one has `made` these."""
        if self._stream is None:
            yield
            return
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        self.keep(*made)
        with torch.cuda.stream(self._stream):
            yield

    def keep(self, *used: Tensor | None) -> None:
        """Keep the memory of tensors of other streams until all work so far is done."""
        if self._stream is not None:
            for tensor in used:
                if tensor is not None:
                    tensor.record_stream(self._stream)

    def join(self) -> None:
        """Have the current stream wait for this one."""
        if self._stream is not None:
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)


@cache
def side_stream(device: torch.device) -> SideStream:
    """The replicas' stream of a device."""
    return SideStream(device)

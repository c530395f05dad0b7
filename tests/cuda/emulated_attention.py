"""CUDA's attention for jagged rows, on the CPU: what its kernels refuse, this refuses.

torch has `_efficient_attention_forward` and its backward for CUDA alone. While entered, the CPU has
both, row by row, and counts what the kernels would keep in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.library import Library

__all__ = ["Calls", "attention_of_cuda"]

Rows = list[tuple[slice, slice]]


class Calls(list[int]):
    """The blocks of 64 queries in each backward, whose rows are all as long as the longest."""


@contextmanager
def attention_of_cuda() -> Iterator[Calls]:
    """The kernels, under a torch that says that it was built for CUDA."""
    calls = Calls()

    def forward(q: Tensor, k: Tensor, v: Tensor, bias: None, *rest: Any, **kwargs: Any) -> Any:
        *bounds, most_queries, most_keys, _, _, _ = rest
        scale, seen, sums = kwargs["scale"], torch.empty_like(q), torch.empty(0)
        for queries, keys in _rows(q, k, v, *bounds, most_queries, most_keys):
            weights = _weights(q[0, queries], k[0, keys], scale)
            seen[0, queries] = torch.einsum("hqk,khe->qhe", weights, v[0, keys])
        none = torch.empty((), dtype=torch.int64)
        return seen, sums, none, none, most_queries, most_keys

    def backward(
        gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: None, *rest: Any, **kwargs: Any
    ) -> Any:
        _, *bounds, most_queries, most_keys = rest[:5]
        calls.append((len(bounds[0]) - 1) * -(-most_queries // 64))
        dq, dk, dv = (torch.full_like(one, torch.nan).contiguous() for one in (q, k, v))
        for queries, keys in _rows(q, k, v, *bounds, most_queries, most_keys):
            weights = _weights(q[0, queries], k[0, keys], kwargs["scale"])
            dv[0, keys] = torch.einsum("hqk,qhe->khe", weights, gradient[0, queries])
            found = torch.einsum("qhe,khe->hqk", gradient[0, queries], v[0, keys])
            found = weights * (found - (found * weights).sum(-1, keepdim=True)) * kwargs["scale"]
            dq[0, queries] = torch.einsum("hqk,khe->qhe", found, k[0, keys])
            dk[0, keys] = torch.einsum("hqk,qhe->khe", found, q[0, queries])
        return dq, dk, dv, torch.empty(0)

    library = Library("aten", "IMPL")
    library.impl("_efficient_attention_forward", forward, "CPU")
    library.impl("_efficient_attention_backward", backward, "CPU")
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(torch.version, "cuda", "13.0")
        try:
            yield calls
        finally:
            library._destroy()


def _weights(q: Tensor, k: Tensor, scale: float) -> Tensor:
    return torch.softmax(torch.einsum("qhe,khe->hqk", q, k) * scale, -1)


def _rows(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    of_queries: Tensor,
    of_keys: Tensor,
    most_queries: int,
    most_keys: int,
) -> Rows:
    """Where each row's queries and keys are, if CUDA's kernels would take them."""
    for one in (q, k, v):
        in_16_bytes = 16 // one.element_size()
        if one.stride(-1) != 1 or any(one.stride(dim) % in_16_bytes for dim in (1, 2)):
            raise RuntimeError("cutlassF: no kernel found to launch!")
    if len(of_keys) - 1 > 65535:
        raise RuntimeError("CUDA error: invalid configuration argument")
    spans = []
    for bounds, tensor, most in ((of_queries, q, most_queries), (of_keys, k, most_keys)):
        assert bounds.dtype == torch.int32
        assert bounds.is_contiguous()
        assert len(bounds) == len(of_keys)
        assert len(tensor) == 1
        places = bounds.tolist()
        assert (places[0], places[-1]) == (0, tensor.shape[1])
        assert max(b - a for a, b in pairwise(places)) <= most <= tensor.shape[1]
        spans.append([slice(a, b) for a, b in pairwise(places)])
    return list(zip(*spans, strict=True))

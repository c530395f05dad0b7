"""The rows and values of unique samples are copied to every sample that has them (O6), without
padding.

Sample i of B has what unique sample `inverse_lookup[i]` of U has. The gradient of a unique
sample is the sum of its samples'; both ways are differentiable, and each is the other's
gradient. Values may be embeddings [N_u, D] or anything else with a row per value.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import FunctionCtx

from recd_plugins.compat.kernels import kernel
from recd_plugins.sparse.jagged import WeightedJagged
from recd_plugins.sparse.rows.memory import numbers_on
from recd_plugins.sparse.rows.sums import summed_rows

__all__ = [
    "cells_of",
    "expand_columns",
    "expand_rows",
    "expand_values",
    "first_rows",
    "sum_cells",
]


def expand_rows(unique: Tensor, inverse_lookup: Tensor) -> Tensor:
    """[B, ...]: row i is `unique[inverse_lookup[i]]`, of unique [U, ...]."""
    expanded: Tensor = _Gather.apply(unique, inverse_lookup)
    return expanded


def expand_values(
    values: Tensor, lengths: Tensor, inverse_lookup: Tensor, num_values: int | None = None
) -> Tensor:
    """[N, ...]: the B samples' values end to end, of U unique samples' [N_u, ...].

    Unique sample u has `lengths[u]` of the values, sample i those of `inverse_lookup[i]`. A caller
    that knows N gives it as `num_values`; otherwise the processor waits for CUDA.
    """
    if values.dim() == 1 and not values.requires_grad:
        return WeightedJagged(values, lengths).select(inverse_lookup, num_values).values
    if values.is_cuda and values.dim() == 2:
        # Its kernel finds each value's cell itself, and keeps none for the gradient.
        expanded: Tensor = torch.ops.fbgemm.jagged_index_select(
            values, lengths.long(), inverse_lookup, num_values
        )[0]
        return expanded
    return expand_rows(values, cells_of(lengths, inverse_lookup, num_values))


def expand_columns(uniques: Sequence[Tensor], lookups: Sequence[Tensor | None]) -> Tensor:
    """[B, F, D]: row i of column f is `uniques[f][lookups[f][i]]`, of unique [U_f, D].

    Without a lookup, it is `uniques[f][i]`, of [B, D]. All are one gather, which takes a third of
    the time of one for each, stacked, for 100 features of 512 samples.
    """
    num_rows, device = next(one.numel() for one in lookups if one is not None), uniques[0].device
    rows = torch.arange(num_rows, device=device)
    places = torch.stack([rows if lookup is None else lookup for lookup in lookups], dim=1)
    firsts = [*accumulate([unique.shape[0] for unique in uniques[:-1]], initial=0)]
    cells = places + numbers_on(device, firsts)
    rows_of_all = expand_rows(torch.cat(list(uniques)), cells.view(-1))
    return rows_of_all.view(num_rows, len(uniques), uniques[0].shape[1])


def first_rows(tensor: Tensor, rows: int) -> Tensor:
    """The first rows. Where these are all rows there is no slice, whose gradient would cost a
    copy."""
    return tensor if tensor.shape[0] <= rows else tensor[:rows]


def sum_cells(values: Tensor, cells: Tensor, num_cells: int) -> Tensor:
    """[num_cells, ...]: out[c] = sum of values[i] over all i with cells[i] = c."""
    summed: Tensor = _Sum.apply(values, cells, num_cells)
    return summed


def cells_of(lengths: Tensor, inverse_lookup: Tensor, num_values: int | None = None) -> Tensor:
    """[N]: which of the unique samples' values each of the B samples' values is. Where N is not
    given as `num_values`, the processor waits for CUDA."""
    if lengths.device.type == "cpu":
        return torch.from_numpy(_cells(lengths.numpy(), inverse_lookup.numpy()))
    expanded = lengths.long()[inverse_lookup]
    starts = (lengths.cumsum(0) - lengths)[inverse_lookup]
    # Value n is as far from the start of its unique sample as n is from the start of its sample.
    where = torch.repeat_interleave(
        starts - (expanded.cumsum(0) - expanded), expanded, output_size=num_values
    )
    return where + torch.arange(where.numel(), device=where.device)


class _Gather(torch.autograd.Function):
    """out[i] = values[cells[i]]."""

    @staticmethod
    def forward(ctx: FunctionCtx, values: Tensor, cells: Tensor) -> Tensor:
        ctx.save_for_backward(cells)
        ctx.num_cells = values.shape[0]  # type: ignore[attr-defined]
        return values.index_select(0, cells)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (cells,) = ctx.saved_tensors
        return sum_cells(gradient, cells, ctx.num_cells), None


class _Sum(torch.autograd.Function):
    """out[c] = sum of values[i] over all i with cells[i] = c."""

    @staticmethod
    def forward(ctx: FunctionCtx, values: Tensor, cells: Tensor, num_cells: int) -> Tensor:
        ctx.save_for_backward(cells)
        if values.device.type == "cpu" and values.dim() == 2 and values.is_floating_point():
            # Each cell is a bag: this takes half the time of index_add, the sorting included.
            order, ends = _sort(cells.numpy(), num_cells)
            return F.embedding_bag(
                torch.from_numpy(order),
                values.contiguous(),
                torch.from_numpy(ends),
                mode="sum",
                include_last_offset=True,
            )
        return summed_rows(values, cells, num_cells)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (cells,) = ctx.saved_tensors
        return expand_rows(gradient, cells), None, None


@kernel
def _cells(
    lengths: npt.NDArray[Any], inverse_lookup: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    starts = np.zeros(len(lengths) + 1, np.int64)
    for u in range(len(lengths)):
        starts[u + 1] = starts[u] + lengths[u]
    numel = 0
    for u in inverse_lookup:
        numel += lengths[u]
    cells = np.empty(numel, np.int64)
    at = 0
    for u in inverse_lookup:
        row = cells[at : at + lengths[u]]
        for i in range(len(row)):
            row[i] = starts[u] + i
        at += len(row)
    return cells


@kernel
def _sort(
    cells: npt.NDArray[np.int64], num_cells: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The order that sorts `cells` [N], and where each cell begins in it [num_cells + 1]."""
    ends = np.zeros(num_cells + 1, np.int64)
    for cell in cells:
        ends[cell + 1] += 1
    free = np.empty(num_cells, np.int64)
    for cell in range(num_cells):
        ends[cell + 1] += ends[cell]
        free[cell] = ends[cell]
    order = np.empty(len(cells), np.int64)
    for i in range(len(cells)):
        order[free[cells[i]]] = i
        free[cells[i]] += 1
    return order, ends

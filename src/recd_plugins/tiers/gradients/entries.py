"""Entries: gradients of rows as backward has them, several of one row, and their sums."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from recd_plugins.compat.kernels import kernel
from recd_plugins.errors import DataError
from recd_plugins.sparse.rows.memory import all_below, numbers_on
from recd_plugins.tiers.peers import Buffer, of_shape

__all__ = ["Entries", "add_rows"]

I64: TypeAlias = npt.NDArray[np.int64]

COPIED_ROWS = 1 << 13
"""Gradients that are copied at a time on CUDA."""


@dataclass(frozen=True)
class Entries:
    """Gradients of rows as backward has them: several of one row, in any order.

    Entry i adds `gradients[sources[i]] * weights[i]` to row `targets[i]`: a row of a tier, by its
    address; of a chunk; or of the share that ranks of the node asked this one for.

    Where bags are summed, a bag's gradient is that of each of its rows. Bag 0 of rows 5 and 7, and
    bag 1 of row 5: `gradients` [2, D] are the bags', `sources` 0 0 1, `targets` 5 7 5.
    """

    targets: Tensor
    """[n] int64 or int32."""
    gradients: Tensor
    """[m, D] float32: backward's, and never written to."""
    sources: Tensor | None = None
    """[n] int64 or int32; by default entry i has gradient i."""
    weights: Tensor | None = None
    """[n] float32; by default 1."""

    def onto(self, targets: Tensor) -> Entries:
        """The same entries for the rows `targets` [n] of something else."""
        return Entries(targets, self.gradients, self.sources, self.weights)

    def picked(self, which: npt.NDArray[Any], targets: Tensor) -> Entries:
        """The entries `which` [k], on the CPU, for the rows `targets` [k] of something else."""

        def of(every: Tensor) -> Tensor:
            return torch.from_numpy(every.detach().numpy()[which])

        return Entries(
            targets,
            self.gradients,
            torch.from_numpy(which) if self.sources is None else of(self.sources),
            None if self.weights is None else of(self.weights),
        )

    def of_parts(self, edges: I64) -> list[npt.NDArray[Any]]:
        """The entries of each part, on the CPU: their numbers [k] int32, ascending.

        The targets are rows of S shares of R rows, one after another. Part j has the rows `edges[s,
        j]` to `edges[s, j + 1]` of share s; together the parts have all rows.
        """
        targets = self.targets.contiguous().numpy()
        order = np.empty(len(targets), np.int32 if len(targets) < 1 << 31 else np.int64)
        part_of = np.empty(edges[:, -1].sum(), np.uint16 if edges.shape[1] <= 1 << 16 else np.int64)
        ends = _order_by_part(targets, edges, part_of, order)
        if not len(ends):
            raise _of_no_row(edges[:, -1].sum(), len(self.gradients))
        return np.split(order, ends[:-1])

    def of_bands(self, firsts: Sequence[int]) -> Iterator[Entries]:
        """The entries of each band of rows, from one of `firsts` to the next; their targets count
        from its first."""
        if self.targets.is_cuda:
            whole = self.sorted()
            (cuts,) = whole.begins([firsts])
            for (low, high), first in zip(pairwise(cuts), firsts, strict=False):
                yield whole.cut(low, high, -first)
            return
        targets = self.targets.numpy()
        for which, first in zip(self.of_parts(np.array([firsts])), firsts, strict=False):
            yield self.picked(which, torch.from_numpy(targets[which] - first))

    def sorted(self) -> Entries:
        """The entries in the order of their targets."""
        targets, order = self.targets.sort()
        return Entries(
            targets,
            self.gradients,
            order if self.sources is None else self.sources[order],
            None if self.weights is None else self.weights[order],
        )

    def begins(self, targets: Sequence[Sequence[int]]) -> list[list[int]]:
        """The number of the first entry of each of `targets`, if the entries are sorted, in lists
        of the same lengths. The processor waits for CUDA once."""
        wanted = numbers_on(self.targets.device, targets).to(self.targets.dtype)
        found: list[list[int]] = torch.searchsorted(self.targets, wanted).tolist()
        return found

    def cut(self, low: int, high: int, moved: int) -> Entries:
        """Entries `low` to `high`, of sorted ones; their targets are increased by `moved`."""
        assert self.sources is not None
        return Entries(
            self.targets[low:high] + moved,
            self.gradients,
            self.sources[low:high],
            None if self.weights is None else self.weights[low:high],
        )

    @classmethod
    def joined(cls, parts: Sequence[Entries]) -> Entries:
        """The entries of all parts, which are sorted and have their gradients in common."""
        weights = [part.weights for part in parts if part.weights is not None]
        return cls(
            torch.cat([part.targets for part in parts]),
            parts[0].gradients,
            torch.cat([part.sources for part in parts if part.sources is not None]),
            torch.cat(weights) if weights else None,
        )

    def summed(self, count: int, buffer: Buffer | None = None) -> Tensor:
        """[count, D] float32: what the entries add up to at each target; in the `buffer`, if it is
        given."""
        gradients = self.gradients
        sums = of_shape((count, gradients.shape[1]), gradients, buffer).zero_()
        if not gradients.is_cuda:
            add_rows(sums, self.targets, gradients, self.sources, self.weights)
            return sums
        if self.sources is None and self.weights is None:
            return sums.index_add_(0, self.targets, gradients)
        for start in range(0, len(self.targets), COPIED_ROWS):  # bounds the memory of the copies
            block = slice(start, start + COPIED_ROWS)
            rows = (
                gradients[block]
                if self.sources is None
                else gradients.index_select(0, self.sources[block])
            )
            if self.weights is not None:
                rows = rows * self.weights[block].unsqueeze(1)
            sums.index_add_(0, self.targets[block], rows)
        return sums


def add_rows(
    sums: Tensor,
    targets: Tensor,
    rows: Tensor,
    sources: Tensor | None,
    weights: Tensor | None = None,
) -> None:
    """On the CPU, `sums[targets[i]] += weights[i] * rows[sources[i]]` for each i, in their order.

    `rows` and `sums` are float32; by default row i is the i-th, and weighs 1. No row is copied in
    between. The result is that of `index_add_` to the bit, which takes ten times as long for many
    rows.
    """
    none = targets.new_empty(0, dtype=torch.int64)
    given = targets, rows, none if sources is None else sources
    weighed = sums.new_empty(0) if weights is None else weights
    arrays = (one.detach().contiguous().numpy() for one in (*given, weighed))
    if not _add_rows(sums.numpy(), *arrays):
        raise _of_no_row(len(sums), len(rows))


def _of_no_row(num_rows: int, num_gradients: int) -> DataError:
    return DataError(
        f"tiers: some gradient is of none of {num_rows} rows, or is none of {num_gradients}. This "
        "happens if tier plans differ between ranks: give all ranks the same plan."
    )


@kernel
def _add_rows(
    sums: npt.NDArray[np.float32],
    targets: npt.NDArray[Any],
    rows: npt.NDArray[np.float32],
    sources: npt.NDArray[Any],
    weights: npt.NDArray[np.float32],
) -> bool:
    """Adds rows `sources` to the sums `targets`. Without `sources` entry i has the i-th row, and
    without `weights` each weighs 1. If a target or a source does not exist, adds nothing and
    returns False."""
    rows_there = all_below(sources, len(rows)) if sources.size else len(targets) <= len(rows)
    if not (rows_there and all_below(targets, len(sums))):
        return False
    for i in range(targets.size):
        target = sums[np.uintp(targets[i])]
        source = rows[np.uintp(sources[i] if sources.size else i)]
        weight = weights[i] if weights.size else np.float32(1)
        for column in range(len(target)):
            target[column] += weight * source[column]
    return True


@kernel
def _order_by_part(
    targets: npt.NDArray[Any], edges: I64, part_of: npt.NDArray[Any], order: npt.NDArray[Any]
) -> Any:
    """Fills `order` with the numbers of all entries, part by part, and `part_of` with the part of
    each row. Returns where each part ends, or nothing if a target does not exist."""
    shares, count, size = len(edges), edges.shape[1] - 1, edges[0, -1]
    if not all_below(targets, shares * size):
        return np.empty(0, np.int64)
    for share in range(shares):
        for part in range(count):
            for row in range(edges[share, part], edges[share, part + 1]):
                part_of[share * size + row] = part
    ends = np.zeros(count + 1, np.int64)
    for target in targets:
        ends[np.int64(part_of[np.uintp(target)]) + 1] += 1
    for part in range(count):
        ends[part + 1] += ends[part]
    for number in range(len(targets)):
        own = np.int64(part_of[np.uintp(targets[number])])
        order[ends[own]] = number
        ends[own] += 1
    return ends[:-1]

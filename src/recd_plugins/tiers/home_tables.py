"""The home of every row: this rank's part of a table that TorchRec sharded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torchrec.optim.keyed import KeyedOptimizer

from recd_plugins.compat.pytorch import writes_to
from recd_plugins.compat.torchrec import local_parts, table_of

__all__ = ["HomeTable", "home_tables", "rows_looked_up"]

PRUNED = -1
"""The id of a pruned row: fbgemm's check of bounds leaves it as it is."""


@dataclass(frozen=True)
class HomeTable:
    """Consecutive rows of a table with their optimizer state, as views of TorchRec's tensors.

    They have version counters of their own (`.data`), so that rows may come home between a forward
    and its backward: the graph keeps the table to step it, and looked up none of these rows there.
    """

    first_row: int
    rows: Tensor
    """[n, D] in the table's type."""
    states: tuple[Tensor, ...]
    """[n, 1 | D] float32 each: what the optimizer keeps for a row, in its order."""
    shown: tuple[Tensor, ...]
    """The rows again, and then each state, with the version counters that parameters and state
    dicts share. States are here on the CPU alone: whether kernels for CUDA count them up is
    untested."""

    @property
    def writes(self) -> tuple[int, ...]:
        """The number of writes into the parameter, or into a state dict, and into each state of the
        optimizer. Those of fbgemm's kernels and of replicas that come home do not count."""
        return tuple(map(writes_to, self.shown))

    def copy_to(self, numbers: Tensor, rows: Tensor, state: Tensor) -> None:
        """Fill in `rows` [m, D] and their `state` [m, width], which has the states side by side:
        those of the `numbers` [m] that are here. The others stay as they are."""
        here, at = self._here(numbers)
        rows[here] = self.rows[at]
        for own, part in self._parts(state):
            part[here] = own[at]

    @torch.no_grad()
    def copy_from(self, numbers: Tensor, rows: Tensor, state: Tensor) -> None:
        """Take those of the rows `numbers` [m] whose home is here, as `copy_to` yields them."""
        here, at = self._here(numbers)
        self.rows[at] = rows[here]
        for own, part in self._parts(state):
            own[at] = part[here]

    def _parts(self, state: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Each state with its columns of `state` [m, width], which has them side by side."""
        widths = [own.shape[1] for own in self.states]
        return zip(self.states, state.split(widths, dim=1) if widths else (), strict=True)

    def _here(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """Which of the rows `numbers` [m] are here, and where in `rows`."""
        at = numbers - self.first_row
        here = ((at >= 0) & (at < len(self.rows))).nonzero().squeeze(1)
        return here, at[here]


def home_tables(optimizer: KeyedOptimizer) -> Iterator[tuple[str, HomeTable]]:
    """The row-wise sharded tables that a fused optimizer of TorchRec updates, by name.

    TorchRec lays a table's states out like its rows, in one tensor or more; SGD has none.
    """
    for key, weight in optimizer.params.items():
        (first_row, *_), parameter = local_parts(weight)[0]
        shown = [local_parts(one)[0][1] for one in optimizer.state[weight].values()]
        states = [state.data for state in shown]
        yield (
            table_of(key),
            HomeTable(
                first_row,
                parameter.data,
                tuple(state.unsqueeze(1) if state.dim() == 1 else state for state in states),
                (parameter, *(state for state in shown if state.device.type == "cpu")),
            ),
        )


def rows_looked_up(ids: Tensor, num_rows: int, world_size: int, *, bits: int) -> Tensor:
    """[n] int64: the row that row-wise TorchRec looks up for each of `ids` [n] int64.

        u = id modulo 2^bits,  b = ceil(rows / U) for U ranks
        rank = u // b  if u < b U,  else u mod U
        row = b rank  for an id of no row

    Row-wise sharding deals ids out to ranks before anyone checks them. Where the rank has no such
    row, fbgemm's check of bounds, unless it is fatal, takes the rank's first row; replicas must do
    the same. `bits` are those of the type that the ids came in. An id that is dealt out to a rank
    without rows stays as it is, for TorchRec to judge.
    """
    block = -(-num_rows // world_size)
    negative = ids < 0
    dealt = ~negative & (ids < block * world_size)
    past = (ids % world_size + negative * ((1 << bits) % world_size)) % world_size
    first = torch.where(dealt, ids // block, past) * block
    known = ~negative & (ids < num_rows)
    stay = known | (first >= num_rows)
    if world_size == 1:
        stay |= ids == PRUNED
    return torch.where(stay, ids, first)

"""The home of every row: this rank's part of a table that TorchRec sharded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torchrec.optim.keyed import KeyedOptimizer

__all__ = ["HomeTable", "home_tables"]


@dataclass(frozen=True)
class HomeTable:
    """Consecutive rows of a table with their optimizer state, as views of TorchRec's tensors.

    Their versions are their own (`.data`): between a forward and its backward rows may come home,
    for the graph keeps the table to step it, and looked up none of these rows there.
    """

    first_row: int
    rows: Tensor
    """[n, D] in the table's type."""
    state: Tensor
    """[n, 0 | 1 | D] float32."""

    def copy_to(self, wanted: Tensor, rows: Tensor, state: Tensor) -> None:
        """Fill in those of the `wanted` [m] rows that are here; the others stay as they are."""
        here, at = self._here(wanted)
        rows[here] = self.rows[at]
        state[here] = self.state[at]

    @torch.no_grad()
    def copy_from(self, given: Tensor, rows: Tensor, state: Tensor) -> None:
        """Take those of the `given` [m] rows whose home is here."""
        here, at = self._here(given)
        self.rows[at] = rows[here]
        self.state[at] = state[here]

    def _here(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        at = rows - self.first_row
        here = ((at >= 0) & (at < len(self.rows))).nonzero().squeeze(1)
        return here, at[here]


def home_tables(optimizer: KeyedOptimizer) -> Iterator[tuple[str, HomeTable]]:
    """The row-wise sharded tables that a fused optimizer of TorchRec updates, by name.

    TorchRec lays a table's state out as its rows: one tensor, but for SGD, which has none.
    """
    for key, weight in optimizer.params.items():
        shard = weight.local_shards()[0]
        rows = shard.tensor.data
        states = list(optimizer.state[weight].values())
        state = (
            states[0].local_shards()[0].tensor.data
            if states
            else rows.new_empty(len(rows), 0, dtype=torch.float32)
        )
        name = key.split(".")[1]  # embeddings.NAME.weight
        yield (
            name,
            HomeTable(
                shard.metadata.shard_offsets[0],
                rows,
                state.unsqueeze(1) if state.dim() == 1 else state,
            ),
        )

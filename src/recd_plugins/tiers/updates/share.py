"""A share of a tier: the rows that one rank of a node updates, with their optimizer state."""

from __future__ import annotations

from torch import Tensor

from recd_plugins.tiers.updates.optimizer import RowOptimizer

__all__ = ["Layout", "Share"]


class Layout:
    """How `count` positions are dealt out to the W ranks of a node.

    Position p is row p // W of the share of rank p mod W, so that rows that are hot together
    (low ids, say) are spread. A share has room for `share_rows` rows, the same on all ranks.
    """

    def __init__(self, count: int, ranks_per_node: int) -> None:
        self.count = count
        self.ranks_per_node = ranks_per_node
        self.share_rows = -(-count // ranks_per_node)

    @property
    def num_places(self) -> int:
        return self.share_rows * self.ranks_per_node

    def place(self, positions: Tensor) -> Tensor:
        """[n] places: all rows of rank 0's share come first, then rank 1's, and so on."""
        ranks = positions % self.ranks_per_node
        return ranks * self.share_rows + positions // self.ranks_per_node


class Share:
    """This rank's share of a tier. Every node has the same shares, and updates them alike."""

    def __init__(self, rows: Tensor, optimizer: RowOptimizer) -> None:
        """Of `rows` [R, D], a tensor or a view of one, updated in place."""
        self.rows = rows
        self.state = optimizer.empty_state(rows)
        self._optimizer = optimizer

    def update(self, which: Tensor, gradients: Tensor, learning_rate: float) -> Tensor:
        """Step the rows `which` [n] by gradients [n, D] float32; the rows as they are now."""
        # Stepped in float32, then rounded to the table's type: as fbgemm does.
        rows = self.rows.index_select(0, which).float()
        state = self.state.index_select(0, which)
        self._optimizer.step(rows, state, gradients, learning_rate, self.rows.dtype)
        stepped = rows.to(self.rows.dtype)
        self.rows.index_copy_(0, which, stepped)
        self.state.index_copy_(0, which, state)
        return stepped

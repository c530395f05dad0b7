"""How many rows of a table each tier takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

import numpy as np

from recd_plugins.errors import DataError, nearest, shown
from recd_plugins.planning.tier_plans.tier_plan import Coalesce

__all__ = ["AS_TORCHREC", "TableSizes"]


@dataclass(frozen=True, kw_only=True)
class TableSizes:
    """The number of a table's rows that each tier takes, in the order of popularity; the rest
    stays at home."""

    replicated: int = 0
    """The hottest: a copy on every rank."""
    per_node: int = 0
    """The next: a copy in every node."""
    coalesce: Coalesce = "none"
    as_torchrec: bool = False
    """Whether the table is left where TorchRec's own plan has it, without any sizes."""

    @property
    def replicas(self) -> int:
        """The number of rows that have a replica: the hottest."""
        return self.replicated + self.per_node

    def __post_init__(self) -> None:
        for tier in ("replicated", "per_node"):
            rows = getattr(self, tier)
            if not isinstance(rows, int | np.integer) or rows < 0:
                raise DataError(
                    f"TableSizes: `{tier}` is a number of rows, an integer >= 0, but is {rows!r}."
                )
        if self.coalesce not in get_args(Coalesce):
            raise DataError(
                f"TableSizes: there is no `coalesce` {shown(self.coalesce)}; "
                f"{nearest(str(self.coalesce), get_args(Coalesce))}"
            )


AS_TORCHREC = TableSizes(as_torchrec=True)
"""The sizes of a table that is left to TorchRec."""

"""What plain TorchRec would do with the tables of a trainer, beside what a plan does with them.

Where TorchRec has a table on every rank, the trainer's dense optimizer steps it; where it shards
the table, the one that is named for it does. So a plan that differs in this trains otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from recd_plugins.errors import listed
from recd_plugins.notices import Missed, Notice, Otherwise
from recd_plugins.planning.fused_params import fused_in_words
from recd_plugins.planning.tables.planned_tables import planned_tables

if TYPE_CHECKING:
    from torchrec.distributed.types import ShardingPlan

__all__ = ["DATA_PARALLEL", "UNSAID_BATCH", "BesidePlain", "sharding_types"]

UNSAID_BATCH = 512
"""The batch size that TorchRec's planner assumes where a trainer does not give one."""

DATA_PARALLEL = "data_parallel"
"""TorchRec's sharding type of a table that every rank has whole."""

SHARDED = "[row_wise, table_wise]"
"""Types with which a table stays sharded: tiers have it row-wise, and TorchRec, if it is left to
that, table-wise on a CPU, where it has no bags row-wise."""


@dataclass(frozen=True, kw_only=True)
class BesidePlain:
    """A plan's sharding types beside those that plain TorchRec would choose for the tables."""

    where: str
    """The slot whose options the plan is by."""
    batch_size: int
    kinds: Mapping[str, str]
    """The sharding type of each table in the plan."""
    plain: Callable[[], Mapping[str, str]]
    """Finds those that plain TorchRec would choose, by a search of its own, once notices are asked
    for."""
    named: frozenset[str]
    """The trainer's tables for which it names an optimizer."""
    either_way: frozenset[str]
    """The tables whose optimizer steps them however they are sharded, as that of a fused
    collection does: there is nothing to say of them."""
    in_tiers: frozenset[str]
    """The tables that a planner in front has row-wise: for replicas, or to coalesce their ids."""
    small: tuple[str, ...]
    """The trainer's tables without a named optimizer that have no more rows than a batch has
    samples, or may have: TorchRec may make them data-parallel."""

    def notices(self) -> list[Notice]:
        """Notices of tables that plain TorchRec would have on every rank, where the trainer's dense
        optimizer steps them and not the one that is named for them; or that it might have there,
        where none is named."""
        plain = {
            name: kind
            for name, kind in self.plain().items()
            if (kind == DATA_PARALLEL) != (self.kinds.get(name) == DATA_PARALLEL)
            and name not in self.either_way
        }
        differ = [name for name in plain if name not in self.named]
        small = [
            name
            for name in self.small
            if name not in plain
            and name not in self.either_way
            and self.kinds.get(name) != DATA_PARALLEL
        ]
        named = [name for name in plain if name in self.named and plain[name] == DATA_PARALLEL]
        return [
            *self._named_sharded([name for name in named if name not in self.in_tiers]),
            *self._named_in_tiers([name for name in named if name in self.in_tiers]),
            *self._unnamed(
                [name for name in differ if plain[name] == DATA_PARALLEL],
                "TorchRec itself, which knows no rates of links, would have each on every rank",
            ),
            *self._unnamed(
                [name for name in differ if plain[name] != DATA_PARALLEL],
                "each is on every rank, where TorchRec itself, which knows no rates of links, "
                "would shard it",
            ),
            *self._unnamed(
                small,
                "each has no more rows than a batch has samples, or than the "
                f"{UNSAID_BATCH} by which TorchRec's planner goes unless it is told, so that "
                "TorchRec itself may have it on every rank, which is chance, too",
            ),
        ]

    def _unnamed(self, tables: Sequence[str], plainly: str) -> Iterator[Notice]:
        if tables:
            names, sgd = listed(tables, kind="table"), fused_in_words({})
            yield Otherwise(
                what=f"{self.where}: torchrec",
                why=f"the trainer names no optimizer of {names}; {plainly}. Where such a table is "
                f"sharded, TorchRec's {sgd} steps it; on every rank, the dense optimizer does",
                cure="Name one before the plan, `apply_optimizer_in_backward(...)`; or the type, "
                f"`{self.where}.constraints: {_dense(tables[0])}` for the dense optimizer, "
                "another one for it to be sharded.",
            )

    def _named_sharded(self, tables: Sequence[str]) -> Iterator[Notice]:
        if tables:
            where, by = self.where, ""
            if self.batch_size != UNSAID_BATCH:
                by = (
                    f", by batches of {self.batch_size} or of the {UNSAID_BATCH} by which its "
                    "planner goes unless it is told"
                )
            yield Missed(
                what=f"{where}: torchrec",
                why=f"the trainer names an optimizer of {listed(tables, kind='table')}, which "
                f"steps sharded tables alone; TorchRec itself would have each on every rank{by}, "
                "step it by the dense optimizer, and send neither its ids nor its sums",
                cure=f"Where the dense optimizer may step it, write `{where}.constraints: "
                f"{_dense(tables[0])}`, or name that type in those that stack.plan is given. With "
                "other types there it is sharded as now, and no more is said of it.",
            )

    def _named_in_tiers(self, tables: Sequence[str]) -> Iterator[Notice]:
        if tables:
            yield Otherwise(
                what=f"{self.where}: torchrec",
                why=f"the trainer names an optimizer of {listed(tables, kind='table')}, which "
                "steps the rows here, those with replicas too; TorchRec itself would have each on "
                "every rank, where it drops that one and the dense optimizer steps the table",
                cure="Where the dense optimizer is to step it, write "
                f"`{self.where}.constraints: {_dense(tables[0])}`; where the one that is named "
                f"is, `{SHARDED}` there, and no more is said of it.",
            )


def sharding_types(plan: ShardingPlan) -> dict[str, str]:
    """The sharding type of each table."""
    return {name: how.sharding_type for _, name, how in planned_tables(plan)}


def _dense(table: str) -> str:
    """The constraint that has a table data-parallel, in YAML."""
    return f"{{{table}: {{sharding_types: [data_parallel]}}}}"

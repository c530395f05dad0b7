"""Kernels of row-wise tables: each must have a row on every rank, for fbgemm looks nothing up in an
empty one."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from recd_plugins.errors import CapabilityError, listed, so_many
from recd_plugins.planning.kernels_without_rows import (
    newly_without_rows,
    row_wise_tables,
    without_rows,
)
from recd_plugins.planning.tables.model_tables import ModelTable, model_tables
from recd_plugins.planning.tables.profiled_table import ProfiledTable
from recd_plugins.planning.tier_plans.table_sizes import TableSizes
from recd_plugins.planning.tier_plans.tier_plan import TierPlan
from recd_plugins.tiers.planner.chosen_sizes import ChosenSizes
from recd_plugins.tiers.planner.left_tables import LeftTables

if TYPE_CHECKING:
    from torch import nn
    from torchrec.distributed.types import ShardingPlan

__all__ = ["KernelRows"]


@dataclass(frozen=True, kw_only=True)
class KernelRows:
    """Checks the sizes of a model's tables: each kernel must have rows on all ranks."""

    model: nn.Module
    world_size: int
    files: Collection[str]
    """The tables that lie in files."""
    fused: Mapping[str, Mapping[str, Any]]
    """The optimizer of each table."""

    def choice_with_rows(
        self,
        chosen: ChosenSizes,
        tables: Mapping[str, ProfiledTable],
        found: Mapping[str, ModelTable],
        left: LeftTables,
    ) -> ChosenSizes:
        """The choice, in which tables whose kernel would have no row on some rank are `left` to
        TorchRec."""
        lacking = without_rows(chosen.sizes, found, self.world_size, self.files, self.fused)
        if not lacking:
            return chosen
        ranks = so_many(self.world_size, "rank")
        left.add(lacking, f"row-wise on {ranks} its kernel would have no row on some")
        return chosen.without(lacking, tables)

    def choice_beside(
        self,
        own: ShardingPlan,
        chosen: ChosenSizes,
        tables: Mapping[str, ProfiledTable],
        left: LeftTables,
        options_in: str,
    ) -> ChosenSizes:
        """The choice, in which bags stay TorchRec's if another table needs them: bags whose rows
        travel get a kernel of their own, and a table that the planner behind has row-wise, in their
        old kernel, could have no row on some rank without them. `options_in` is the slot that names
        tables."""
        every, planned = model_tables(self.model), chosen.planned
        lacking = self._newly_lacking(row_wise_tables(own, every), planned, every)
        lone = sorted(set(lacking).difference(planned))
        if not lone:
            return chosen
        modules = {every[name].module for name in lone}
        partners = [
            name
            for name in planned
            if every[name].module in modules and planned[name].coalesce != "none"
        ]
        why = (
            f"its kernel is that of {listed(lone, kind='table')} too, which would have no row on "
            f"some of {so_many(self.world_size, 'rank')} without it"
        )
        cure = (
            f"Have {listed(lone, kind='table')} planned too, if `{options_in}` has `tables`; "
            "or sharded in another way than row-wise."
        )
        left.add(partners, why, cure)
        return chosen.without(partners, tables)

    def check_saved(self, saved: TierPlan, plan: ShardingPlan, where: str) -> None:
        """`CapabilityError` where a saved tier plan puts a table into a kernel without a row on
        some rank, or leaves one there that the planner behind has row-wise."""
        every = model_tables(self.model)
        behind = row_wise_tables(plan, every)
        held = {
            name: TableSizes(coalesce=one.coalesce)
            for name, one in saved.tables.items()
            if name in behind
        }
        lacking = self._newly_lacking(behind, held, every)
        if lacking:
            raise CapabilityError(
                f"{where} leaves {listed(lacking, kind='table')} row-wise in a kernel without a "
                f"row on some of {so_many(self.world_size, 'rank')}, where the first batch would "
                "fail while the other ranks wait. Plan again: take `plan` out of registry.yaml."
            )

    def _newly_lacking(
        self,
        behind: Mapping[str, TableSizes],
        planned: Mapping[str, TableSizes],
        every: Mapping[str, ModelTable],
    ) -> list[str]:
        return newly_without_rows(behind, planned, every, self.world_size, self.files, self.fused)

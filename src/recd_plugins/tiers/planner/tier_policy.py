"""The policy of a planner of tiers (`TierPolicy`): what a plugin says, and what it may go by.

A plugin says how many rows of which tables each tier takes (`tables`, `choose`), and by default the
hottest rows are taken (`hottest_rows`). The rest has defaults: for a policy that stands in front of
another one, or that decides where tables are at home.
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from recd_plugins.notices import Unused
from recd_plugins.planning.access.access_profile import Profile
from recd_plugins.planning.access.distribution import Integers, RowDistribution
from recd_plugins.planning.cluster.cluster import Cluster
from recd_plugins.planning.constraints import TableConstraint
from recd_plugins.planning.planner_bases import HoldsRowWise, TakesContext, Tiered
from recd_plugins.planning.prices.cost import Prices, Pricing, priced
from recd_plugins.planning.prices.replica_factor import replica_factor, replica_passes
from recd_plugins.planning.tables.model_tables import ModelTable
from recd_plugins.planning.tables.profiled_table import ProfiledTable
from recd_plugins.tiers.planner.chosen_sizes import ChosenSizes
from recd_plugins.tiers.planner.left_tables import LeftTables
from recd_plugins.tiers.planner.plan_notices import PlanNotices
from recd_plugins.tiers.planner.table_profiles import TableProfiles

if TYPE_CHECKING:
    from torch import nn

    from recd_plugins.planning.cluster.topology import Topology
    from recd_plugins.slots import Context

__all__ = ["TierPolicy"]


class TierPolicy(Tiered, TakesContext):
    """Chooses how many rows of which tables have replicas, and which rows."""

    name: ClassVar[str]
    """Its name in registry.yaml."""
    slot: ClassVar[str]
    """The slot whose options it has."""
    kind: ClassVar[str] = "table"
    """The word for what it gives replicas to, in messages."""

    def __init__(
        self,
        context: Context,
        *,
        profile: Path | None,
        profile_batches: int | None = None,
        plan: Path | None = None,
        others: HoldsRowWise | None = None,
    ) -> None:
        """`others` is the planner behind, by default the context's. Tables are profiled on
        `profile_batches` batches of each rank, by default on as many as it takes (`count_sample`),
        unless a saved `profile` is named. A saved tier `plan` is taken as it is."""
        self.context = context
        """The context of the job that is planned."""
        self.others = others or context.require_others()
        """The planner behind: of the tables that get no replicas, and of where the homes of those
        with replicas are."""
        self.profile_path = profile
        self.num_profile_batches = profile_batches
        self.plan_path = plan
        self.found: Mapping[str, ModelTable] = {}
        """The model's tables that the plan is for, without those that it leaves on its way."""
        self.fused: Mapping[str, Mapping[str, Any]] = {}
        """The optimizer of each of the model's tables, as TorchRec's `fused_params`."""
        self.carried = 1.0
        """The share of the bytes of rows, sums and gradients that exchanges carry, by the sharders'
        codecs: `Prices.carried`."""
        self._profiles = TableProfiles(self.options_in, profile, profile_batches)
        self._left = LeftTables()
        self._notice_of = PlanNotices(
            self.who,
            self.kind,
            asked_by=self.asked_by,
            options_in=self.options_in,
        )

    @abstractmethod
    def tables(self, model: nn.Module) -> Mapping[str, ModelTable]:
        """The tables that may have replicas, or be coalesced."""

    @abstractmethod
    def choose(
        self,
        model: nn.Module,
        tables: Mapping[str, ProfiledTable],
        topology: Topology,
        world_size: int,
    ) -> ChosenSizes:
        """Choose how many rows of each table each tier takes."""

    def hottest_rows(self, table: str, rows: RowDistribution, count: int) -> Integers:
        """[count] int64: the rows of a table that get replicas, the hottest first.

        By default those are the rows looked up most in the profile. A policy with another ranking,
        say by decayed or learned counts, overrides this: rank 0 calls it for each table in planning
        and at each move of the replicas, with the distribution of the batches counted last. Sizes
        and the report go by that distribution, whichever rows it names; its arrays are read-only.
        """
        return rows.hottest(count)

    def no_tables(self, every: Mapping[str, ModelTable]) -> Unused:
        """Why the policy is for none of the model's tables, and what would change that. `every` has
        those that may have replicas."""
        return self._notice_of.none_named(every)

    @property
    def who(self) -> str:
        """The planner as registry.yaml switches it on, and as messages name it."""
        return f"{self.slot}: {self.name}"

    @property
    def options_in(self) -> str:
        """The slot whose options name the tables, and a saved profile or plan; its own, unless
        another planner has these options."""
        return self.slot

    @property
    def asked_by(self) -> tuple[str, ...]:
        """The slots of registry.yaml that ask for its tier plan; without them the plan is that of
        the planner behind."""
        return (self.slot,)

    @property
    def chooses_homes(self) -> bool:
        """Whether tables may lie in mapped files where memory has no room for all."""
        return False

    def home(self, topology: Topology) -> Topology:
        """The topology by which the planner behind counts the memory of tables at home."""
        return topology

    def kernels(self) -> Mapping[str, TableConstraint]:
        """The row-wise tables that are to have another kernel than TorchRec's fused one."""
        return {}

    @property
    def mapped_folder(self) -> Path:
        """The folder of mapped files."""
        return self.context.folder / "mapped"

    def prices(
        self,
        tables: Mapping[str, ProfiledTable],
        cluster: Cluster,
        *,
        pricing: Pricing = "ours",
        k: float | None = None,
    ) -> Prices:
        """The prices of rows on a cluster, for the job that is planned: its batch size, the
        sharders' codecs, and the optimizers of these tables, by which `k` is unless it is given."""
        return priced(
            pricing,
            cluster=cluster,
            batch_size=self.context.batch_size,
            k=k or replica_factor(tables.values(), self.fused),
            stepped=replica_passes(tables.values(), self.fused, cluster),
            carried=self.carried,
        )

    def profiled(self) -> Profile:
        """The trainer's profile, the saved one, or one of the context's batches."""
        return self._profiles.profile(self.context, self.found)

    def take(self, context: Context) -> None:
        mine = self.context
        self.context = dataclasses.replace(
            context,
            others=mine.others,
            where=mine.where,
            name=mine.name,
            neighbours=mine.neighbours,
        )
        if isinstance(self.others, TakesContext):
            self.others.take(context)

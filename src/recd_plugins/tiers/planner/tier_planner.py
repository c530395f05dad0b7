"""The base of planners of tier plans. A subclass is the policy: how many rows of which tables, and
which rows.

A policy subclasses `TierPlanner` and fills in what `TierPolicy` leaves open: `tables` and `choose`;
in `hottest_rows` it may also decide which rows are hot. A plan is a `TierProposal`, which rank 0
makes for all ranks once each has counted its batches. What follows from it comes after: notices,
sharders, moves of the replicas.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from recd_plugins.errors import CapabilityError, DataError, called
from recd_plugins.notices import GivesNotices, Notice
from recd_plugins.planning.access.access_profile import profile_batches
from recd_plugins.planning.answers import having_row_wise, may_be_row_wise, sharders_of
from recd_plugins.planning.planner_bases import Proposes, Retiers
from recd_plugins.planning.tables.embedding_collections import (
    fused_collections,
    with_plain_collections,
)
from recd_plugins.planning.tables.model_tables import model_tables
from recd_plugins.planning.tier_plans.tier_plan import TierPlan
from recd_plugins.planning.together import from_rank_0
from recd_plugins.tiers.planner.chosen_sizes import check_tables, naming_whose
from recd_plugins.tiers.planner.tier_policy import TierPolicy
from recd_plugins.tiers.planner.tier_proposal import TierProposal

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed import ProcessGroup
    from torchrec.distributed.types import ModuleSharder, ShardingPlan

    from recd_plugins.planning.cluster.topology import Topology
    from recd_plugins.tiers.sharder import ShardedTiers

__all__ = ["TierPlanner"]


class TierPlanner(TierPolicy, Proposes, Retiers, GivesNotices):
    """Makes a tier plan and, with the planner that it stands in front of, TorchRec's plan."""

    every: frozenset[str] = frozenset()
    """All tables of the model that was planned last, on rank 0."""
    explanation: str = "No plan has been made yet."
    """Why the last plan is what it is, without the tables that it leaves."""
    _proposal: TierProposal | None = None
    """The last one; rank 0 alone makes any."""
    _has_planned = False
    _sharded: ShardedTiers | None = None
    """The tiers of the last plan, once its sharders were asked for."""
    _every_sharded: tuple[ShardedTiers, ...] = ()
    """The same of all plans that sharders were asked for."""

    def plan(self, model: nn.Module, topology: Topology, group: ProcessGroup) -> ShardingPlan:
        """Rank 0's proposal, on every rank; or its error. Each rank counts its own batches."""
        self._find_tables(model)
        if self.found and not self.plan_path and self._profiles.needs_counts(self.context):
            self._profiles.count(self.context, self.found, group)
        try:
            plan, self.tier_plan, self.mapped = from_rank_0(
                group,
                lambda: (
                    self.propose(model, topology, group.size()),
                    self.tier_plan,
                    self.mapped,
                ),
            )
        finally:
            self._profiles.drop_counts()
        self._sharded = None
        if group.rank() != 0:
            self.explanation = "Planned on rank 0, which knows why."
        return plan

    def propose(self, model: nn.Module, topology: Topology, world_size: int) -> ShardingPlan:
        """The plan for a number of ranks, which need not be there."""
        self._find_tables(model)
        self.every = frozenset(model_tables(model))
        self.tier_plan = self.report = self.profile = self._sharded = None
        self.mapped = ()
        made = self._proposal = TierProposal(
            self,
            self._left,
            self._notice_of,
            self._profiles,
            model=model,
            topology=topology,
            world_size=world_size,
        )
        plan = made.make()
        self.tier_plan, self.mapped = made.tier_plan, made.mapped
        self.profile, self.report = made.profile, made.report
        self.explanation = made.explanation
        return plan

    def _find_tables(self, model: nn.Module) -> None:
        """Begin a plan by the tables that the policy is for, that may be row-wise and that tiers
        can stand in front of; and by how the trainer's sharders train and exchange them."""
        self.fused = self.context.fused_by_table(model)
        self.carried = self.context.carried(model)
        chosen = self.tables(model)
        every = model_tables(model)
        check_tables(chosen, every, f"{self.who}: its `tables` returned")
        self._left.begin(model, chosen, self.fused, sharders_of(self.others))
        if every:  # else a notice of its own says that all are fused
            self._left.add_fused(self._fused_ones(model, every))
        self.found = {
            name: table
            for name, table in chosen.items()
            if may_be_row_wise(self.others, name) and name not in self._left.why
        }
        self._has_planned = True

    def _fused_ones(self, model: nn.Module, every: Collection[str]) -> list[str]:
        """The tables of TorchRec's fused collections, beside `every` other table, that the policy
        would be for if they were in plain ones."""
        fused = {one.name for _, tables in fused_collections(model) for one in tables}
        if not fused.difference(every):
            return []
        chosen = self.tables(with_plain_collections(model))
        return [
            name
            for name in chosen
            if name in fused.difference(every) and may_be_row_wise(self.others, name)
        ]

    @property
    def counted_epoch(self) -> float:
        """The number of batches, on all ranks, of the epoch that the last plan's forecasts are for;
        0 if it is not known, as of a saved profile or a trainer's own loader."""
        return self._profiles.epoch

    def explain(self) -> str:
        return "\n".join([*self._left.in_words(), self.explanation])

    def notices(self) -> Sequence[Notice]:
        """Notices of what registry.yaml switches on and the last plan does not use."""
        made = self._proposal
        behind = self.others if made is None else made.behind
        others = behind.notices() if isinstance(behind, GivesNotices) else ()
        in_part = not self._left.reported.issuperset(self.found)
        of_the_model = self._notice_of.of_the_model(self._left) if in_part else ()
        return [*(made.notices if made else ()), *of_the_model, *others]

    def sharders(self) -> list[ModuleSharder[nn.Module]]:
        """The sharders of the planner behind, with tiers in front of the tables that are
        planned."""
        held = () if self._proposal is None else self._proposal.held
        found = sharders_of(having_row_wise(self.others, held, self.kernels()))
        if self.tier_plan is not None:
            from recd_plugins.tiers.sharder import ShardedTiers, tier_sharders

            if self._sharded is None:
                self._sharded = ShardedTiers(self.tier_plan)
                self._every_sharded += (self._sharded,)
            found = tier_sharders(self._sharded, found)
        return self.in_mapped_files(found, self.mapped) if self.mapped else found

    def in_mapped_files(
        self, sharders: list[ModuleSharder[nn.Module]], tables: Collection[str] | None = None
    ) -> list[ModuleSharder[nn.Module]]:
        """The sharders, with these tables in mapped files, by default all."""
        from recd_plugins.tiers.mapped_tables import mapped

        folder = self.mapped_folder
        folder.mkdir(parents=True, exist_ok=True)
        planned = self.tier_plan.tables if self.tier_plan else {}
        travelling = [name for name, one in planned.items() if one.coalesce != "none"]
        return mapped(sharders, folder, tables, apart=travelling)

    def without_tiers(self, plan: TierPlan) -> list[str]:
        """The tables of this plan, as it was made, that have no tiers in front of them, since they
        were not sharded with tiers. It does not matter if replicas have moved to other rows
        since."""
        made = [one.tables for one in self._every_sharded if one.made_of is plan]
        return sorted(plan.tables.keys() - set().union(*made))

    @property
    def never_hot(self) -> set[str]:
        """The tables with tiers in the last plan whose collections were never handed a hot
        batch."""
        return set() if self._sharded is None else self._sharded.never_hot

    def retier(self, batches: Iterable[Any], group: ProcessGroup) -> None:
        """Give the replicas to the rows that are hot in these batches of rank 0; sizes stay.

        Every rank calls it between the same batches; rows move once the next one is computed.
        """
        if not self._has_planned:
            raise CapabilityError(
                f"{self.who}: replicas were to move before there is a plan that has "
                "any. Call `plan = stack.plan(model, ...)`, shard the model by it and by "
                "stack.sharders(), and move replicas between two of its steps."
            )
        if self.tier_plan is None or self._sharded is None:
            return
        self.tier_plan = from_rank_0(group, lambda: self.hotter(batches))
        self._sharded.retier(self.tier_plan)

    def hotter(self, batches: Iterable[Any]) -> TierPlan:
        """The last plan with the rows that are hot in these batches."""
        assert self.tier_plan is not None  # `retier` asked
        if not isinstance(batches, Iterable):
            raise DataError(
                f"{self.who}: `batches`, by which replicas were to move, is "
                f"{called(batches)}, where it must be an iterable of batches: `retier([batch], "
                "group)`."
            )
        plans = self.tier_plan.tables
        counted = {name: self.found[name].counted for name in plans}
        self.profile = profile_batches(batches, counted, features=self.context.features)
        with naming_whose(self.who):
            return self.tier_plan.with_hottest(self.profile, self.hottest_rows)

    def restore_replicas(self, plan: TierPlan) -> bool:
        mine = self.tier_plan
        if mine is None or self._sharded is None or not mine.differs_by_rows_alone(plan):
            return False
        self.tier_plan = plan
        self._sharded.retier(plan)
        return True

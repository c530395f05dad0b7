"""A plan of a planner of tiers as it is made (`TierProposal`).

It is made by these methods, those that are indented by the one above them. They leave what they
find in the proposal's attributes.

    make
      _proposed
        _around_saved       the plan around a tier plan of a file, if one is named
        _by_policy          else: the plan `own` of the planner behind, were there no tiers
          _make_tier_plan   profiles, and has the policy choose sizes
            _choice         what the policy chooses, checked
            _take_choice    the tier plan of it, unless `own` is faster and nobody forces tiers
        _beside_or_own      the planner behind plans again, beside the tables with sizes; but `own`
                            it is where that is faster, or where replicas leave no room
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from recd_plugins.errors import RecdError, listed
from recd_plugins.notices import Notice, Unused
from recd_plugins.planning.access.access_profile import Profile
from recd_plugins.planning.answers import explanation, having_row_wise, may_be_row_wise
from recd_plugins.planning.cluster.cluster import Cluster
from recd_plugins.planning.cluster.topology import GB, states_links
from recd_plugins.planning.explain.plan_report import PlanReport
from recd_plugins.planning.homes import Homes, without_advice
from recd_plugins.planning.kernels_without_rows import without_rows
from recd_plugins.planning.planner_bases import HoldsRowWise
from recd_plugins.planning.tables.model_tables import ModelTable, model_tables
from recd_plugins.planning.tables.planned_shards import planned_shards
from recd_plugins.planning.tables.profiled_table import ProfiledTable
from recd_plugins.planning.tier_plans.plan_of_sizes import tier_plan
from recd_plugins.planning.tier_plans.table_sizes import TableSizes
from recd_plugins.planning.tier_plans.tier_plan import TierPlan
from recd_plugins.tiers.planner.chosen_sizes import ChosenSizes, check_choice, naming_whose
from recd_plugins.tiers.planner.kernel_rows import KernelRows
from recd_plugins.tiers.planner.left_tables import LeftTables, of_weighted_means
from recd_plugins.tiers.planner.plan_notices import OWN, PlanNotices, in_backticks
from recd_plugins.tiers.planner.priced_choice import priced_beside, slower_than_own
from recd_plugins.tiers.planner.table_profiles import TableProfiles
from recd_plugins.tiers.planner.tier_policy import TierPolicy

if TYPE_CHECKING:
    from torch import nn
    from torchrec.distributed.types import ShardingPlan

    from recd_plugins.planning.cluster.topology import Topology

__all__ = ["TierProposal"]


class TierProposal:
    """One plan of a policy: a tier plan, and around it TorchRec's plan by the planner behind."""

    def __init__(
        self,
        policy: TierPolicy,
        left: LeftTables,
        notice_of: PlanNotices,
        profiles: TableProfiles,
        *,
        model: nn.Module,
        topology: Topology,
        world_size: int,
    ) -> None:
        """It is for the tables that the `policy` has `found`. `left` are the tables that are left
        to TorchRec before it begins, and takes those that it leaves, of which `notice_of` makes
        notices; `profiles` has what was counted for it."""
        self._policy, self._profiles = policy, profiles
        self._left, self._notice_of = left, notice_of
        self._name, self._who, self._fused = policy.name, policy.who, policy.fused
        self._model, self._topology, self._world_size = model, topology, world_size
        self._homes = Homes(
            model,
            policy.home(topology),
            world_size,
            slot=policy.slot,
            name=policy.name,
            options_in=policy.options_in,
            device=topology.device or policy.context.device,
            chosen=policy.chooses_homes,
        )
        self.profile: Profile | None = None
        """The access distributions that the policy chose by."""
        self.report: PlanReport | None = None
        """The costs and the savings of the tier plan."""
        self.tier_plan: TierPlan | None = None
        self.explanation = ""
        """Why the plan is what it is."""
        self.notices: list[Notice] = []
        self.held: tuple[str, ...] = ()
        """The tables that are row-wise, whatever the planner behind would choose."""
        self._forced = True
        self.behind = policy.others
        """The planner behind as it made the plan: the policy's `others`, or a copy."""

    @property
    def mapped(self) -> tuple[str, ...]:
        """The tables that lie in mapped files because memory has no room for all."""
        return self._homes.mapped

    def make(self) -> ShardingPlan:
        """The plan, for a number of ranks which need not be there."""
        reason, plan = self._proposed()
        if self.tier_plan is not None:
            self.tier_plan = dataclasses.replace(self.tier_plan, mapped=self.mapped)
        self.explanation = "\n".join([reason, *self._homes.in_words(), explanation(self.behind)])
        return plan

    @property
    def _found(self) -> Mapping[str, ModelTable]:
        """The tables that it is for, without those that are left so far."""
        return self._policy.found

    @property
    def _cluster(self) -> Cluster:
        return Cluster.of(self._topology, self._world_size)

    def _proposed(self) -> tuple[str, ShardingPlan]:
        """The plan, and why it is what it is, in words."""
        if self._policy.plan_path is not None:
            return self._around_saved(self._policy.plan_path)
        if unused := self._nothing_to_plan():
            self.notices = [unused]
            reason = f"{self._name}: {unused.why}, so every table is left to TorchRec's planner. "
            return reason + unused.cure, self._plan_behind()
        reason, own = self._by_policy()
        if not self.held:
            return reason, own
        return self._beside_or_own(reason, own)

    def _around_saved(self, path: Path) -> tuple[str, ShardingPlan]:
        """The plan around a saved tier plan, and what that says, in words."""
        reason = self._from_file(path)
        self.held = tuple(self.tier_plan.tables) if self.tier_plan else ()
        plan = self._plan_behind()
        if self.tier_plan is not None:
            rows = self._kernel_rows()
            rows.check_saved(self.tier_plan, plan, f"{self._policy.options_in}.plan: {path}")
        return reason, plan

    def _from_file(self, path: Path) -> str:
        """Take the plan of a file, which must be for these tables and ranks; what it says, in
        words."""
        num_rows = {name: table.num_rows for name, table in self._found.items()}
        plan, where = TierPlan.load(path), f"{self._policy.options_in}.plan: {path}"
        if not self._policy.homes_by_table:
            plan = dataclasses.replace(plan, mapped=())
        plan.check_fits(num_rows, self._cluster, where=where)
        if plan.mapped:
            self._homes.take(plan.mapped, where)
        self.tier_plan = plan if plan.tables else None
        return f"tier plan: as in {path}; {plan.in_words()}"

    def _nothing_to_plan(self) -> Unused | None:
        """Why no table could get replicas, if that is so."""
        if self._found:
            known = self._profiles.can_be_made(self._policy.context)
            return None if known else self._notice_of.no_batches()
        model = self._model
        every, chosen = model_tables(model), self._policy.tables(model)
        if not every:
            return self._notice_of.no_collections(model)
        if self._left.why:
            return self._notice_of.all_left(self._left)
        if chosen:
            return self._notice_of.constrained(chosen)
        names = self._left.to_choose(every)
        if not names:
            self._left.add_refused(every)
            return self._notice_of.all_left(self._left)
        free = {name: every[name] for name in names if may_be_row_wise(self._policy.others, name)}
        return self._policy.no_tables(free) if free else self._notice_of.constrained(names)

    def _by_policy(self) -> tuple[str, ShardingPlan]:
        """Why the tier plan of the policy is what it is, in words; and the plan of the planner
        behind, were there no tiers."""
        own = self._homes.own_plan(self._policy.others)
        self._profiles.forget_last()
        if self._homes.lacking is None:  # else another plan is made, by the room that there is
            self._leave_data_parallel(own)
        if self._found:
            reason, own = self._make_tier_plan(own)
        else:
            self.notices = [self._notice_of.all_data_parallel()]
            reason = str(self.notices[0])
        return "\n".join([reason, *self._profiles.in_words()]), own

    def _leave_data_parallel(self, own: ShardingPlan) -> None:
        """Leave the tables that the planner behind has on every rank: the dense optimizer steps
        them there, and with tiers their own one would."""
        shards = planned_shards(own, self._found)
        dense = [name for name, one in shards.items() if one.kind == "data_parallel"]
        self._left.add(dense, f"{OWN} plan has it data-parallel")
        self._find_no_more(dense)

    def _make_tier_plan(self, own: ShardingPlan) -> tuple[str, ShardingPlan]:
        """Profile, have sizes chosen, and make the tier plan of them; why, in words.

        `own` is the plan of the planner behind, were there no tiers. It comes back, with tables in
        mapped files where memory has no room for all.
        """
        profile = self.profile = self._policy.profiled()
        if strange := self._profiles.strange:
            self.notices.append(self._notice_of.counted_otherwise(strange))
        if self._profiles.alike:
            self.notices.append(self._notice_of.counted_alike())
        if all_left := self._leave_by_lookups():
            return all_left, own
        homes = self._homes
        if homes.lacking is not None:
            self.behind, own = homes.leave_memory(
                self._policy.others,
                self._found,
                profile,
                self._fused,
                self._policy.context.batch_size,
            )
            self._leave_data_parallel(own)
            if not self._found:
                self.notices.append(self._notice_of.all_data_parallel())
                return str(self.notices[-1]), own
        shards = planned_shards(own, self._found)
        tables = {
            name: table.with_rows(profile[name], shards.get(name), mapped=name in homes.mapped)
            for name, table in self._found.items()
        }
        chosen = self._choice(tables, own)
        return self._take_choice(chosen, tables), own

    def _leave_by_lookups(self) -> str:
        """Leave the tables that the counted batches look up in ways that replicas do not take; the
        reason, in words, where that leaves all of them and none has to leave memory."""
        if variable := self._leave_variable():
            others = bool(self._found)
            self._left.add_variable(variable)
            self.notices.append(self._notice_of.variable(variable, others=others))
            if not self._found and self._homes.lacking is None:
                return str(self.notices[-1])
        if self._leave_weighted_means() and not self._found and self._homes.lacking is None:
            self.notices.append(self._notice_of.all_left(self._left))
            return str(self.notices[-1])
        return ""

    def _leave_variable(self) -> list[str]:
        """Leave the tables of collections that are given KJTs of variable batch, which replicas do
        not take; their names."""
        variable = self._profiles.variable
        given = {one.module for one in self._found.values() if variable & {*one.features}}
        left = [name for name, one in self._found.items() if one.module in given]
        self._find_no_more(left)
        return left

    def _leave_weighted_means(self) -> list[str]:
        """Leave the tables that take means of ids which come with weights; their names."""
        left = [
            name
            for name in of_weighted_means(self._model, self._profiles.weighted)
            if name in self._found
        ]
        self._left.add_weighted_means(left)
        self._find_no_more(left)
        return left

    def _find_no_more(self, tables: Collection[str]) -> None:
        self._policy.found = {name: one for name, one in self._found.items() if name not in tables}

    def _choice(self, tables: Mapping[str, ProfiledTable], own: ShardingPlan) -> ChosenSizes:
        """The policy's choice, checked, without tables whose kernels would lack rows on a rank."""
        with naming_whose(self._who):
            chosen = self._policy.choose(self._model, tables, self._topology, self._world_size)
        check_choice(chosen, tables, f"{self._who}: its `choose` returned")
        rows = self._kernel_rows()
        chosen = rows.choice_with_rows(chosen, tables, self._found, self._left)
        return rows.choice_beside(own, chosen, tables, self._left, self._policy.options_in)

    def _take_choice(self, chosen: ChosenSizes, tables: Mapping[str, ProfiledTable]) -> str:
        """Make the tier plan of the choice, unless TorchRec's own plan is faster by the prices and
        nobody forces this one; why, in words."""
        self.report, reason = chosen.report, chosen.reason
        self.notices += chosen.notices
        assert self.profile is not None  # the choice was made by it
        counted = any(one.lookups for one in self.profile.rows.values())
        ms, other = (ledger.ms for ledger in (chosen.report.ledger, chosen.report.torchrec))
        if counted and ms > other:
            notice, becomes = slower_than_own(
                self._name,
                self._policy.slot,
                self._policy.asked_by,
                ms,
                other,
                forced=chosen.forced,
            )
            self.notices.append(notice)
            reason = f"{reason}\n{becomes}"
            if not chosen.forced:
                self.report = None
                return reason
        self._take_sizes(chosen, tables)
        return reason

    def _take_sizes(self, chosen: ChosenSizes, tables: Mapping[str, ProfiledTable]) -> None:
        """Make the tier plan of the chosen sizes, and a notice where no table has any."""
        sizes = chosen.planned
        self.held, self._forced = tuple(sizes), chosen.forced
        tiered = {name: size for name, size in sizes.items() if size != TableSizes()}
        with naming_whose(self._who):
            found = (
                tier_plan(tables, tiered, self._cluster, self._policy.hottest_rows)
                if tiered
                else None
            )
        self.tier_plan = found
        if not tiered and not self.notices and not self._homes.mapped:
            self.notices.append(
                self._notice_of.all_left(self._left)
                if self._left.reported.issuperset(self._found)
                else self._notice_of.none_pays(
                    self._found,
                    self._world_size,
                    row_wise=bool(sizes),
                    over=chosen.report.over,
                    needs_gb=chosen.report.needs / GB,
                    links_stated=states_links(self._topology),
                )
            )

    def _beside_or_own(self, reason: str, own: ShardingPlan) -> tuple[str, ShardingPlan]:
        """The plan beside the tier plan; or the planner's `own` one, and a notice, where a step is
        slower with tiers and nobody forced them, or where they leave no room."""
        mapped = self._homes.mapped
        behind, plan, slower = self._beside_tiers()
        if plan is not None and (self._forced or not slower):
            self.behind = behind
            return reason, plan
        self._homes.mapped = mapped
        self.tier_plan, self.held = None, ()
        out = in_backticks(self._policy.asked_by)
        cure = f"stack.explain() has the prices; take {out} out where that is right."
        self.notices.append(Unused(what=self._who, why=slower, cure=cure))
        return f"{reason}\n{slower}", own

    def _plan_behind(self) -> ShardingPlan:
        """The plan of the planner behind, beside tables that it must have row-wise."""
        self.behind, plan, _ = self._beside_tiers()
        assert plan is not None  # only a planner that chose sizes goes without one
        return plan

    def _beside_tiers(self) -> tuple[HoldsRowWise, ShardingPlan | None, str]:
        """The planner behind, which has the tables with sizes row-wise; its plan, if it finds one;
        and what to say if a step is slower by it, or if replicas leave no room for any plan."""
        behind, homes = self._planner_behind(), self._homes
        try:
            behind, plan = homes.plan_beside(behind, self._replica_bytes, self._fused)
        except RecdError as error:
            if self._policy.chooses_homes and not self.held and without_advice(error) != str(error):
                raise homes.none_may_leave(error) from error
            if not self._policy.chooses_homes or not self.held:
                raise
            why = f"{self._name}: {without_advice(error)} All is left to the planner behind."
            return behind, None, why
        if homes.lacking is not None:
            # Tables whose rows travel may be in a module of their own, and look up there.
            held = dict.fromkeys(self.held, TableSizes())
            empty = without_rows(held, self._found, self._world_size, homes.mapped, self._fused)
            if empty := empty or homes.empty_somewhere(plan, self._fused):
                names = listed(empty, kind="table")
                why = f"row-wise, {names} in memory would have no row on some rank"
                return behind, None, f"{self._name}: {why}: all is left to the planner behind."
        return behind, plan, self._placed_anew(plan, homes.mapped)

    def _planner_behind(self) -> HoldsRowWise:
        """The planner behind, which has the tables with sizes row-wise."""
        return having_row_wise(self._policy.others, self.held, self._policy.kernels())

    @property
    def _replica_bytes(self) -> float:
        """The bytes of a rank that replicas take, and what goes with them."""
        return self.report.ledger.replica_memory if self.report else 0.0

    def _placed_anew(self, plan: ShardingPlan, mapped: Collection[str]) -> str:
        """Price the tables that are left to the planner behind where it has them now: with others
        row-wise, it may put them on other ranks. What to say if a step is slower by that."""
        if self.report is None:
            return ""
        report = self.report = priced_beside(self.report, plan, self._found, mapped)
        if report.ledger.ms <= report.torchrec.ms:
            return ""
        return (
            f"{self._name}: beside these the planner behind has its tables so that a step takes "
            f"{report.ledger.ms:.3g} ms, for {report.torchrec.ms:.3g}: all is left to it."
        )

    def _kernel_rows(self) -> KernelRows:
        """What checks that kernels have rows on all ranks; tables in files are those for which
        memory has no room."""
        files = self._found if self._policy.all_mapped else self._homes.mapped
        return KernelRows(
            model=self._model, world_size=self._world_size, files=files, fused=self._fused
        )

"""The base of planners of tier plans. A subclass is the policy: how many rows of which tables, and
which rows.

A policy subclasses `TierPlanner` and fills in `tables` and `choose`; in `hottest_rows` it may also
decide which rows are hot. In the class, what a policy may say comes first; then a plan, in the
order in which it is made; then what follows from it: notices, sharders, moves of the replicas.

A plan is made by these methods, those that are indented by the one above them. They leave what they
find in `found`, `profile`, `report`, `tier_plan` and `mapped`, and notices.

    plan                    each rank counts its batches, and rank 0 proposes for all
    propose
      _find_tables          the policy's tables that tiers can stand in front of
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
from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from recd_plugins.errors import (
    CapabilityError,
    DataError,
    RecdError,
    called,
    listed,
)
from recd_plugins.notices import GivesNotices, Notice, Unused
from recd_plugins.planning.access.access_profile import Profile, profile_batches
from recd_plugins.planning.access.distribution import Integers, RowDistribution
from recd_plugins.planning.answers import (
    explanation,
    having_row_wise,
    may_be_row_wise,
    sharders_of,
)
from recd_plugins.planning.cluster import Cluster
from recd_plugins.planning.constraints import TableConstraint
from recd_plugins.planning.cost import Prices, Pricing, priced
from recd_plugins.planning.embedding_collections import fused_collections, with_plain_collections
from recd_plugins.planning.homes import Homes, without_advice
from recd_plugins.planning.kernels_without_rows import without_rows
from recd_plugins.planning.model_tables import ModelTable, model_tables
from recd_plugins.planning.planned_shards import planned_shards
from recd_plugins.planning.planner_bases import (
    HoldsRowWise,
    Proposes,
    Retiers,
    TakesContext,
    Tiered,
)
from recd_plugins.planning.replica_factor import replica_factor, replica_passes
from recd_plugins.planning.table_sizes import ProfiledTable, TableSizes, tier_plan
from recd_plugins.planning.tier_plan import TierPlan
from recd_plugins.planning.together import from_rank_0
from recd_plugins.planning.topology import states_links
from recd_plugins.tiers.planner.chosen_sizes import ChosenSizes, check_choice, check_tables
from recd_plugins.tiers.planner.kernel_rows import KernelRows
from recd_plugins.tiers.planner.left_tables import OWN, LeftTables, in_backticks, of_weighted_means
from recd_plugins.tiers.planner.priced_choice import priced_beside, slower_than_own
from recd_plugins.tiers.planner.table_profiles import TableProfiles

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed import ProcessGroup
    from torchrec.distributed.types import ModuleSharder, ShardingPlan

    from recd_plugins.planning.topology import Topology
    from recd_plugins.slots import Context
    from recd_plugins.tiers.sharder import ShardedTiers

__all__ = ["TierPlanner"]


class TierPlanner(Tiered, Proposes, Retiers, TakesContext, GivesNotices):
    """Makes a tier plan and, with the planner that it stands in front of, TorchRec's plan."""

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
        """`others` is the planner of the other tables, by default the context's. Tables are
        profiled on `profile_batches` batches of each rank, by default on as many as it takes
        (`count_sample`), unless a saved `profile` is named. A saved tier `plan` is taken as it
        is."""
        self.context = context
        """The context of the job that is planned."""
        self.others = others or context.require_others()
        """The planner of the tables that get no replicas, and of where the homes of the others
        are."""
        self.profile_path = profile
        self.num_profile_batches = profile_batches
        self.plan_path = plan
        self.found: Mapping[str, ModelTable] = {}
        """The model's tables that the last plan was made for."""
        self.every: frozenset[str] = frozenset()
        """All tables of that model, on rank 0."""
        self.fused: Mapping[str, Mapping[str, Any]] = {}
        """The optimizer of each of the model's tables, as TorchRec's `fused_params`."""
        self._who = f"{self.slot}: {self.name}"
        """The planner as registry.yaml switches it on, and as messages name it."""
        self.carried = 1.0
        """The share of the bytes of rows, sums and gradients that exchanges carry, by the sharders'
        codecs: `Prices.carried`."""
        self._profiles = TableProfiles(self.options_in, profile, profile_batches)
        self._left = LeftTables(
            self._who,
            self.kind,
            asked_by=self.asked_by,
            options_in=self.options_in,
        )
        self.explanation = "No plan has been made yet."
        self._has_planned = False
        self._held: tuple[str, ...] = ()
        """The tables that are row-wise in the last plan, whatever the planner behind would
        choose."""
        self._forced = True
        self._sharded: ShardedTiers | None = None
        """The tiers of the last plan, once its sharders were asked for."""
        self._every_sharded: list[ShardedTiers] = []
        """The same of all plans that sharders were asked for."""
        self._notices: list[Notice] = []
        self._behind = self.others
        """The planner of the others as it made the last plan: `others`, or a copy of it."""

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
        return self._left.none_named(every)

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
        """The topology by which the planner of the others counts the memory of tables at home."""
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
        self.report = self._sharded = None
        self._notices, self._behind, self.mapped = [], self.others, ()
        self._leave_all()
        homes = Homes(
            model,
            self.home(topology),
            world_size,
            slot=self.slot,
            name=self.name,
            options_in=self.options_in,
            device=topology.device or self.context.device,
            chosen=self.chooses_homes,
        )
        asked = _AskedPlan(model=model, topology=topology, world_size=world_size, homes=homes)
        reason, plan = self._proposed(asked)
        self.mapped = homes.mapped
        if self.tier_plan is not None:
            self.tier_plan = dataclasses.replace(self.tier_plan, mapped=self.mapped)
        self.explanation = "\n".join([reason, *homes.in_words(), explanation(self._behind)])
        return plan

    def _find_tables(self, model: nn.Module) -> None:
        """Begin a plan by the tables that the policy is for, that may be row-wise and that tiers
        can stand in front of; and by how the trainer's sharders train and exchange them."""
        self.fused = self.context.fused_by_table(model)
        self.carried = self.context.carried(model)
        chosen = self.tables(model)
        every = model_tables(model)
        check_tables(chosen, every, f"{self._who}: its `tables` returned")
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

    def _proposed(self, asked: _AskedPlan) -> tuple[str, ShardingPlan]:
        """The plan, and why it is what it is, in words."""
        if self.plan_path is not None:
            return self._around_saved(self.plan_path, asked)
        if unused := self._nothing_to_plan(asked.model):
            self._notices = [unused]
            reason = f"{self.name}: {unused.why}, so every table is left to TorchRec's planner. "
            return reason + unused.cure, self._plan_of_others(asked)
        reason, own = self._by_policy(asked)
        if not self._held:
            return reason, own
        return self._beside_or_own(reason, own, asked)

    def _around_saved(self, path: Path, asked: _AskedPlan) -> tuple[str, ShardingPlan]:
        """The plan around a saved tier plan, and what that says, in words."""
        reason = self._from_file(path, asked)
        self._held = tuple(self.tier_plan.tables) if self.tier_plan else ()
        plan = self._plan_of_others(asked)
        if self.tier_plan is not None:
            rows = self._kernel_rows(asked)
            rows.check_saved(self.tier_plan, plan, f"{self.options_in}.plan: {path}")
        return reason, plan

    def _from_file(self, path: Path, asked: _AskedPlan) -> str:
        """Take the plan of a file, which must be for these tables and ranks; what it says, in
        words."""
        num_rows = {name: table.num_rows for name, table in self.found.items()}
        plan, where = TierPlan.load(path), f"{self.options_in}.plan: {path}"
        if not self.homes_by_table:
            plan = dataclasses.replace(plan, mapped=())
        plan.check_fits(num_rows, asked.cluster, where=where)
        if plan.mapped:
            asked.homes.take(plan.mapped, where)
        self.tier_plan = plan if plan.tables else None
        return f"tier plan: as in {path}; {plan.in_words()}"

    def _nothing_to_plan(self, model: nn.Module) -> Unused | None:
        """Why no table could get replicas, if that is so."""
        if self.found:
            known = self._profiles.can_be_made(self.context)
            return None if known else self._left.no_batches(self.options_in)
        every, chosen = model_tables(model), self.tables(model)
        if not every:
            return self._left.no_collections(model)
        if self._left.why:
            return self._left.all_left()
        if chosen:
            return self._left.constrained(chosen)
        names = self._left.to_choose(every)
        if not names:
            return self._left.all_left()
        free = {name: every[name] for name in names if may_be_row_wise(self.others, name)}
        return self.no_tables(free) if free else self._left.constrained(names)

    def _by_policy(self, asked: _AskedPlan) -> tuple[str, ShardingPlan]:
        """Why the tier plan of the policy is what it is, in words; and the plan of the planner
        behind, were there no tiers."""
        own = asked.homes.own_plan(self.others)
        self._profiles.forget_last()
        if asked.homes.lacking is None:  # else another plan is made, by the room that there is
            self._leave_data_parallel(own)
        if self.found:
            reason, own = self._make_tier_plan(asked, own)
        else:
            self._notices = [self._left.all_data_parallel()]
            reason = str(self._notices[0])
        return "\n".join([reason, *self._profiles.in_words()]), own

    def _leave_data_parallel(self, own: ShardingPlan) -> None:
        """Leave the tables that the planner behind has on every rank: the dense optimizer steps
        them there, and with tiers their own one would."""
        shards = planned_shards(own, self.found)
        dense = [name for name, one in shards.items() if one.kind == "data_parallel"]
        self._left.add(dense, f"{OWN} plan has it data-parallel")
        self._find_no_more(dense)

    def _make_tier_plan(self, asked: _AskedPlan, own: ShardingPlan) -> tuple[str, ShardingPlan]:
        """Profile, have sizes chosen, and make the tier plan of them; why, in words.

        `own` is the plan of the planner behind, were there no tiers. It comes back, with tables in
        mapped files where memory has no room for all.
        """
        profile = self.profile = self.profiled()
        if strange := self._profiles.strange:
            self._notices.append(self._left.counted_otherwise(strange))
        if self._profiles.alike:
            self._notices.append(self._left.counted_alike())
        homes = asked.homes
        if all_left := self._leave_by_lookups(asked.model, homes):
            return all_left, own
        if homes.lacking is not None:
            self._behind, own = homes.leave_memory(
                self.others, self.found, profile, self.fused, self.context.batch_size
            )
            self._leave_data_parallel(own)
            if not self.found:
                self._notices.append(self._left.all_data_parallel())
                return str(self._notices[-1]), own
        shards = planned_shards(own, self.found)
        tables = {
            name: table.with_rows(profile[name], shards.get(name), mapped=name in homes.mapped)
            for name, table in self.found.items()
        }
        chosen = self._choice(asked, tables, own)
        return self._take_choice(asked, chosen, tables), own

    def _leave_by_lookups(self, model: nn.Module, homes: Homes) -> str:
        """Leave the tables that the counted batches look up in ways that replicas do not take; the
        reason, in words, where that leaves all of them and none has to leave memory."""
        if variable := self._leave_variable():
            others = bool(self.found)
            self._notices.append(self._left.add_variable(variable, others=others))
            if not self.found and homes.lacking is None:
                return str(self._notices[-1])
        if self._leave_weighted_means(model) and not self.found and homes.lacking is None:
            self._notices.append(self._left.all_left())
            return str(self._notices[-1])
        return ""

    def _leave_variable(self) -> list[str]:
        """Leave the tables of collections that are given KJTs of variable batch, which replicas do
        not take; their names."""
        variable = self._profiles.variable
        given = {one.module for one in self.found.values() if variable & {*one.features}}
        left = [name for name, one in self.found.items() if one.module in given]
        self._find_no_more(left)
        return left

    def _leave_weighted_means(self, model: nn.Module) -> list[str]:
        """Leave the tables that take means of ids which come with weights; their names."""
        left = [
            name for name in of_weighted_means(model, self._profiles.weighted) if name in self.found
        ]
        self._left.add_weighted_means(left)
        self._find_no_more(left)
        return left

    def _find_no_more(self, tables: Collection[str]) -> None:
        self.found = {name: one for name, one in self.found.items() if name not in tables}

    def _choice(
        self, asked: _AskedPlan, tables: Mapping[str, ProfiledTable], own: ShardingPlan
    ) -> ChosenSizes:
        """The policy's choice, checked, without tables whose kernels would lack rows on a rank."""
        with self._naming_whose():
            chosen = self.choose(asked.model, tables, asked.topology, asked.world_size)
        check_choice(chosen, tables, f"{self._who}: its `choose` returned")
        rows = self._kernel_rows(asked)
        chosen = rows.choice_with_rows(chosen, tables, self.found, self._left)
        return rows.choice_beside(own, chosen, tables, self._left, self.options_in)

    def _take_choice(
        self, asked: _AskedPlan, chosen: ChosenSizes, tables: Mapping[str, ProfiledTable]
    ) -> str:
        """Make the tier plan of the choice, unless TorchRec's own plan is faster by the prices and
        nobody forces this one; why, in words."""
        self.report, reason = chosen.report, chosen.reason
        self._notices += chosen.notices
        assert self.profile is not None  # the choice was made by it
        counted = any(one.lookups for one in self.profile.rows.values())
        ms, other = (ledger.ms for ledger in (chosen.report.ledger, chosen.report.torchrec))
        if counted and ms > other:
            notice, becomes = slower_than_own(
                self.name, self.slot, self.asked_by, ms, other, forced=chosen.forced
            )
            self._notices.append(notice)
            reason = f"{reason}\n{becomes}"
            if not chosen.forced:
                self.report = None
                return reason
        self._take_sizes(asked, chosen, tables)
        return reason

    def _take_sizes(
        self, asked: _AskedPlan, chosen: ChosenSizes, tables: Mapping[str, ProfiledTable]
    ) -> None:
        """Make the tier plan of the chosen sizes, and a notice where no table has any."""
        sizes = chosen.planned
        self._held, self._forced = tuple(sizes), chosen.forced
        tiered = {name: size for name, size in sizes.items() if size != TableSizes()}
        with self._naming_whose():
            found = tier_plan(tables, tiered, asked.cluster, self.hottest_rows) if tiered else None
        self.tier_plan = found
        if not tiered and not self._notices and not asked.homes.mapped:
            self._notices.append(
                self._left.all_left()
                if self._left.reported.issuperset(self.found)
                else self._left.none_pays(
                    self.found,
                    asked.world_size,
                    row_wise=bool(sizes),
                    over=chosen.report.over,
                    links_stated=asked.links_stated,
                )
            )

    @contextmanager
    def _naming_whose(self) -> Iterator[None]:
        """Inside, an error of sizes or rows says whose they are."""
        try:
            yield
        except DataError as error:
            raise DataError(f"{self._who}: {error}") from error

    def _beside_or_own(
        self, reason: str, own: ShardingPlan, asked: _AskedPlan
    ) -> tuple[str, ShardingPlan]:
        """The plan beside the tier plan; or the planner's `own` one, and a notice, where a step is
        slower with tiers and nobody forced them, or where they leave no room."""
        mapped = asked.homes.mapped
        others, plan, slower = self._beside_tiers(asked)
        if plan is not None and (self._forced or not slower):
            self._behind = others
            return reason, plan
        asked.homes.mapped = mapped
        self._leave_all()
        out = in_backticks(self.asked_by)
        cure = f"stack.explain() has the prices; take {out} out where that is right."
        self._notices.append(Unused(what=self._who, why=slower, cure=cure))
        return f"{reason}\n{slower}", own

    def _plan_of_others(self, asked: _AskedPlan) -> ShardingPlan:
        """The plan of the planner behind, beside tables that it must have row-wise."""
        self._behind, plan, _ = self._beside_tiers(asked)
        assert plan is not None  # only a planner that chose sizes goes without one
        return plan

    def _beside_tiers(self, asked: _AskedPlan) -> tuple[HoldsRowWise, ShardingPlan | None, str]:
        """The planner behind, which has the tables with sizes row-wise; its plan, if it finds one;
        and what to say if a step is slower by it, or if replicas leave no room for any plan."""
        others, homes = self._others_planner(), asked.homes
        try:
            others, plan = homes.plan_beside(others, self._replica_bytes, self.fused)
        except RecdError as error:
            if self.chooses_homes and not self._held and without_advice(error) != str(error):
                raise homes.none_may_leave(error) from error
            if not self.chooses_homes or not self._held:
                raise
            why = f"{self.name}: {without_advice(error)} All is left to the planner behind."
            return others, None, why
        if homes.lacking is not None:
            # Tables whose rows travel may be in a module of their own, and look up there.
            held = dict.fromkeys(self._held, TableSizes())
            empty = without_rows(held, self.found, asked.world_size, homes.mapped, self.fused)
            if empty := empty or homes.empty_somewhere(plan, self.fused):
                names = listed(empty, kind="table")
                why = f"row-wise, {names} in memory would have no row on some rank"
                return others, None, f"{self.name}: {why}: all is left to the planner behind."
        return others, plan, self._placed_anew(plan, homes.mapped)

    def _others_planner(self) -> HoldsRowWise:
        """The planner of the others, which has the tables with sizes row-wise."""
        return having_row_wise(self.others, self._held, self.kernels())

    @property
    def _replica_bytes(self) -> float:
        """The bytes of a rank that replicas take, and what goes with them."""
        return self.report.ledger.replica_memory if self.report else 0.0

    def _placed_anew(self, plan: ShardingPlan, mapped: Collection[str]) -> str:
        """Price the tables that are left to the planner behind where it has them now: with others
        row-wise, it may put them on other ranks. What to say if a step is slower by that."""
        if self.report is None:
            return ""
        report = self.report = priced_beside(self.report, plan, self.found, mapped)
        if report.ledger.ms <= report.torchrec.ms:
            return ""
        return (
            f"{self.name}: beside these the planner behind has its tables so that a step takes "
            f"{report.ledger.ms:.3g} ms, for {report.torchrec.ms:.3g}: all is left to it."
        )

    def _leave_all(self) -> None:
        """Leave every table to the planner behind."""
        self.tier_plan, self._held = None, ()

    def _kernel_rows(self, asked: _AskedPlan) -> KernelRows:
        """What checks that kernels have rows on all ranks; tables in files are those for which
        memory has no room."""
        files = self.found if self.all_mapped else asked.homes.mapped
        return KernelRows(
            model=asked.model, world_size=asked.world_size, files=files, fused=self.fused
        )

    def explain(self) -> str:
        return "\n".join([*self._left.in_words(), self.explanation])

    def notices(self) -> Sequence[Notice]:
        """Notices of what registry.yaml switches on and the last plan does not use."""
        behind = self._behind
        others = behind.notices() if isinstance(behind, GivesNotices) else ()
        in_part = not self._left.reported.issuperset(self.found)
        of_the_model = self._left.of_the_model() if in_part else ()
        return [*self._notices, *of_the_model, *others]

    def sharders(self) -> list[ModuleSharder[nn.Module]]:
        """The sharders of the others, with tiers in front of tables where the plan has any."""
        found = sharders_of(self._others_planner())
        if self.tier_plan is not None:
            from recd_plugins.tiers.sharder import ShardedTiers, tier_sharders

            if self._sharded is None:
                self._sharded = ShardedTiers(self.tier_plan)
                self._every_sharded.append(self._sharded)
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
                f"{self._who}: replicas were to move before there is a plan that has "
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
                f"{self._who}: `batches`, by which replicas were to move, is "
                f"{called(batches)}, where it must be an iterable of batches: `retier([batch], "
                "group)`."
            )
        plans = self.tier_plan.tables
        counted = {name: self.found[name].counted for name in plans}
        self.profile = profile_batches(batches, counted, features=self.context.features)
        with self._naming_whose():
            return self.tier_plan.with_hottest(self.profile, self.hottest_rows)

    def restore_replicas(self, plan: TierPlan) -> bool:
        mine = self.tier_plan
        if mine is None or self._sharded is None or not mine.differs_by_rows_alone(plan):
            return False
        self.tier_plan = plan
        self._sharded.retier(plan)
        return True


@dataclass(frozen=True, kw_only=True)
class _AskedPlan:
    """What a plan is asked for."""

    model: nn.Module
    topology: Topology
    world_size: int
    homes: Homes
    """The homes of the model's tables, as the plan comes to have them."""

    @property
    def cluster(self) -> Cluster:
        return Cluster.of(self.topology, self.world_size)

    @property
    def links_stated(self) -> bool:
        """Whether prices are of links that the topology says, rather than of TorchRec's own."""
        return states_links(self.topology)

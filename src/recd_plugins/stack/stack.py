"""Records → loader, model, plan, sharders: what a trainer calls.

stack = rp.load("registry.yaml")
plan  = stack.plan(model, batches=loader, features=lambda batch: batch.sparse_features)
model = DistributedModelParallel(model, device=device, plan=plan, sharders=stack.sharders())

The loader is the trainer's own. `stack.loader(rank, world_size)` is the registry's, of its dataset,
which is then counted without being named; `stack.adapt(model)` has a model take what that yields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar, cast
from weakref import ref

from recd_plugins.compat.versions import check_age, installed_versions
from recd_plugins.data.dataset import Split, Tables
from recd_plugins.data.progress import Progress, silent
from recd_plugins.data.schema import Schema
from recd_plugins.data.stats_report import StatsReport
from recd_plugins.data.table import Table
from recd_plugins.errors import CapabilityError, RegistryError, nearest, shown
from recd_plugins.planning.access.access_profile import Counted, Profile
from recd_plugins.planning.access.batches_of_ranks import BatchesOfRanks
from recd_plugins.planning.access.look import LooksAtBatches, Peeked
from recd_plugins.planning.access.sample import count_sample
from recd_plugins.planning.cluster.topology import Topology
from recd_plugins.planning.planner_bases import Proposes, Retiers
from recd_plugins.planning.torchrec_plan.given_constraints import check_known
from recd_plugins.registry import Choice, Registry
from recd_plugins.registry.capability import resolve_device
from recd_plugins.registry.contexts import Contexts
from recd_plugins.registry.delivery import Delivery
from recd_plugins.registry.feature_steps import FeatureSteps
from recd_plugins.registry.periods import Periods
from recd_plugins.registry.table_stats import measured
from recd_plugins.slots import Callback, Loader, OptimizerFactory, Planner, check_callback
from recd_plugins.stack.adaptation import Adaptation
from recd_plugins.stack.arguments import (
    check_batches,
    check_features,
    check_group,
    check_model,
    check_overrides,
    check_plan_arguments,
    check_sharders,
    check_share,
)
from recd_plugins.stack.batch_order import BatchOrder
from recd_plugins.stack.checked_plan import check_is_plan, compare_with_trainer
from recd_plugins.stack.group_planning import GroupPlanning, TrainersOwn
from recd_plugins.stack.handed_sharders import HandedSharders
from recd_plugins.stack.loaders import Loaders
from recd_plugins.stack.looked_up import compare_features
from recd_plugins.stack.optimizer import chosen_factory
from recd_plugins.stack.period_batches import PeriodBatches
from recd_plugins.stack.plan_in_short import PlanInShort
from recd_plugins.stack.planned_exchanges import PlannedExchanges
from recd_plugins.stack.planner import RegistryPlanner
from recd_plugins.stack.tables import RegistryTables
from recd_plugins.stack.uncalled import refuse_uncalled
from recd_plugins.stack.usage import Usage
from recd_plugins.stack.watched_models import WatchedModels

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed import ProcessGroup
    from torchrec.distributed.model_parallel import DataParallelWrapper
    from torchrec.distributed.planner.types import ParameterConstraints
    from torchrec.distributed.types import ModuleSharder, ShardingPlan

    from recd_plugins.data.growing import Together
    from recd_plugins.data.preprocess.conversion import Conversion
    from recd_plugins.registry.program import TransformProgram
    from recd_plugins.sparse.groups import Groups
    from recd_plugins.sparse.own_batches import FeaturesOf, Select
    from recd_plugins.storage.uri import Location

__all__ = ["Stack", "load"]

B = TypeVar("B")


def load(registry: str | Path | Mapping[str, Any], overrides: Sequence[str] = ()) -> Stack:
    """Read and check a registry (a file or a mapping); the stack builds from it when it is
    asked."""
    check_age(installed_versions())
    check_overrides(registry, overrides)
    return Stack(Registry.load(registry, overrides))


class Stack(LooksAtBatches):
    """The parts that a registry chose, each built once, when it is asked for."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._planning = RegistryPlanner(registry, lambda: self._contexts, self.read)
        self.proposed: ShardingPlan | None = None
        """The last plan that `planned_for` made, for ranks that need not be there."""
        self._in_short: PlanInShort | None = None
        self.group: ProcessGroup | None = None
        """The ranks that train; None where all of the job's do."""
        self.waiting: Callable[[str], None] = lambda what: None
        """Called several times a second with what batches are waited for."""
        self.together: Together = bool
        """Agrees with the other ranks that a period is closed; it may raise to end the wait."""
        self._model: Callable[[], nn.Module | None] = lambda: None
        """The registry's own model, if it was made last and is still there."""
        self._usage = Usage(registry)
        self._watched = WatchedModels(registry, self._usage)
        self._order = BatchOrder(self._planning, self._usage)
        self._exchanges = PlannedExchanges()

    @cached_property
    def _tables(self) -> RegistryTables:
        return RegistryTables(
            self._registry,
            self._contexts,
            self._usage,
            lambda what: self.waiting(f"waiting for {what}"),
        )

    @property
    def registry(self) -> Registry:
        """The checked registry. Who asks for it is taken to go by its `train` key: no notice says
        then what of that is for `recd train` alone."""
        self._usage.asked("train")
        return self._registry

    def __getstate__(self) -> NoReturn:
        """Refuse copies and pickles, which would not know what this stack has built, and would not
        watch its models."""
        raise CapabilityError(
            "a stack is neither pickled nor copied. Call rp.load in each process, with the same "
            "registry. For a loader's workers, pickle `stack.convert` or what "
            "`stack.converting(collate)` returns."
        )

    @cached_property
    def _features(self) -> FeatureSteps:
        return FeatureSteps(self._registry, self._contexts, self.prepare, self._usage.found)

    @cached_property
    def _loaders(self) -> Loaders:
        return Loaders(
            self._registry, self._contexts, self._features, self._usage, lambda: self.schema
        )

    @cached_property
    def _adaptation(self) -> Adaptation:
        return Adaptation(self._registry, self._features, self._usage)

    @cached_property
    def device(self) -> Literal["cpu", "cuda"]:
        return resolve_device(self._registry.train.device)

    def prepare(self, progress: Progress = silent) -> Tables:
        """The dataset as tables on disk, through every `etl` step; made once, then reused. Readers
        take the columns of them that are needed (`tables_read`).

        Any number of processes may call it at a time: one works, the others wait.
        """
        return self._tables.prepare(progress)

    @property
    def tables_read(self) -> Tables:
        """The same tables with only the features and dense columns that the registry's model takes,
        or that a transform makes these of; with all columns, where it is not known what the model
        takes."""
        return self._features.tables

    def as_read(self, path: Location) -> Table | None:
        """The table of `tables_read` that lies there; None where another table does, or where
        tables have to be written first."""
        split = self._tables.split_at(path)
        return None if split is None else self.tables_read[split]

    def stats(
        self, table: Table, progress: Progress = silent
    ) -> Iterator[tuple[Choice, StatsReport]]:
        """The findings of each measure in any table, by the measures of `stats`, or by default all
        that plugins have."""
        choices, left_out = self._registry.chosen_or_all("stats")
        if not choices:
            why = "; ".join(f"{one.what}: {one.why}" for one in left_out)
            raise RegistryError(
                f"nothing measures a table: {why}"
                if why
                else "nothing measures a table: no enabled plugin fills the slot 'stats'. Add one "
                "that does to `plugins` in registry.yaml, say recd_dedup."
            )
        self._usage.found(left_out)
        for choice in choices:
            yield choice, measured(choice, self._contexts.of("stats"), table, progress)

    @cached_property
    def schema(self) -> Schema:
        """The schema of the batches: the table's, through every `preprocess` transform."""
        self.check()
        return self._features.schema

    def program(self) -> TransformProgram:
        """The transforms of `preprocess` as one text, for serving or for another trainer: see
        `recd_plugins.api.batch.TransformProgram`."""
        from recd_plugins.registry.program import TransformProgram

        self.check()
        return TransformProgram.of(self._registry, self._features.whole_schema)

    def loader(
        self,
        rank: int,
        world_size: int,
        split: Split = "train",
        at: Mapping[str, Any] | None = None,
    ) -> Loader:
        """The batches of a rank: iterable, with `state_dict` and `load_state_dict`.

        Those of the train split may come in an order of the planner's. If the dataset grows, each
        epoch is a period, and the test split is that of the period in which the train loader's
        state `at` is.
        """
        check_share(rank, world_size, split)
        if not self._registry.has_dataset:
            raise CapabilityError(
                "stack.loader: registry.yaml has no `dataset` whose batches it could yield. Train "
                "on a loader of your own, `stack.plan(model, batches=loader)`; or name a dataset."
            )
        periods = self.periods
        if periods is not None and (split == "train" or at is not None):
            return self._of_periods(periods, rank, world_size, split, at)
        loader = self.read(rank, world_size, split)
        if split == "test":
            return loader
        self._usage.gave_loader(loader)
        return self._order.of_registry(loader, rank, world_size)

    @property
    def ordered(self) -> bool:
        """Whether the batches of the train split come in an order of the planner's."""
        return self._order.ordered

    def order(
        self,
        loader: Iterable[Any],
        rank: int | None = None,
        world_size: int | None = None,
        *,
        features: FeaturesOf | None = None,
        select: Select | None = None,
    ) -> Any:
        """A trainer's own loader, with its samples in batches that the planner forms: hot and
        normal ones.

        There are as many batches of as many samples, on every rank alike; it is the loader itself
        where the planner orders nothing. Batches are of any type that can be taken apart by sample,
        or `select(batches, samples)` makes them of samples [N], given by their places in all of the
        batches. `features(batch)` gives its KJT, or a list of them all, by default its only one;
        rank and world size are those of the process group that `plan` was given.
        """
        check_batches(loader, "stack.order", "loader")
        check_features(features, "stack.order")
        return self._order.of_trainer(loader, rank, world_size, features, select)

    def read(self, rank: int, world_size: int, split: Split = "train") -> Loader:
        """The batches of a rank in the reader's own order, as planners count them."""
        self._usage.asked("reader", "preprocess", "dedup")
        self.check()
        return self._loaders.open(self._features.tables, rank, world_size, split)

    @property
    def periods(self) -> Periods | None:
        """The periods of a dataset that grows; None for any other."""
        return self._tables.periods

    def _of_periods(
        self,
        periods: Periods,
        rank: int,
        world_size: int,
        split: Split,
        at: Mapping[str, Any] | None,
    ) -> Loader:
        self._usage.asked("reader", "preprocess", "dedup", "order")
        self.check()
        batches = PeriodBatches(
            self._registry,
            periods,
            self._features,
            self._usage,
            rank=rank,
            world_size=world_size,
            read=lambda tables, split: self._loaders.open(tables, rank, world_size, split),
            waiting=lambda what: self.waiting(what),
        )
        if at is not None:
            return batches.within(at, split)
        loader = batches.loader(lambda closed: self.together(closed))
        self._order.check_none(loader, rank, world_size)
        return loader

    def delivery(self) -> Delivery:
        """The delivery, which another process needs to make the same batches."""
        return self._loaders.delivery()

    def profile(
        self,
        tables: Mapping[str, Counted],
        batches: int | None = None,
        met: Callable[[int], None] | None = None,
    ) -> Profile:
        """The forecast lookups of tables, from batches of the train split out of the shares of all
        `train.ranks`: `batches` of each, by default as many as it takes. `met` is called with how
        many were counted."""
        ranks = BatchesOfRanks(self.read, self._registry.train.ranks)
        return count_sample(ranks, tables, most=batches, met=met).profile()

    @property
    def groups(self) -> Groups:
        """The features that are deduplicated in batches, by group."""
        return self._features.groups

    @property
    def unique_shares(self) -> dict[str, float]:
        """The share of a batch's samples that is unique, by deduplicated feature; 1 where it was
        not measured."""
        shares = self._features.unique_shares or [1.0] * len(self.groups)
        each = zip(self.groups, shares, strict=True)
        return {name: share for group, share in each for name in group}

    def model(self) -> nn.Module:
        """The registry's own model, its tables on the meta device."""
        self._usage.asked("model", "pooling")
        choice = self._registry.one("model")
        model: nn.Module = choice.build(self._contexts.of("model", self.schema))
        self._usage.found(choice.notices(model))
        self._model = ref(model)
        return model

    def optimizer(self) -> OptimizerFactory | None:
        """The factory of the dense parameters' optimizer; None where `train.optimizer` says it."""
        return chosen_factory(self._registry, lambda: self._contexts, self._usage)

    def callbacks(self) -> list[tuple[Callback, Choice]]:
        """The callbacks of a run, each with its choice, in the order of registry.yaml."""
        self._usage.asked("callbacks")
        choices = self._registry.chosen("callbacks")
        found = [(choice.build(self._contexts.of("callbacks")), choice) for choice in choices]
        for callback, choice in found:
            check_callback(callback, choice.where)
        self._usage.gave_callbacks(callback for callback, _ in found)
        return found

    def check(self) -> None:
        """Check what registry.yaml does not show: whether features exist, and what its planner can
        do."""
        self.check_planner()
        self._features.check()

    def notices_for_ranks(self) -> dict[str, str]:
        """The variables by which ranks that this process starts give none of its notices again."""
        return self._usage.notices_for_ranks()

    def check_options(self) -> None:
        """Say which options do nothing beside the others, as every plan does; an error with
        `strict: true`."""
        self._usage.idle_options()

    def check_planner(self) -> None:
        """Check what the registry's planner can do, which needs no table."""
        if self._registry.train.retier_every:
            self.retiering_planner()
        if self._planning.choice.others is not None:
            self.planner()  # it says, when built, what it cannot stand in front of

    def check_features(self) -> None:
        """Check features, before tables are written, by the schema that the dataset's options have,
        if any, and if no `etl` step changes it."""
        schema = getattr(self._registry.one("dataset").config, "schema", None)
        if not isinstance(schema, Schema) or self._registry.chosen("etl"):
            return
        tables = cast("Tables", SimpleNamespace(schema=schema))
        FeatureSteps(self._registry, self._contexts, lambda: tables, lambda notices: None).check()

    def check_topology(self, topology: Topology | None = None) -> None:
        """`CapabilityError` where tables would be placed on devices that training does not have."""
        stated = (topology or self._registry.topology).device
        if stated == "cuda" and self.device == "cpu":
            raise CapabilityError(
                "topology.device: the topology has CUDA devices, but this job trains on the CPU, "
                "where a plan for CUDA can place no table. Set topology.device=cpu, or "
                "train.device=cuda where there are GPUs. To plan for a cluster elsewhere, use "
                "`recd plan`."
            )

    def adapt(
        self,
        model: nn.Module,
        poolings: Sequence[str] = (),
        *,
        batches: Iterable[Any] | None = None,
        features: FeaturesOf | None = None,
        pool_unique: bool = True,
        route: Literal["padded", "vbe"] = "padded",
        process_group: ProcessGroup | None = None,
    ) -> nn.Module:
        """Make a model, itself, take what the loader yields, or what `convert` makes of a KJT; its
        parameters keep their names.

        `dedup: {groups: auto}` looks at a few of the trainer's own `batches`, unconverted, where
        they are given, and every rank of the group must then call this; `features(batch)` gives
        their KJT, by default the only one that a batch holds.
        Modules that pool as the `pooling` slot's do run on unique samples, and those that
        `poolings` names by path or glob; none if not `pool_unique`. `route`: TorchRec's own
        variable-batch form on CUDA (`vbe`), which it expands itself. A registry that deduplicates
        nothing yields plain KJTs, and the model stays as it is. `process_group` has the ranks that
        train, where these are not all of the job's.
        """
        check_model(model, "stack.adapt")
        if isinstance(poolings, str):
            raise RegistryError(f"stack.adapt: `poolings` are a list: write [{poolings!r}].")
        if route not in (routes := ("padded", "vbe")):
            raise RegistryError(
                f"stack.adapt: no route {shown(route)}; {nearest(str(route), routes)}"
            )
        check_features(features, "stack.adapt")
        check_group(process_group, "stack.adapt")
        steps = self._features
        steps.take_model(model)
        self._train_on(process_group)
        if batches is not None:
            check_batches(batches, "stack.adapt")
            with self._order.looking():
                steps.look_at(batches, features)
        if not steps.groups:
            return model
        if self._planning.planned and self._planning.model is model:
            self._usage.adapted_late(self._registry.one("dedup"))
        self._adaptation.adapt(
            model,
            poolings,
            pool_unique=pool_unique,
            route=route,
            own_batches=batches is not None or steps.of_own_batches,
        )
        planning = self._planning
        self._watched.watch_unplanned(model, planning.choice, lambda: planning.planned)
        return model

    @cached_property
    def convert(self) -> Conversion:
        """`stack.convert(kjt)`: what an adapted model takes in place of a trainer's own KJT.

        Its features as `dedup` and `preprocess` leave them; a KJT where nothing is deduplicated.
        What comes back is moved, pinned and sent between processes as a KJT is. Workers of a
        loader may call it too.
        """
        self._usage.asked("dedup", "preprocess")
        return self._features.conversion()

    def converting(
        self, make_batch: Callable[..., Any] | None = None, *, features: FeaturesOf | None = None
    ) -> Callable[..., Any]:
        """A function that makes batches with converted features, from one such as a loader's
        `collate_fn`.

        Without `make_batch` it takes a batch, as the collate_fn of a dataset that yields batches.
        `features(batch)` gives the KJT that the batch holds, by default its only one.
        """
        from recd_plugins.data.preprocess.conversion import Converting

        if make_batch is not None and not callable(make_batch):
            raise RegistryError(
                f"stack.converting: `make_batch` is {shown(make_batch)}, where it must be a "
                "function that makes a batch, as a collate_fn. stack.convert(kjt) converts the "
                "features of one batch, stack.converted(loader) those of a loader's batches."
            )
        check_features(features, "stack.converting")
        return Converting(self.convert, make_batch, features)

    def converted(self, loader: Iterable[Any], *, features: FeaturesOf | None = None) -> Any:
        """A trainer's own loader, with its batches converted as they come; all else is unchanged.

        They are converted in the process that iterates; `collate_fn=stack.converting(collate)` does
        it in workers.
        """
        from recd_plugins.data.preprocess.conversion import ConvertedLoader

        check_batches(loader, "stack.converted", "loader")
        return ConvertedLoader(loader, self.converting(features=features))

    def peek(self, batches: Iterable[B]) -> Peeked[B]:
        """An iterator of these batches into which `plan` can look: training gets all of them."""
        check_batches(batches, "stack.peek")
        return Peeked(batches)

    def plan(
        self,
        model: nn.Module,
        topology: Topology | None = None,
        process_group: ProcessGroup | None = None,
        *,
        batches: Iterable[Any] | None = None,
        features: FeaturesOf | None = None,
        profile: Profile | Path | str | None = None,
        sharders: Sequence[ModuleSharder[Any]] | None = None,
        constraints: Mapping[str, ParameterConstraints] | None = None,
    ) -> ShardingPlan:
        """An ordinary TorchRec plan; every rank of the group must call it.

        Planners count the first `batches` of each rank, of any type, which come in training all
        the same (`Look`), and their batch size is the trainer's. `features` gives a batch's
        KeyedJaggedTensor, where a batch holds more than one, or hides it. A `profile`, or the path
        of a saved one, stands for them. Without both the registry's dataset is counted.

        `sharders` are the trainer's own, as it would hand them to DistributedModelParallel. Kinds,
        kernels and the tables' optimizer are theirs, but for tables with
        `apply_optimizer_in_backward`. By default they are TorchRec's default sharders, by which
        tables train as `train.optimizer` says, if registry.yaml has it.

        `constraints` are those that the trainer would hand to TorchRec's EmbeddingShardingPlanner:
        tables have replicas where they leave row-wise plans with the fused kernel.
        """
        import torch.distributed as dist

        group = process_group or dist.GroupMember.WORLD
        if group is None:
            raise CapabilityError(
                "stack.plan needs a process group: call torch.distributed.init_process_group "
                "first, or pass one."
            )
        check_model(model, "stack.plan")
        check_plan_arguments(topology, process_group, batches, features, profile, constraints)
        if sharders is not None:
            sharders = check_sharders(sharders, "stack.plan")
        self._train_on(process_group)
        self._usage.as_written(group.size())
        self.check_topology(topology)
        check_known(constraints or {})
        planning, on = self._planning, topology or self._registry.topology
        planning.plan_for(model, sharders)
        own = TrainersOwn(
            batches=batches, features=features, profile=profile, constraints=constraints or {}
        )
        plan = self._group_planning.plan(model, on, self.device, group, own)
        planning.planned = True
        compare_with_trainer(plan, model, planning, self._usage, own.constraints)
        self._exchanges.take(plan, model, on, planning.sharders(), group)
        self._in_short = PlanInShort(plan, model, group.size())
        self._usage.planned(planning.planner(), planning.choice, group)
        brought = batches is not None or profile is not None
        compare_features(model, self._registry, self._features, self._usage, own=brought)
        if plan.plan:  # of a model without tables the planner has said so
            unique = self._features.groups if self._adaptation.explained else ()
            self._watched.watch(model, plan, planning.planner(), planning.choice, unique)
        return self._adaptation.refusing_others(plan, model)

    @cached_property
    def _group_planning(self) -> GroupPlanning:
        return GroupPlanning(
            self._registry,
            self._planning,
            self._features,
            self._usage,
            order=self._order,
            adaptation=self._adaptation,
            made=lambda: (self._tables.made, vars(self).get("schema"), self._model()),
        )

    def _train_on(self, group: ProcessGroup | None) -> None:
        """From now on these ranks agree on things; by default all of the job."""
        self.group = self._features.group = self._usage.group = group

    @property
    def planned_by(self) -> str:
        """The planner's record and its place in registry.yaml, for error messages."""
        return self._planning.choice.who

    def planner(self) -> Planner:
        """The planner, built once: `explain` says what it planned last."""
        return self._planning.planner()

    def planned_for(
        self,
        model: nn.Module,
        world_size: int,
        topology: Topology | None = None,
        profile: Profile | None = None,
    ) -> Planner:
        """The planner, after it has planned for `world_size` ranks, which need not be there.

        A `profile` replaces what would be counted of the dataset; where the registry has no
        dataset, the plan is for a trainer's own batches.
        """
        self._usage.as_written(world_size)
        planning = self._planning
        of_trainer = profile is not None and not self._registry.has_dataset
        if self._registry.has_dataset:
            planning.know(batches=lambda: BatchesOfRanks(self.read, world_size))
        if profile is not None:
            planning.know(profile=profile, data_parallel=of_trainer)
        planner = planning.planner_by_now()
        if not isinstance(planner, Proposes):
            raise CapabilityError(
                f"{planning.choice.where}: {type(planner).__name__} plans only on the ranks "
                "themselves: it has no `propose` of recd_plugins.api.planning.Proposes, from which "
                "it must inherit for this. Train with it, and read stack.explain()."
            )
        if not of_trainer:
            planning.train_by_registry()  # its ranks are those of `recd train`
        with planning.choice.named("when it proposed a plan"):
            proposed = planner.propose(model, topology or self._registry.topology, world_size)
        check_is_plan(planning, proposed, "propose")
        self.proposed = proposed
        self._in_short = PlanInShort(proposed, model, world_size)
        planning.planned = True
        self._usage.planned(planner, planning.choice)
        return planner

    @property
    def planning(self) -> Choice:
        """The choice whose planner plans: a cache's, or else that of the slot `sharding`."""
        return self._planning.choice

    def retiering_planner(self) -> Retiers:
        """The planner, if it can move its replicas while training; otherwise an error."""
        self._usage.asked("retier_every")
        planner = self.planner()
        if not isinstance(planner, Retiers):
            raise CapabilityError(
                f"train.retier_every: the planner of {self._planning.choice.record.name!r} "
                f"({type(planner).__name__}) has no replicas that it could move: it does not "
                "inherit from recd_plugins.api.planning.Retiers. Set it to 0, or choose a planner "
                "that does, such as `sharding: flexshard`."
            )
        return planner

    def sharders(
        self, mine: Sequence[ModuleSharder[Any]] | None = None
    ) -> list[ModuleSharder[nn.Module]]:
        """The trainer's sharders for DistributedModelParallel, wrapped where the plan changes their
        modules.

        `mine` are the trainer's own, by default those that `plan` was given.
        """
        if mine is not None:
            self._planning.take_sharders(check_sharders(mine, "stack.sharders"))
        return self._handed_sharders.of_plan(self.device)

    @cached_property
    def _handed_sharders(self) -> HandedSharders:
        return HandedSharders(
            self._registry,
            self._planning,
            self._features,
            self._usage,
            adaptation=self._adaptation,
            exchanges=self._exchanges,
            watched=self._watched,
        )

    def data_parallel(self, **options: Any) -> DataParallelWrapper:
        """The `data_parallel_wrapper` of DistributedModelParallel: its dense gradients travel in
        parts beside backward, and cross nodes once where gloo's links between them are slower than
        within; `explain` says whether they do.

        It is TorchRec's DefaultDataParallelWrapper, whose `options` it takes; by default gradients
        have the precision that `train.codecs.dense` says.
        """
        if not self._planning.planned:
            raise CapabilityError(
                "stack.data_parallel() was called before there is a plan, from which it knows how "
                "many bytes of dense gradients there are. Call `plan = stack.plan(model, ...)` "
                "first."
            )
        self._usage.asked("codecs.dense")
        given = {**self._registry.train.codecs.of_wrapper, **options}
        topology = self._exchanges.planned_on or self._registry.topology
        return self._exchanges.data_parallel(topology, **given)

    @property
    def dense_bytes(self) -> int:
        """The bytes of trained parameters that are in no planned table: what an all-reduce of their
        gradients carries."""
        return self._exchanges.dense_bytes

    @property
    def dense_handed(self) -> float:
        """The bytes of dense gradients that a rank hands to collectives in a step."""
        return self._exchanges.dense_handed

    def default_sharders(self) -> list[ModuleSharder[nn.Module]]:
        """TorchRec's default sharders, by which tables train as `train.optimizer` says, even by its
        defaults: those of `recd train`."""
        return self._planning.default_sharders()

    def explain(self) -> str:
        """Why batches are deduplicated as they are, what `adapt` did, and why the last plan is as
        it is."""
        explanations = filter(None, [self.explain_groups(), self._adaptation.explained])
        return "\n".join([*explanations, self._planning.explain(), *self._exchanges.explain()])

    def in_short(self, explanation: str, whole: str) -> str:
        """An explanation of the last plan, in short where the model has very many tables that are
        alike; `whole` says where all of it is."""
        if self._in_short is None:
            return explanation
        return self._in_short.explained(explanation, self.planner(), whole)

    def explain_groups(self) -> str:
        """Only why batches are deduplicated as they are."""
        return self._features.explain()

    @cached_property
    def _contexts(self) -> Contexts:
        return Contexts(
            registry=self._registry,
            device=self.device,
            sharders=self._planning.sharders,
            known=lambda: self._planning.known,
        )


refuse_uncalled(Stack)

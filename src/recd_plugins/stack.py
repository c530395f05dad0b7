"""Records → loader, model, plan, sharders: what a trainer calls.

stack  = rp.load("registry.yaml")
loader = stack.loader(rank, world_size)
model  = stack.adapt(model)
plan   = stack.plan(model, topology, process_group)
model  = DistributedModelParallel(model, device=device, plan=plan, sharders=stack.sharders())
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from recd_plugins.data.dataset import Split, Tables
from recd_plugins.data.preprocessing import Step
from recd_plugins.data.schema import Schema
from recd_plugins.data.stats_report import StatsReport
from recd_plugins.data.table import Progress, Table, silent
from recd_plugins.errors import CapabilityError, RegistryError
from recd_plugins.naming.patterns import check_patterns, matching
from recd_plugins.planning.planner_bases import OrdersBatches, Proposes, Retiers
from recd_plugins.planning.topology import Topology
from recd_plugins.registry import Choice, Registry
from recd_plugins.registry.capability import resolve_device
from recd_plugins.registry.contexts import Contexts
from recd_plugins.registry.prepare import prepared
from recd_plugins.slots import (
    Callback,
    DedupConverter,
    Explains,
    Loader,
    OptimizerFactory,
    Planner,
    Reader,
    check_callback,
)

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed import ProcessGroup
    from torchrec.distributed.types import ModuleSharder, ShardingPlan

    from recd_plugins.data.batch import Batch
    from recd_plugins.sparse.groups import Groups

__all__ = ["Stack", "load"]


def load(registry: str | Path | Mapping[str, Any], overrides: Sequence[str] = ()) -> Stack:
    """Read and check a registry (a file or a mapping) and stand ready to build from it."""
    return Stack(Registry.load(registry, overrides))


class Stack:
    """What a registry chose, built when asked for, each part once."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self._tables: Tables | None = None
        self._planner: Planner | None = None
        self._adapted = ""

    @cached_property
    def device(self) -> Literal["cpu", "cuda"]:
        return resolve_device(self.registry.train.device)

    def prepare(self, progress: Progress = silent) -> Tables:
        """The dataset as tables on disk, through every `etl` step; made once, then reused.

        Any number of processes may call it at a time: one works, the others wait.
        """
        if self._tables is None:
            self._tables = prepared(self.registry, self._contexts.of, progress)
        return self._tables

    def stats(
        self, table: Table, progress: Progress = silent
    ) -> Iterator[tuple[Choice, StatsReport]]:
        """What each measure finds in any table: those of `stats`, or else all that plugins have."""
        choices = self.registry.chosen_or_all("stats")
        if not choices:
            raise RegistryError(
                "nothing measures a table: no enabled plugin fills the slot 'stats'. Add one "
                "that does to `plugins` in registry.yaml, say recd_dedup."
            )
        for choice in choices:
            yield choice, choice.build(self._contexts.of("stats")).measure(table, progress)

    @cached_property
    def schema(self) -> Schema:
        """The schema of the batches: the table's, through every `preprocess` transform."""
        self.check()
        return self._preprocessed

    def loader(self, rank: int, world_size: int, split: Split = "train") -> Loader:
        """The batches of a rank: iterable, with `state_dict` and `load_state_dict`.

        Those of the train split may come in an order of the planner's.
        """
        loader = self.read(rank, world_size, split)
        if split == "train" and isinstance(planner := self.planner(), OrdersBatches):
            return planner.order(loader, rank, world_size)
        return loader

    def read(self, rank: int, world_size: int, split: Split = "train") -> Loader:
        """The batches of a rank in the reader's own order: what planners count."""
        self.check()
        tables = self.prepare()
        reader: Reader = self.registry.one("reader").build(self._contexts.of("reader"))
        return reader.loader(
            tables[split],
            rank=rank,
            world_size=world_size,
            batch_size=self.registry.train.batch_size,
            split=split,
            transform=self._transform,
        )

    def model(self) -> nn.Module:
        """The registry's own model, its tables on the meta device."""
        model: nn.Module = self.registry.one("model").build(self._contexts.of("model", self.schema))
        return model

    def optimizer(self) -> OptimizerFactory | None:
        """What makes the dense parameters' optimizer; none where `train.optimizer` says it."""
        choices = self.registry.chosen("optimizer")
        if not choices:
            return None
        settings = (self.registry.source.values.get("train") or {}).get("optimizer") or {}
        if twice := [name for name in settings if name.startswith("dense")]:
            raise RegistryError(
                f"optimizer: the slot and train.optimizer ({', '.join(twice)}) both say how dense "
                "parameters are stepped. Keep one of them."
            )
        factory: OptimizerFactory = choices[0].build(self._contexts.of("optimizer"))
        return factory

    def callbacks(self) -> list[tuple[Callback, Choice]]:
        """The callbacks of a run, each with its choice, in the order of registry.yaml."""
        choices = self.registry.chosen("callbacks")
        found = [(choice.build(self._contexts.of("callbacks")), choice) for choice in choices]
        for callback, choice in found:
            check_callback(callback, choice.where)
        return found

    def check(self) -> None:
        """Check what registry.yaml does not show: whether features exist, what its planner can."""
        if self.registry.train.retier_every:
            self.retiering_planner()
        if self._planning.others is not None:
            self.planner()  # it says, when built, what it cannot stand in front of
        names = self._preprocessed.sparse_names
        for choice in self.registry.chosen("pooling"):
            where = self.registry.source.locate(choice.where)
            check_patterns(choice.features, names, kind="feature", where=where)

    def adapt(
        self,
        model: nn.Module,
        poolings: Sequence[str] = (),
        *,
        pool_unique: bool = True,
        route: Literal["padded", "vbe"] = "padded",
    ) -> nn.Module:
        """Make a model, itself, take what the loader yields; its parameters keep their names.

        Modules that pool as the `pooling` slot's do run on unique samples, and those that
        `poolings` names by path or glob; none if not `pool_unique`. `route`: TorchRec's own
        variable-batch form on CUDA (`vbe`), which it expands itself. A registry that deduplicates
        nothing yields plain KJTs, and the model stays as it is.
        """
        if not self._groups:
            return model
        from recd_plugins.embedding.adapt import adapt, explain

        adapt(
            model,
            self._groups,
            poolings=poolings,
            unique_shares=self._unique_shares,
            pool_unique=pool_unique,
            route=route,
        )
        self._adapted = explain(model)
        return model

    def plan(
        self,
        model: nn.Module,
        topology: Topology | None = None,
        process_group: ProcessGroup | None = None,
    ) -> ShardingPlan:
        """An ordinary TorchRec plan; every rank of the group must call it."""
        import torch.distributed as dist

        group = process_group or dist.GroupMember.WORLD
        if group is None:
            raise CapabilityError(
                "stack.plan needs a process group: call torch.distributed.init_process_group "
                "first, or pass one."
            )
        return self.planner().plan(model, topology or self.registry.topology, group)

    def planner(self) -> Planner:
        """What plans, built once: `explain` says what it planned last."""
        if self._planner is None:
            self._planner = self._contexts.planner(self._planning)
        return self._planner

    def planned_for(
        self, model: nn.Module, world_size: int, topology: Topology | None = None
    ) -> Planner:
        """The planner, once it has planned for so many ranks, which need not be there."""
        planner = self.planner()
        if not isinstance(planner, Proposes):
            raise CapabilityError(
                f"{self._planning.where}: {type(planner).__name__} plans on the ranks themselves "
                "alone: it has no `propose` of recd_plugins.api.planning.Proposes, which it must "
                "inherit for this. Train with it, and see what stack.explain() says."
            )
        planner.propose(model, topology or self.registry.topology, world_size)
        return planner

    def retiering_planner(self) -> Retiers:
        """The planner, if it can move its replicas while training; an error if it cannot."""
        planner = self.planner()
        if not isinstance(planner, Retiers):
            raise CapabilityError(
                f"train.retier_every: the planner of {self._planning.record.name!r} "
                f"({type(planner).__name__}) has no replicas that it could move: it does not "
                "inherit recd_plugins.api.planning.Retiers. Set it to 0, or choose one that does, "
                "say `sharding: flexshard`."
            )
        return planner

    def sharders(self) -> list[ModuleSharder[nn.Module]]:
        """The sharders of the plan; they carry the tables' fused optimizer."""
        sharders = self.planner().sharders()
        if not self._groups:
            return sharders
        from recd_plugins.embedding.sharded import with_dedup

        return with_dedup(sharders)

    def explain(self) -> str:
        """Why batches are deduplicated so, what `adapt` did, and why the last plan is as it is."""
        converter = self._converter
        deduplicated = converter.explain() if isinstance(converter, Explains) else ""
        explanations = filter(None, [deduplicated, self._adapted])
        return "\n".join([*explanations, self.planner().explain()])

    @cached_property
    def _contexts(self) -> Contexts:
        return Contexts(registry=self.registry, device=self.device, read=self.read)

    @property
    def _planning(self) -> Choice:
        """What plans: a cache stands in front of the sharding slot's planner."""
        return self.registry.one("cache" if self.registry.chosen("cache") else "sharding")

    @cached_property
    def _steps(self) -> list[Step]:
        """What `preprocess` does to the features, in order."""
        steps: list[Step] = []
        schema = self.prepare().schema
        for choice in self.registry.chosen("preprocess"):
            where, names = self.registry.source.locate(choice.where), schema.sparse_names
            check_patterns(choice.features, names, kind="feature", where=where)
            step = Step(
                who=f"{where or choice.where}: preprocess {choice.record.name!r} of "
                f"{choice.provider}",
                transform=choice.build(self._contexts.of("preprocess")),
                before=schema,
                takes=tuple(matching(choice.features, names)),
            )
            with choice.named("when asked for its schema"):
                schema = step.after()
            steps.append(step)
        return steps

    @property
    def _preprocessed(self) -> Schema:
        return self._steps[-1].after() if self._steps else self.prepare().schema

    @cached_property
    def _converter(self) -> DedupConverter | None:
        if not self.registry.chosen("dedup"):
            return None
        tables = self.prepare()
        context = self._contexts.of("dedup", tables.schema, tables)
        converter: DedupConverter = self.registry.one("dedup").build(context)
        return converter

    @cached_property
    def _groups(self) -> Groups:
        """The features that batches have deduplicated, and which of them together."""
        if self._converter is None:
            return ()
        groups: Groups | None = getattr(self._converter, "groups", None)
        if groups is None:
            raise CapabilityError(
                f"dedup: {type(self._converter).__name__} does not say which features it "
                "deduplicates, so that no model can be adapted to its batches. Give the converter "
                "an attribute `groups`, a tuple of tuples of features."
            )
        for step in self._steps:
            groups = step.groups(groups)
        return groups

    @property
    def _unique_shares(self) -> Sequence[float] | None:
        """Each group's unique samples over the batch size, where the converter knows them."""
        shares: Sequence[float] | None = getattr(self._converter, "unique_shares", None)
        return shares

    @property
    def _transform(self) -> Callable[[Batch], Batch] | None:
        if not self._steps and not self._converter:
            return None
        if any(step.changes_keys for step in self._steps):
            _ = self._groups  # it refuses what unique samples do not allow
        from recd_plugins.data.transform import BatchTransform
        from recd_plugins.sparse.row_wise import RowWise

        steps = [
            (step.takes, RowWise(step.transform, step.names if step.changes_keys else None))
            for step in self._steps
        ]
        return BatchTransform(steps, self._converter)

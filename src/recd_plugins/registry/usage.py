"""The parts of a registry that a trainer asks a stack for, and the notices of those that it leaves
alone, or that gain nothing in its job."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, ref

from recd_plugins.errors import listed, nearest, so_many
from recd_plugins.notices import (
    Empty,
    Missed,
    Notice,
    Notices,
    Otherwise,
    TooLarge,
    Unchecked,
    Unneeded,
    Unused,
    Unwatched,
    Wrong,
)
from recd_plugins.patterns import fitting
from recd_plugins.planning.constraints import TableConstraint
from recd_plugins.planning.embedding_collections import embedding_collections
from recd_plugins.planning.planner_bases import OrdersBatches, Retiers, from_rank_0
from recd_plugins.planning.topology import GB
from recd_plugins.registry.choices import Choice, Registry
from recd_plugins.slots import SLOTS
from recd_plugins.tiers.tier_planner import TierPlanner

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed import ProcessGroup
    from torch.utils.hooks import RemovableHandle
    from torchrec.distributed.types import ModuleSharder

    from recd_plugins.planning.tier_plan import TierPlan
    from recd_plugins.slots import Planner
    from recd_plugins.sparse.groups import Groups

__all__ = ["Usage"]

ASKING = {
    "log": "stack.loader",
    "dataset": "stack.loader",
    "etl": "stack.loader",
    "reader": "stack.loader",
    "preprocess": "stack.loader, nor stack.convert",
    "pooling": "stack.model",
    "model": "stack.model",
    "optimizer": "stack.optimizer",
    "callbacks": "stack.callbacks",
}
"""What a trainer calls for what a slot builds."""

SURELY_TRAINS = 3
"""Forwards with gradients by which a model trains: one may be there to try it, or to make lazy
modules."""


class Usage:
    """Warns of what registry.yaml switches on and the job does not use; one for each stack."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._asked: set[str] = set()
        source = registry.source
        self._notices = Notices(strict=registry.strict, path=source.path, lines=source.lines)
        self._watching: WeakKeyDictionary[nn.Module, list[RemovableHandle]] = WeakKeyDictionary()
        """The hooks of each model's last plan."""
        self._begin: WeakKeyDictionary[nn.Module, Callable[[nn.Module], Any]] = WeakKeyDictionary()
        """What hooks another module in the place of a model that was planned last."""
        self.group: ProcessGroup | None = None
        """The ranks that train, where these are not all of the job's: the first of them warns."""

    def asked(self, *what: str) -> None:
        """The trainer asks for what these slots, or options of `train`, are for."""
        self._asked.update(what)

    def asks_for(self, what: str) -> bool:
        """Whether it did."""
        return what in self._asked

    def unused(self, choice: Choice, why: str, cure: str) -> None:
        """A choice does nothing, as all ranks find alike."""
        self._give(_unused(choice, why, cure))

    def found(self, notices: Iterable[Notice]) -> None:
        """Take what all ranks found alike of something that was built."""
        self._give(*notices)

    def as_written(self) -> None:
        """Look at what registry.yaml says by itself: keys of it, or of a topology's file, with
        nothing behind them, which may be what was commented out; overrides with nothing behind
        them, as of a variable of the shell that is not set; settings of what others switch off; and
        what its plugins change of the process."""
        source = self._registry.source
        self._give(*_idle_settings(self._registry))
        self._give(*self._registry.catalog.put_back, *self._registry.empty)
        for key in source.empty:
            why = "its defaults hold"
            if "." in key:
                why = "it is read as `null`"
            elif key in SLOTS:
                chosen = self._registry.chosen(key)
                why = (
                    f"{chosen[0].record.name}, its default, fills it" if chosen else "none fills it"
                )
            place, cure = source.place_of_empty(key)
            self._give(Empty(what=key, why=f"{why} ({place})", cure=cure))

    def unneeded(self, features: Sequence[str]) -> None:
        """Features are read for a model whose tables do not have them."""
        if features:
            names = ", ".join(features)
            self._give(
                Unneeded(
                    what=f"dataset: {names}",
                    why="it is read, and no table of the model looks it up, nor what a transform "
                    "makes of it",
                    cure=f"Write `dataset.without: [{names}]`, where the model takes it from the "
                    "batch in no other way.",
                )
            )

    def unweighed(self, transform: Choice, features: Sequence[str]) -> None:
        """Ids get weights that no collection of the model takes."""
        if features:
            self._give(
                Unneeded(
                    what=transform.what,
                    why=f"the ids of {listed(features, kind='feature')} get weights by it, and no "
                    "collection that looks them up takes any",
                    cure="Make that EmbeddingBagCollection with `is_weighted=True`, or take the "
                    "transform out, where the model reads the weights in no other way.",
                )
            )

    def unseen(self, reader: Choice, device: object) -> None:
        """The ids of a reader's batches come on a device: each look would have the processor wait
        for it."""
        self._give(
            Unchecked(
                what=reader.what,
                why=f"its batches come on {device}, where nobody sees an id of no row before "
                "another row is trained in its place",
                cure="Have its loader yield batches of the CPU's memory, pinned if that is to be "
                "fast: the pipeline moves them.",
            )
        )

    def too_small(self, tables: Sequence[str]) -> None:
        """Tables have no row for some ids that batches may hold, as messages say of each."""
        if tables:
            self._give(
                Unchecked(
                    what="model",
                    why=f"{listed(tables, 3)}: unless the model maps them, another row is trained "
                    "in the place of an id that its table has no row for",
                    cure="Size each table by the schema of its context: "
                    "`context.require_schema().feature(name).num_ids`.",
                )
            )

    def left_out(self, reader: Choice, rows: int, read: int) -> None:
        """Rows of a period may be in no batch: no later epoch has them."""
        if read < rows:
            self._give(
                Missed(
                    what=f"reader: {reader.record.name}",
                    why="rows of a period that fill no batch are left out, and no later epoch has "
                    "them",
                    cure="Write `reader.tail: pad`, and every row is trained.",
                )
            )

    def not_kept(self, planning: Choice, tables: Sequence[str]) -> None:
        """A plan has tables otherwise than the trainer's constraints of them allow."""
        if tables:
            self._give(
                Unused(
                    what="stack.plan(constraints=...)",
                    why=f"it does not allow {', '.join(tables)}, as `{planning.where}: "
                    f"{planning.record.name}` plans",
                    cure="Have that planner heed `context.constraints`, or take these tables out "
                    "of them.",
                )
            )

    def of_no_table(self, names: Sequence[str], planned: Collection[str]) -> None:
        """The trainer's constraints of these names are of none of the tables that are planned."""
        for name in names:
            self._give(
                Unused(
                    what=f"stack.plan(constraints={{{name!r}: ...}})",
                    why=f"there is no such table; {nearest(name, planned)}",
                    cure="Name the table as the plan does, or take it out.",
                )
            )

    def left_whole(self, planning: Choice, modules: Sequence[str]) -> None:
        """A plan has no place for some modules with tables."""
        if modules:
            self._give(
                Otherwise(
                    what=planning.what,
                    why=f"its plan leaves out {', '.join(modules)}, which every rank then has "
                    "whole, and the dense optimizer steps, if any",
                    cure="Have the planner place every module that `context.sharders()` are for.",
                )
            )

    def too_large(self, planning: Choice, held: float, has: int, ranks: int) -> None:
        """A plan has the ranks of this machine hold so many bytes."""
        if held > has:
            self._give(
                TooLarge(
                    what=planning.what,
                    why=f"by its plan the ranks of this machine, {ranks}, hold {held / GB:,.3g} GB "
                    f"of tables, state and replicas, and it has {has / GB:,.3g} GB of memory",
                    cure="Write `host_memory_gb` of a rank under `topology`, "
                    f"{has / ranks / GB:.3g} or less, and plans keep to it, or train on more "
                    "machines.",
                )
            )

    def too_large_for_a_device(self, planning: Choice, held: float, has: int) -> None:
        """A plan has some rank hold so many bytes on its accelerator."""
        if held > has:
            self._give(
                TooLarge(
                    what=planning.what,
                    why=f"by its plan a rank's GPU holds {held / GB:,.3g} GB of tables, state and "
                    f"replicas, and the one here has {has / GB:,.3g} GB of memory",
                    cure=f"Write `device_memory_gb` under `topology`, {has / GB:.3g} or less, and "
                    "plans of tables keep to it; give replicas less, or train on more ranks.",
                )
            )

    def stepped_densely(self, planning: Choice, tables: Sequence[str]) -> None:
        """A plan takes some tables from the optimizer that is named for them."""
        if tables:
            self._give(
                Otherwise(
                    what=planning.what,
                    why=f"it has {listed(tables, kind='table')} data-parallel, or with the dense "
                    "kernel: the dense optimizer steps them, if any, and not the one that is named "
                    "for tables",
                    cure="Where that is not meant, have the planner place them with the fused "
                    'kernel, as `table_wise(rank=0, compute_kernel="fused")`.',
                )
            )

    def not_stepped(self, optimizer: Choice, left: int, of: int) -> None:
        """An optimizer was made of some of the parameters that it was handed."""
        if left:
            self._give(
                Otherwise(
                    what=optimizer.what,
                    why=f"it leaves out {left} of the {so_many(of, 'dense parameter')} that it was "
                    "given, which stay as they are",
                    cure="Have its factory put all of them into groups, or freeze them in the "
                    "model by `requires_grad_(False)`.",
                )
            )

    def planned_a_copy(self) -> None:
        """Nobody sees the model in training."""
        self._give(
            Unwatched(
                what="registry.yaml",
                why="the model that stack.plan was given is gone, so that nobody sees what "
                "training leaves alone",
                cure="Hand stack.plan the model that is trained, not a copy: it stays as it is.",
            )
        )

    def planned(
        self, planner: Planner, planning: Choice, group: ProcessGroup | None = None
    ) -> None:
        """Take what rank 0 found in planning; where it is an error, all ranks of the group learn
        it."""
        found = partial(planning.notices, planner)
        if group is None:
            self._notices.give(found(), 0)
        elif self._registry.strict:
            self._notices.give(from_rank_0(group, found), group.rank())
        elif group.rank() == 0:
            self._notices.give(found(), 0)

    def watch(
        self, model: nn.Module, planner: Planner, planning: Choice, unique: Groups = ()
    ) -> None:
        """Look before the sharded model's first forward that may train it, for by then all was
        asked for that will be; and after it, where the model is adapted to these groups, at what
        they were looked up by."""
        import torch
        from torch.fx import Proxy
        from torchrec.distributed.types import ShardedModule

        from recd_plugins.embedding.sharded import handed_all_samples
        from recd_plugins.sparse.own_batches import holds_unique

        for earlier in self._watching.pop(model, ()):
            earlier.remove()
        looked, unsharded, planned = False, 0, ref(model)
        watching: RemovableHandle
        tier_plan = planner.tier_plan if isinstance(planner, TierPlanner) else None

        def before(module: nn.Module, args: Any, kwargs: Any) -> None:
            nonlocal looked, unsharded  # a copy of the model has the hook for good
            if not (module.training or torch.is_grad_enabled()):
                return  # an evaluation, which may come before the training's loader is made
            given = (*args, *kwargs.values())
            traced = any(isinstance(one, Proxy) for one in given)  # by a pipeline, without a batch
            is_copy = module is not planned()
            if looked or traced or (is_copy and module in self._watching):  # planned itself
                return
            if any(isinstance(part, ShardedModule) for part in module.modules()):
                looked = True
                watching.remove()
                converted = holds_unique(given)
                unconverted = bool(unique) and not converted
                self._divided_wrongly(module)
                self._watch_weights(module)
                self._give(*self._idle(planner, planning, tier_plan, unconverted=unconverted))
                if unique and converted:
                    done: RemovableHandle
                    done = module.register_forward_hook(lambda *_: after(module, done))
                return
            unsharded += not is_copy and module.training and torch.is_grad_enabled()
            if unsharded == SURELY_TRAINS:
                looked = True
                watching.remove()
                self._give(
                    _unused(
                        planning,
                        "the model trains unsharded: its plan knows modules by their paths in what "
                        "stack.plan was given, and DistributedModelParallel finds none there",
                        "Hand stack.plan what DistributedModelParallel is handed, with the module "
                        "around the model, if there is one.",
                    )
                )

        def after(module: nn.Module, done: RemovableHandle) -> None:
            done.remove()
            if expanded := handed_all_samples(module, unique):
                self._give(
                    _unused(
                        self._registry.one("dedup"),
                        "the model hands its collection another KeyedJaggedTensor than the one "
                        "that is converted, made of its batch's ids or another one of the batch, "
                        f"so that {', '.join(expanded)} are looked up for all samples",
                        "Hand the collection the features as the batch holds them; where a batch "
                        "holds several, say by `features` which are converted; or take `dedup` "
                        "out: `sharding: flexshard` sends each id of a rank once without.",
                    )
                )

        def begin(module: nn.Module) -> list[RemovableHandle]:
            nonlocal watching
            watching = module.register_forward_pre_hook(before, with_kwargs=True)
            if isinstance(planner, OrdersBatches):
                return [watching, self._watch_order(module, planner)]
            return [watching]

        self._watching[model], self._begin[model] = begin(model), begin

    def shown(
        self, model: nn.Module, sharders: list[ModuleSharder[nn.Module]]
    ) -> list[ModuleSharder[nn.Module]]:
        """The sharders; of a model that is itself a collection, in whose place another module is
        called once it is sharded, such as have that one looked at."""
        from recd_plugins.embedding.wrapped_sharder import ShownSharder

        begin = self._begin.get(model)
        if begin is None or all(path for path, _, _ in embedding_collections(model)):
            return sharders
        return [ShownSharder(sharder, begin) for sharder in sharders]

    def _divided_wrongly(self, model: nn.Module) -> None:
        """Means that none of `stack.sharders()` has sharded, and sums beside them."""
        from recd_plugins.compat.mean_division import divided_wrongly

        if tables := divided_wrongly(model):
            self._give(
                Wrong(
                    what=f"the pooling of {', '.join(tables)}",
                    why="beside a row-wise table that pools by the mean, TorchRec divides other "
                    "sums by their bags' sizes, other means twice, and some means not at all, as "
                    "it does those of grids",
                    cure="Write `DistributedModelParallel(model, plan=plan, "
                    "sharders=stack.sharders())`, which divide means alone, or have sums and means "
                    "in collections of their own.",
                )
            )

    def _watch_weights(self, model: nn.Module) -> None:
        """Look, in the next forward, whether sharded bags are handed weights that are to be learnt:
        the exchange of ids passes no gradient on."""
        from torchrec.distributed.types import ShardedModule
        from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

        from recd_plugins.sparse.features import SparseFeatures

        looking: dict[nn.Module, RemovableHandle] = {}

        def look(part: nn.Module, args: Any, kwargs: Any) -> None:
            if part not in looking:  # a copy, which has the hook for good
                return
            looking.pop(part).remove()
            for given in (*args, *kwargs.values()):
                kjt = given.plain if isinstance(given, SparseFeatures) else given
                weights = kjt.weights_or_none() if isinstance(kjt, KeyedJaggedTensor) else None
                if weights is not None and weights.requires_grad:
                    self._give(
                        Otherwise(
                            what=f"the weights of the ids of {listed(kjt.keys())}",
                            why="they are to be learnt, and no gradient comes back from the ranks "
                            "that have the rows, with plain TorchRec neither, unless it has the "
                            "tables data-parallel",
                            cure="Have a FeatureProcessedEmbeddingBagCollection weigh ids; or "
                            "constrain the tables, `sharding_types: [data_parallel]`.",
                        )
                    )

        for part in model.modules():
            places = getattr(part, "module_sharding_plan", None) or {}
            whole = {one.sharding_type for one in places.values()} == {"data_parallel"}
            if isinstance(part, ShardedModule) and not whole:
                looking[part] = part.register_forward_pre_hook(look, with_kwargs=True)

    def _watch_order(self, model: nn.Module, planner: OrdersBatches) -> RemovableHandle:
        """Count the batches that the model is trained on until the planner knows whether its order
        is seen."""
        trained, known = 0, False

        def trains(module: nn.Module, *_: Any) -> None:
            nonlocal trained, known
            if known or not module.training or "order" not in self._asked:
                return
            trained += 1
            if (found := planner.ordered_in_vain(trained)) is not None:
                known = True  # a copy of the model has the hook for good
                counting.remove()
                self._give(*found)

        counting = model.register_forward_hook(trains)
        return counting

    def _give(self, *notices: Notice) -> None:
        import torch.distributed as dist

        self._notices.give(notices, dist.get_rank(self.group) if dist.is_initialized() else 0)

    def _idle(
        self,
        planner: Planner,
        planning: Choice,
        tier_plan: TierPlan | None,
        *,
        unconverted: bool,
    ) -> Iterator[Notice]:
        """Notices of what a trainer that calls its model, which has this tier plan, leaves
        alone."""
        tiered = isinstance(planner, TierPlanner) and planner
        bare = tiered.without_tiers(tier_plan) if tiered and tier_plan is not None else []
        if tier_plan is not None and bare:
            every = len(bare) == len(tier_plan.tables)
            of_some = f"no tiers are in front of {listed(bare, kind='table')}"
            left = "no table has its tiers" if every else of_some
            yield _unused(
                planning,
                f"the model was sharded without its sharders, or by another plan, so that {left}",
                "Write `DistributedModelParallel(model, plan=plan, sharders=stack.sharders())`, "
                "before stack.plan is given another model.",
            )
        if isinstance(planner, OrdersBatches) and "order" not in self._asked:
            yield from planner.unordered()
        if unconverted and "dedup" not in self._asked:
            yield _unused(
                self._registry.one("dedup"),
                "the model's batches are not converted: they hold no unique samples",
                "Have `stack.convert(kjt)`, `stack.converting(collate_fn)` or "
                "`stack.converted(loader)` convert them, or take `dedup` out.",
            )
        if self._registry.train.retier_every and "retier_every" not in self._asked:
            yield Unused(
                what="train: retier_every",
                why="it is for `recd train`, and nothing moves replicas in this trainer",
                cure="Call `stack.retiering_planner().retier(batches, group)` on every rank "
                "between two steps, or take it out.",
            )
        empty = isinstance(planner, Retiers) and planner.begins_empty
        if empty and not self._registry.train.retier_every and "retier_every" not in self._asked:
            yield _unused(
                planning,
                "no row has a replica before they are moved first, and nothing moves them",
                "Set `train.retier_every` for `recd train`, call "
                "`stack.retiering_planner().retier(batches, group)` on every rank between two "
                "steps, or count batches before training (`profile_batches`).",
            )
        if self._registry.train.codecs.dense != "fp32" and "codecs.dense" not in self._asked:
            yield Unused(
                what="train: codecs.dense",
                why="this trainer's dense gradients are reduced by a wrapper of its own",
                cure="Hand DistributedModelParallel `data_parallel_wrapper=stack.data_parallel()`, "
                "or take it out.",
            )
        for slot, asking in ASKING.items():
            for choice in self._registry.chosen(slot):
                if slot not in self._asked and slot in self._registry.source.values:
                    yield _unused(
                        choice,
                        f"this trainer asks for none: it never calls {asking}",
                        f"Call it, or take `{slot}` out of registry.yaml.",
                    )


def _idle_settings(registry: Registry) -> Iterator[Unused]:
    """Notices of settings that are for what other settings switch off, or that allow all that is
    allowed without them."""
    train = registry.train
    if train.optimizer.tables == "sgd" and "tables_eps" in registry.written("train", "optimizer"):
        yield Unused(
            what="train: optimizer.tables_eps",
            why="it is the epsilon of the Adagrads, and tables are trained by sgd, which has none",
            cure="Set `train.optimizer.tables` to an Adagrad, or take tables_eps out.",
        )
    if "retier_batches" in registry.written("train") and not train.retier_every:
        yield Unused(
            what="train: retier_batches",
            why="it says by which batches replicas move, and retier_every is 0, so that none do",
            cure="Set `train.retier_every`, or take it out.",
        )
    stated, ranks = registry.topology.ranks_per_node, train.ranks
    if stated and stated > ranks and _is_written(registry, "topology", "ranks_per_node"):
        yield Unused(
            what="topology: ranks_per_node",
            why=f"nodes of {so_many(stated, 'rank')} are more than {so_many(ranks, 'rank')} fill, "
            "which count as one node",
            cure=f"Set `train.ranks`, or write `topology.ranks_per_node: {ranks}`.",
        )
    yield from _empty_constraints(registry)


def _is_written(registry: Registry, slot: str, key: str) -> bool:
    """Whether registry.yaml itself has the key, not a preset or a file that the slot names."""
    values: Any = registry.source.values.get(slot)
    return isinstance(values, Mapping) and key in values


def _empty_constraints(registry: Registry) -> Iterator[Unused]:
    """Notices of constraints that leave a table all choices, which it has without them.

    One after others may be there to free its table of those: the last that fits counts.
    """
    for choice in registry.chosen("sharding"):
        constraints = getattr(choice.config, "constraints", None)
        if not isinstance(constraints, Mapping):
            continue
        before: list[str] = []
        for name, one in constraints.items():
            free = type(one) is TableConstraint and one == TableConstraint()
            frees = bool(before) and ("*" in name or fitting(name, before))
            if free and not frees:
                yield Unused(
                    what=f"{choice.where}: constraints.{name}",
                    why="it names nothing to choose from, so that the planner chooses from all, "
                    "as it does without it",
                    cure="Name `sharding_types` or `compute_kernels`, or take it out.",
                )
            before.append(name)


def _unused(choice: Choice, why: str, cure: str) -> Unused:
    return Unused(what=choice.what, why=why, cure=cure)

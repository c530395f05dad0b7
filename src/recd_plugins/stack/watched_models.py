"""The models that a stack plans. They are looked at once they train, for notices of what is still
unused then."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, ref

from recd_plugins.errors import listed
from recd_plugins.notices import Notice, Otherwise, Unused, Wrong
from recd_plugins.planning.embedding_collections import embedding_collections
from recd_plugins.planning.planner_bases import OrdersBatches, Retiers
from recd_plugins.registry.choice import Choice
from recd_plugins.registry.choices import Registry
from recd_plugins.stack.usage import OPTIMIZER_MADE, Usage
from recd_plugins.tiers.tier_planner import TierPlanner

if TYPE_CHECKING:
    from torch import nn
    from torch.utils.hooks import RemovableHandle
    from torchrec.distributed.types import ModuleSharder, ShardingPlan

    from recd_plugins.slots import Planner
    from recd_plugins.sparse.groups import Groups

__all__ = ["WatchedModels"]

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

OF_RECD_TRAIN = (
    "steps",
    "optimizer.dense",
    "optimizer.dense_lr",
    "optimizer.dense_options",
    "log_every",
    "eval_every",
    "eval_batches",
    "retier_batches",
    "profile_steps",
    "checkpoint_every",
    "keep_checkpoints",
    "on_damaged",
    "on_full",
    "elastic",
    "run",
    "hang_after",
    "threads",
)
"""The options of `train` by which `recd train` goes and no part of a stack: another trainer has to
read them."""

SURELY_TRAINS = 3
"""Forwards with gradients after which a model surely trains: one may only try it, or initialise
lazy modules."""

SURELY_READS = 100
"""Forwards with gradients after which a trainer with a loader surely reads it: it may warm up on
batches that it draws."""


class WatchedModels:
    """Looks at the models of a stack's plans, each once: before it trains, or soon after."""

    def __init__(self, registry: Registry, usage: Usage) -> None:
        self._registry = registry
        self._usage = usage
        self._watching: WeakKeyDictionary[nn.Module, list[RemovableHandle]] = WeakKeyDictionary()
        """The hooks of each model's last plan."""
        self._begin: WeakKeyDictionary[nn.Module, Callable[[nn.Module], Any]] = WeakKeyDictionary()
        """For a planned model, the function that hooks a module which takes its place."""

    def watch(
        self,
        model: nn.Module,
        plan: ShardingPlan,
        planner: Planner,
        planning: Choice,
        unique: Groups = (),
    ) -> None:
        """Look at a model that has a plan, and is adapted to the groups of `unique`, once its
        sharded module trains."""
        for earlier in self._watching.pop(model, ()):
            earlier.remove()
        watch = _Watch(
            self._registry,
            self._usage,
            self._watching,
            model=model,
            plan=plan,
            planner=planner,
            planning=planning,
            unique=unique,
        )
        self._watching[model], self._begin[model] = watch.begin(model), watch.begin

    def watch_unplanned(
        self, model: nn.Module, planning: Choice, has_plan: Callable[[], Any]
    ) -> None:
        """Look at a model that was adapted once it surely trains: by then the planner that
        registry.yaml names should have been asked for a plan."""
        if planning.record.slot not in self._registry.source.values:
            return
        trained = 0

        def trains(module: nn.Module, *_: Any) -> None:
            nonlocal trained
            trained += _may_train(module)
            if trained != SURELY_TRAINS:
                return
            watching.remove()
            if not has_plan():
                self._usage.unused(
                    planning,
                    "this trainer asks for no plan: it never calls stack.plan",
                    "Write `plan = stack.plan(model, batches=loader)` and "
                    "`DistributedModelParallel(model, plan=plan, sharders=stack.sharders())`, or "
                    f"take `{planning.record.slot}` out of registry.yaml.",
                )

        watching: RemovableHandle = model.register_forward_pre_hook(_Hook(trains))

    def watched_sharders(
        self, model: nn.Module, sharders: list[ModuleSharder[nn.Module]]
    ) -> list[ModuleSharder[nn.Module]]:
        """The sharders, wrapped where the model is itself a collection: sharding then puts another
        module in its place, and that one is looked at."""
        from recd_plugins.embedding.wrapped_sharder import AdjustingSharder

        begin = self._begin.get(model)
        if begin is None or all(path for path, _, _ in embedding_collections(model)):
            return sharders
        return [AdjustingSharder(sharder, begin) for sharder in sharders]


class _Watch:
    """The look at one planned model, or at the module that takes its place: before its first
    forward that may train it, since all that will be asked for has been asked for by then."""

    def __init__(
        self,
        registry: Registry,
        usage: Usage,
        watched: Container[nn.Module],
        *,
        model: nn.Module,
        plan: ShardingPlan,
        planner: Planner,
        planning: Choice,
        unique: Groups,
    ) -> None:
        """`watched` are the models that were planned themselves."""
        self._registry, self._usage, self._watched = registry, usage, watched
        self._planned, self._plan = ref(model), plan
        self._planner, self._planning, self._unique = planner, planning, unique
        self._tier_plan = planner.tier_plan if isinstance(planner, TierPlanner) else None
        self._looked = False
        self._unsharded = 0
        """The forwards of the unsharded model that may have trained it."""
        self._watching: RemovableHandle | None = None

    def begin(self, module: nn.Module) -> list[RemovableHandle]:
        """Hook the module; what removes the hooks."""
        self._watching = module.register_forward_pre_hook(_Hook(self._before), with_kwargs=True)
        if isinstance(self._planner, OrdersBatches):
            return [self._watching, self._watch_order(module, self._planner)]
        return [self._watching]

    def _before(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Look at the module once it is sharded; a notice where it surely trains unsharded."""
        import torch
        from torch.fx import Proxy
        from torchrec.distributed.types import ShardedModule

        if not (module.training or torch.is_grad_enabled()):
            return  # an evaluation, which may come before the training's loader is made
        given = (*args, *kwargs.values())
        traced = any(isinstance(one, Proxy) for one in given)  # by a pipeline, without a batch
        is_copy = module is not self._planned()
        if self._looked or traced:  # a copy of the model keeps the hook
            return
        if is_copy and module in self._watched:  # planned itself
            return
        if any(isinstance(part, ShardedModule) for part in module.modules()):
            self._end()
            self._look(module, given)
            return
        self._unsharded += not is_copy and _may_train(module)
        if self._unsharded == SURELY_TRAINS:
            self._end()
            self._usage.unused(
                self._planning,
                "the model trains unsharded: its plan knows modules by their paths in what "
                "stack.plan was given, and DistributedModelParallel finds none there",
                "Hand stack.plan what DistributedModelParallel is handed, with the module "
                "around the model, if there is one. Where nothing shards the model, write "
                "`DistributedModelParallel(model, plan=plan, sharders=stack.sharders())`.",
            )

    def _end(self) -> None:
        self._looked = True
        if self._watching is not None:
            self._watching.remove()

    def _look(self, module: nn.Module, given: tuple[Any, ...]) -> None:
        """Give the notices of a sharded module that is handed this; and after its forward those of
        how the deduplicated features were looked up, if it is handed unique samples."""
        from recd_plugins.sparse.own_batches import holds_unique

        converted = holds_unique(given)
        unconverted = bool(self._unique) and not converted
        self._usage.found(_divided_wrongly(module))
        self._watch_weights(module)
        self._usage.found(self._idle(module, unconverted=unconverted))
        if _of_recd_train(self._registry) or self._usage.callbacks_are_gone:
            self._look_in_step(SURELY_TRAINS, module, self._left_alone)
        if self._usage.loaders_are_unread:
            self._look_in_step(SURELY_READS, module, self._unread)
        if self._usage.uncalled_callbacks:
            self._look_in_step(SURELY_READS, module, self._uncalled)
        if self._unique and converted:
            done: RemovableHandle
            done = module.register_forward_hook(lambda *_: self._after(module, done))

    def _after(self, module: nn.Module, done: RemovableHandle) -> None:
        from recd_plugins.embedding.sharded import handed_all_samples

        done.remove()
        if expanded := handed_all_samples(module, self._unique):
            self._usage.unused(
                self._registry.one("dedup"),
                "the model hands its collection another KeyedJaggedTensor than the one "
                "that is converted, made of its batch's ids or another one of the batch, "
                f"so that {', '.join(expanded)} are looked up for all samples",
                "Hand the collection the features as the batch holds them; where a batch "
                "holds several, say by `features` which are converted; or take `dedup` "
                "out: `sharding: flexshard` sends each id of a rank once without.",
            )

    def _watch_weights(self, model: nn.Module) -> None:
        """Look in the next forward whether sharded bags are handed weights that are to be learnt:
        the exchange of ids passes on no gradient."""
        from torchrec.distributed.types import ShardedModule
        from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

        from recd_plugins.sparse.features import SparseFeatures

        looking: dict[nn.Module, RemovableHandle] = {}

        def look(part: nn.Module, args: Any, kwargs: Any) -> None:
            if part not in looking:  # a copy, which keeps the hook
                return
            looking.pop(part).remove()
            for given in (*args, *kwargs.values()):
                kjt = given.plain if isinstance(given, SparseFeatures) else given
                weights = kjt.weights_or_none() if isinstance(kjt, KeyedJaggedTensor) else None
                if weights is not None and weights.requires_grad:
                    self._usage.found([_not_learnt(kjt.keys())])

        for part in model.modules():
            places = getattr(part, "module_sharding_plan", None) or {}
            whole = {one.sharding_type for one in places.values()} == {"data_parallel"}
            if isinstance(part, ShardedModule) and not whole:
                looking[part] = part.register_forward_pre_hook(look, with_kwargs=True)

    def _look_in_step(
        self, step: int, model: nn.Module, look: Callable[[], Iterable[Notice]]
    ) -> None:
        """Give the notices that `look` finds before the model's forward of this step, counted from
        here on. A compiled model is compiled anew where hooks are taken away, so that none is there
        without a reason."""
        trained = 0

        def trains(module: nn.Module, *_: Any) -> None:
            nonlocal trained
            trained += _may_train(module)
            if trained == step:
                counting.remove()
                self._usage.found(look())

        counting: RemovableHandle = model.register_forward_pre_hook(_Hook(trains))

    def _left_alone(self) -> Iterator[Notice]:
        """Notices of what `train` says for `recd train` alone, if the trainer reads nothing of it:
        it may do so only at the end of each step; and of callbacks that it does not keep."""
        if self._usage.callbacks_are_gone:
            for callback in self._registry.chosen("callbacks"):
                yield _unused(
                    callback,
                    "this trainer calls stack.callbacks, and keeps none of what it returns, so "
                    "that nothing can call it",
                    "Keep them, and call their methods at each step, or take `callbacks` out of "
                    "registry.yaml.",
                )
        options = _of_recd_train(self._registry)
        if options and not self._usage.asks_for("train"):
            yield Unused(
                what=f"train: {', '.join(options)}",
                why="it is for `recd train`, and this trainer reads nothing of it",
                cure="Have the trainer go by `stack.registry.train`, or write in it what is "
                "meant and take it out here.",
            )

    def _unread(self) -> Iterator[Notice]:
        """A notice of a loader of which no batch was taken."""
        if self._usage.loaders_are_unread:
            yield _unused(
                self._registry.one("dataset"),
                "this trainer calls stack.loader, and has taken no batch of what it returns in "
                f"{SURELY_READS} steps",
                "Train on the batches of that loader, or take `dataset` out of registry.yaml and "
                "write `stack.plan(model, batches=loader)` of the loader that is trained on.",
            )

    def _uncalled(self) -> Iterator[Notice]:
        """Notices of callbacks that the trainer keeps and does not call."""
        choices = self._registry.chosen("callbacks")
        for number, methods in self._usage.uncalled_callbacks.items():
            yield _unused(
                choices[number],
                f"this trainer calls stack.callbacks, and has called none of its methods "
                f"({', '.join(methods)}) in {SURELY_READS} steps",
                "Call them as `recd train` does, or take it out of registry.yaml.",
            )

    def _watch_order(self, model: nn.Module, planner: OrdersBatches) -> RemovableHandle:
        """Count the batches that the model is trained on, until the planner knows whether the model
        sees its order."""
        trained, known = 0, False

        def trains(module: nn.Module, *_: Any) -> None:
            nonlocal trained, known
            if known or not module.training or not self._usage.asks_for("order"):
                return
            trained += 1
            if (found := planner.ordered_in_vain(trained)) is not None:
                known = True  # a copy of the model has the hook for good
                counting.remove()
                self._usage.found(found)

        counting = model.register_forward_hook(_Hook(trains))
        return counting

    def _idle(self, model: nn.Module, *, unconverted: bool) -> Iterator[Notice]:
        """Notices of what a trainer leaves unused whose model is about to train."""
        yield from self._shards_otherwise(model)
        if isinstance(self._planner, OrdersBatches) and not self._usage.asks_for("order"):
            yield from self._planner.unordered()
        if unconverted and not self._usage.asks_for("dedup"):
            yield _unused(
                self._registry.one("dedup"),
                "the model's batches are not converted: they hold no unique samples",
                "Have `stack.convert(kjt)`, `stack.converting(collate_fn)` or "
                "`stack.converted(loader)` convert them, or take `dedup` out.",
            )
        yield from self._moves_no_replicas()
        yield from self._leaves_settings(model)
        yield from self._never_calls()

    def _shards_otherwise(self, model: nn.Module) -> Iterator[Notice]:
        """A notice of planned tables that no tiers stand in front of, or that are sharded by
        another plan."""
        planner, planning, tier_plan = self._planner, self._planning, self._tier_plan
        tiered = isinstance(planner, TierPlanner) and planner
        if tiered and tier_plan is not None and (bare := tiered.without_tiers(tier_plan)):
            every = len(bare) == len(tier_plan.tables)
            of_some = f"no tiers are in front of {listed(bare, kind='table')}"
            left = "no table has its tiers" if every else of_some
            yield _unused(
                planning,
                f"the model was sharded without its sharders, or by another plan, so that {left}",
                "Write `DistributedModelParallel(model, plan=plan, sharders=stack.sharders())`, "
                "before stack.plan is given another model.",
            )
        elif planning.record.slot in self._registry.source.values and (
            others := _sharded_otherwise(model, self._plan)
        ):
            yield _unused(
                planning,
                f"the model was sharded by another plan, which has {listed(others)}",
                "Hand DistributedModelParallel what stack.plan returned: `plan=plan`.",
            )

    def _moves_no_replicas(self) -> Iterator[Notice]:
        """A notice where the registry, or a planner that begins without replicas, has them moved,
        and this trainer moves none."""
        if self._usage.asks_for("retier_every"):
            return
        if self._registry.train.retier_every:
            yield Unused(
                what="train: retier_every",
                why="it is for `recd train`, and this trainer does not move replicas",
                cure="Call `stack.retiering_planner().retier(batches, group)` on every rank "
                "between two steps, or take it out.",
            )
        elif isinstance(self._planner, Retiers) and self._planner.begins_empty:
            yield _unused(
                self._planning,
                "no row has a replica before they are moved first, and nothing moves them",
                "Set `train.retier_every` for `recd train`, call "
                "`stack.retiering_planner().retier(batches, group)` on every rank between two "
                "steps, or count batches before training (`profile_batches`).",
            )

    def _leaves_settings(self, model: nn.Module) -> Iterator[Notice]:
        """Notices of settings of `train` that this trainer does not take over."""
        from torch import nn

        train = self._registry.train
        if train.codecs.dense != "fp32" and not self._usage.asks_for("codecs.dense"):
            yield Unused(
                what="train: codecs.dense",
                why="this trainer's dense gradients are reduced by a wrapper of its own",
                cure="Pass `data_parallel_wrapper=stack.data_parallel()` to "
                "DistributedModelParallel, or take it out.",
            )
        if train.sync_batch_norm and not any(
            isinstance(part, nn.SyncBatchNorm) for part in model.modules()
        ):
            yield Unused(
                what="train: sync_batch_norm",
                why="it is for `recd train`, and this trainer's model has no synchronised module",
                cure="Call `nn.SyncBatchNorm.convert_sync_batchnorm(model)` before stack.plan, or "
                "take it out.",
            )

    def _never_calls(self) -> Iterator[Notice]:
        """Notices of what registry.yaml chooses and this trainer does not ask the stack for."""
        asks_for = self._usage.asks_for
        for choice in self._registry.chosen("optimizer"):
            if asks_for("optimizer") and not asks_for(OPTIMIZER_MADE):
                yield _unused(
                    choice,
                    "this trainer calls stack.optimizer, and not the factory that it returns",
                    "Write `stack.optimizer()(dense_parameters)`, or take `optimizer` out of "
                    "registry.yaml.",
                )
        for slot, asking in ASKING.items():
            # Callbacks do nothing by being there.
            also = ", and at each step the methods of what it returns" * (slot == "callbacks")
            for choice in self._registry.chosen(slot):
                if not asks_for(slot) and slot in self._registry.source.values:
                    yield _unused(
                        choice,
                        f"this trainer asks for none: it never calls {asking}",
                        f"Call it{also}, or take `{slot}` out of registry.yaml.",
                    )


class _Hook:
    """A hook that copies of its model keep, and pickled ones do not: what it looks at is in this
    process."""

    def __init__(self, call: Callable[..., None]) -> None:
        self._call = call

    def __call__(self, *given: Any) -> None:
        self._call(*given)

    def __deepcopy__(self, memo: object) -> _Hook:
        return self

    def __reduce__(self) -> tuple[type[_Hook], tuple[Callable[..., None]]]:
        return _Hook, (_look_at_nothing,)


def _may_train(module: nn.Module) -> bool:
    """Whether a forward of the module may be one of training."""
    import torch

    return module.training and torch.is_grad_enabled()


def _look_at_nothing(*given: object) -> None:
    """What a hook does in another process."""


def _of_recd_train(registry: Registry) -> list[str]:
    """The options of `train` that registry.yaml has for `recd train` alone."""
    train, optimizer = registry.written("train"), registry.written("train", "optimizer")
    written = {*train, *(f"optimizer.{name}" for name in optimizer)}
    if not registry.train.retier_every:
        written.discard("retier_batches")  # idle in `recd train`, too
    return [name for name in OF_RECD_TRAIN if name in written]


def _sharded_otherwise(model: nn.Module, plan: ShardingPlan) -> list[str]:
    """The tables that are not sharded as their plan says, in words; none where any collection is:
    a trainer may place some by itself."""
    found = []
    for path, module in model.named_modules():
        if path not in plan.plan:
            continue
        planned: Any = plan.plan[path]
        placed: dict[str, Any] = {}
        for part in (module, *getattr(module, "parts", ())):
            placed.update(getattr(part, "module_sharding_plan", None) or {})
        others = [
            f"table {name} {one.sharding_type} in place of {planned[name].sharding_type}"
            for name, one in placed.items()
            if name in planned and one.sharding_type != planned[name].sharding_type
        ]
        if placed and not others:
            return []
        found += others
    return found


def _divided_wrongly(model: nn.Module) -> Iterator[Notice]:
    """A notice of means, and of sums beside them, that were sharded without `stack.sharders()`."""
    from recd_plugins.compat.mean_division import divided_wrongly

    if tables := divided_wrongly(model):
        yield Wrong(
            what=f"the pooling of {', '.join(tables)}",
            why="beside a row-wise table that pools by the mean, TorchRec divides other "
            "sums by their bags' sizes, other means twice, and some means not at all, as "
            "it does those of grids",
            cure="Write `DistributedModelParallel(model, plan=plan, "
            "sharders=stack.sharders())`, which divide means alone, or have sums and means "
            "in collections of their own.",
        )


def _not_learnt(features: Sequence[str]) -> Otherwise:
    return Otherwise(
        what=f"the weights of the ids of {listed(features)}",
        why="they are to be learnt, and no gradient comes back from the ranks "
        "that have the rows, with plain TorchRec neither, unless it has the "
        "tables data-parallel",
        cure="Have a FeatureProcessedEmbeddingBagCollection weigh ids; or "
        "constrain the tables, `sharding_types: [data_parallel]`.",
    )


def _unused(choice: Choice, why: str, cure: str) -> Unused:
    return Unused(what=choice.what, why=why, cure=cure)

"""The models that a stack plans. They are looked at once they train, for notices of what is still
unused then."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, ref

from recd_plugins.notices import Notice
from recd_plugins.planning.planner_bases import OrdersBatches
from recd_plugins.planning.tables.embedding_collections import embedding_collections
from recd_plugins.registry.choice import Choice
from recd_plugins.registry.registry import Registry
from recd_plugins.stack.unused_in_training import (
    SURELY_READS,
    UnusedInTraining,
    means_divided_wrongly,
    weights_not_learnt,
)
from recd_plugins.stack.usage import Usage

if TYPE_CHECKING:
    from torch import nn
    from torch.utils.hooks import RemovableHandle
    from torchrec.distributed.types import ModuleSharder, ShardingPlan

    from recd_plugins.slots import Planner
    from recd_plugins.sparse.groups import Groups

__all__ = ["WatchedModels"]

SURELY_TRAINS = 3
"""Forwards with gradients after which a model surely trains: one may only try it, or initialise
lazy modules."""


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
        choice: Choice,
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
            choice=choice,
            unique=unique,
        )
        self._watching[model], self._begin[model] = watch.begin(model), watch.begin

    def watch_unplanned(
        self, model: nn.Module, choice: Choice, has_plan: Callable[[], Any]
    ) -> None:
        """Look at a model that was adapted once it surely trains: by then the planner that
        registry.yaml names should have been asked for a plan."""
        if choice.record.slot not in self._registry.source.values:
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
                    choice,
                    "this trainer asks for no plan: it never calls stack.plan",
                    "Write `plan = stack.plan(model, batches=loader)` and "
                    "`DistributedModelParallel(model, plan=plan, sharders=stack.sharders())`, or "
                    f"take `{choice.record.slot}` out of registry.yaml.",
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
        choice: Choice,
        unique: Groups,
    ) -> None:
        """`watched` are the models that were planned themselves."""
        self._registry, self._usage, self._watched = registry, usage, watched
        self._planned = ref(model)
        self._planner, self._choice, self._unique = planner, choice, unique
        self._unused = UnusedInTraining(registry, usage, plan=plan, planner=planner, choice=choice)
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

    def _before(self, module: nn.Module, args: Any, kwargs: Any = None) -> None:
        """Look at the module once it is sharded; a notice where it surely trains unsharded. Torch's
        quantization hands a module's hooks to the one in its place, as ones without `kwargs`."""
        import torch
        from torch.fx import Proxy
        from torchrec.distributed.types import ShardedModule

        if not (module.training or torch.is_grad_enabled()):
            return  # an evaluation, which may come before the training's loader is made
        given = (*args, *(kwargs or {}).values())
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
                self._choice,
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
        self._usage.found(means_divided_wrongly(module))
        self._watch_weights(module)
        self._usage.found(self._unused.as_training_begins(module, unconverted=unconverted))
        if self._unused.of_recd_train or self._usage.callbacks_are_gone:
            self._look_in_step(SURELY_TRAINS, module, self._unused.left_alone)
        if self._usage.loaders_are_unread:
            self._look_in_step(SURELY_READS, module, self._unused.unread)
        if self._usage.uncalled_callbacks:
            self._look_in_step(SURELY_READS, module, self._unused.uncalled)
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
                    self._usage.found([weights_not_learnt(kjt.keys())])

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

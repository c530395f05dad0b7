"""The notices of what a trainer leaves unused of its registry, or trains wrongly, which shows once
its model trains. `watched_models` knows when that is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from recd_plugins.errors import listed
from recd_plugins.notices import Notice, Otherwise, Unused, Wrong
from recd_plugins.planning.planner_bases import OrdersBatches, Retiers
from recd_plugins.registry.choice import Choice
from recd_plugins.registry.registry import Registry
from recd_plugins.stack.usage import OPTIMIZER_MADE, Usage
from recd_plugins.tiers.planner.tier_planner import TierPlanner

if TYPE_CHECKING:
    from torch import nn
    from torchrec.distributed.types import ShardingPlan

    from recd_plugins.slots import Planner

__all__ = ["SURELY_READS", "UnusedInTraining", "means_divided_wrongly", "weights_not_learnt"]

CALLING_CALLBACKS = (
    ": `for callback, _ in stack.callbacks()`, and at each step the methods of each callback, with "
    "a Training (docs/own-trainer.md, Callbacks)"
)
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
    "ranks",
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
    "begin_from",
    "on_damaged",
    "on_full",
    "elastic",
    "run",
    "hang_after",
    "threads",
)
"""The options of `train` by which `recd train` goes and no part of a stack: another trainer has to
read them."""

SURELY_READS = 100
"""Forwards with gradients after which a trainer with a loader surely reads it: it may warm up on
batches that it draws."""


class UnusedInTraining:
    """Finds what a trainer leaves unused whose model was planned, and trains."""

    def __init__(
        self,
        registry: Registry,
        usage: Usage,
        *,
        plan: ShardingPlan,
        planner: Planner,
        choice: Choice,
    ) -> None:
        """The `choice` has built the planner that made the plan."""
        self._registry, self._usage, self._plan = registry, usage, plan
        self._planner, self._choice = planner, choice
        self._tier_plan = planner.tier_plan if isinstance(planner, TierPlanner) else None

    def as_training_begins(self, model: nn.Module, *, unconverted: bool) -> Iterator[Notice]:
        """Notices as the model is about to train; `unconverted` says whether it is adapted to
        unique samples and is handed all of them."""
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

    def left_alone(self) -> Iterator[Notice]:
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
        options = self.of_recd_train
        if options and not self._usage.asks_for("train"):
            yield Unused(
                what=f"train: {', '.join(options)}",
                why="it is for `recd train`, and this trainer reads nothing of it",
                cure="Have the trainer go by `stack.registry.train`, or write in it what is "
                "meant and take it out here.",
            )

    def unread(self) -> Iterator[Notice]:
        """A notice of a loader of which no batch was taken."""
        if self._usage.loaders_are_unread:
            yield _unused(
                self._registry.one("dataset"),
                "this trainer calls stack.loader, and has taken no batch of what it returns in "
                f"{SURELY_READS} steps",
                "Train on the batches of that loader, or take `dataset` out of registry.yaml and "
                "write `stack.plan(model, batches=loader)` of the loader that is trained on.",
            )

    def uncalled(self) -> Iterator[Notice]:
        """Notices of callbacks that the trainer keeps and does not call."""
        choices = self._registry.chosen("callbacks")
        for number, methods in self._usage.uncalled_callbacks.items():
            yield _unused(
                choices[number],
                f"this trainer calls stack.callbacks, and has called none of its methods "
                f"({', '.join(methods)}) in {SURELY_READS} steps",
                "Call them as `recd train` does, or take it out of registry.yaml.",
            )

    @property
    def of_recd_train(self) -> list[str]:
        """The options of `train` that registry.yaml has for `recd train` alone; not its ranks, if
        this job has as many."""
        registry = self._registry
        train, optimizer = registry.written("train"), registry.written("train", "optimizer")
        written = {*train, *(f"optimizer.{name}" for name in optimizer)}
        if not registry.train.retier_every:
            written.discard("retier_batches")  # idle in `recd train`, too
        if registry.train.ranks == dist.get_world_size(self._usage.group):
            written.discard("ranks")
        return [name for name in OF_RECD_TRAIN if name in written]

    def _shards_otherwise(self, model: nn.Module) -> Iterator[Notice]:
        """A notice of planned tables that no tiers stand in front of, or that are sharded by
        another plan."""
        planner, choice, tier_plan = self._planner, self._choice, self._tier_plan
        tiered = isinstance(planner, TierPlanner) and planner
        if tiered and tier_plan is not None and (bare := tiered.without_tiers(tier_plan)):
            every = len(bare) == len(tier_plan.tables)
            of_some = f"no tiers are in front of {listed(bare, kind='table')}"
            left = "no table has its tiers" if every else of_some
            yield _unused(
                choice,
                f"the model was sharded without its sharders, or by another plan, so that {left}",
                "Write `DistributedModelParallel(model, plan=plan, sharders=stack.sharders())`, "
                "before stack.plan is given another model.",
            )
        elif choice.record.slot in self._registry.source.values and (
            others := _sharded_otherwise(model, self._plan)
        ):
            yield _unused(
                choice,
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
                self._choice,
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
            also = CALLING_CALLBACKS if slot == "callbacks" else ""
            for choice in self._registry.chosen(slot):
                if not asks_for(slot) and slot in self._registry.source.values:
                    yield _unused(
                        choice,
                        f"this trainer asks for none: it never calls {asking}",
                        f"Call it{also}, or take `{slot}` out of registry.yaml.",
                    )


def means_divided_wrongly(model: nn.Module) -> Iterator[Notice]:
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


def weights_not_learnt(features: Sequence[str]) -> Otherwise:
    """The notice of weights of ids that are to be learnt, and that no gradient reaches."""
    return Otherwise(
        what=f"the weights of the ids of {listed(features)}",
        why="they are to be learnt, and no gradient comes back from the ranks "
        "that have the rows, with plain TorchRec neither, unless it has the "
        "tables data-parallel",
        cure="Have a FeatureProcessedEmbeddingBagCollection weigh ids; or "
        "constrain the tables, `sharding_types: [data_parallel]`.",
    )


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


def _unused(choice: Choice, why: str, cure: str) -> Unused:
    return Unused(what=choice.what, why=why, cure=cure)

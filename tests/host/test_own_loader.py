"""Ladder, two ranks: a plan by a trainer's own batches, and what is said of a plan nobody uses."""

from __future__ import annotations

import copy
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.distributed.train_pipeline.tracing import Tracer
from torchrec.modules.embedding_configs import EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

import recd_plugins as rp
from recd_plugins.errors import RecdError
from recd_plugins.notices import NoticeWarning
from recd_plugins.planning.access.access_profile import Counted, profile_batches
from recd_plugins.planning.together import from_rank_0
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.tiers.planner.tier_planner import TierPlanner

ROWS, BATCH = 400, 32
REGISTRY: dict[str, Any] = {
    "plugins": ["recd_flexshard"],
    "sharding": {
        "use": "flexshard",
        "goal": "min_communication",
        "profile_batches": 4,
        "others": {"search": "greedy"},
    },
    "topology": {"ranks_per_node": 1, "inter_node_gbps": 0.02},
}
"""Neither a dataset nor a reader, nor a model."""


@dataclass
class Visits:
    """A batch that knows nothing of this project."""

    pages: KeyedJaggedTensor
    weights: torch.Tensor


class Pages(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        config = EmbeddingConfig(
            name="pages", embedding_dim=16, num_embeddings=ROWS, feature_names=["pages"]
        )
        self.table = EmbeddingCollection(tables=[config], device=torch.device("meta"))

    def forward(self, features: KeyedJaggedTensor) -> torch.Tensor:
        found: torch.Tensor = self.table(features)["pages"].values()
        return found.sum()


class Joined(Pages):
    """It makes a KJT of what its batch holds."""

    def forward(self, features: KeyedJaggedTensor) -> torch.Tensor:
        ids, lengths = features.values(), features.lengths()
        return super().forward(KeyedJaggedTensor(features.keys(), ids, lengths=lengths))


class Around(nn.Module):
    """A trainer that puts a loss, say, around the model that is sharded."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Any) -> Any:
        return self.model(batch)


def visits(rank: int) -> Iterator[Visits]:
    """Without end: of rank 0 most often rows 0 to 3, of rank 1 rows 200 to 203."""
    draw = np.random.default_rng(rank)
    while True:
        hot = draw.integers(4, size=BATCH * 10) + 200 * rank
        ids = np.where(draw.random(BATCH * 10) < 0.9, hot, draw.integers(ROWS, size=BATCH * 10))
        lengths = torch.full((BATCH,), 10)
        kjt = KeyedJaggedTensor(["pages"], torch.from_numpy(ids), lengths=lengths)
        yield Visits(kjt, torch.ones(BATCH))


def pages(batch: Visits) -> KeyedJaggedTensor:
    return batch.pages


def replicas(stack: rp.Stack) -> set[int]:
    planner = stack.planner()
    assert isinstance(planner, TierPlanner)
    plan = planner.tier_plan
    return set() if plan is None else set(plan.tables["pages"].replicated.tolist())


def planned_by_batches() -> dict[str, Any]:
    rank = dist.get_rank()
    stack = rp.load(REGISTRY)
    batches = stack.peek(visits(rank))
    model = Pages()
    plan = stack.plan(model, batches=batches, features=pages)
    cpu = torch.device("cpu")
    sharded = DistributedModelParallel(model, device=cpu, plan=plan, sharders=stack.sharders())
    first = next(batches)
    sharded(first.pages).backward()
    planner = stack.planner()
    assert isinstance(planner, TierPlanner)
    return {
        "replicas": replicas(stack),
        "batch size": planner.context.batch_size,
        "samples": planner.profile.samples if planner.profile else 0,
        "first": torch.equal(first.pages.values(), next(visits(rank)).pages.values()),
    }


def test_both_ranks_batches_say_which_rows_are_hot(gloo_pool: GlooPool) -> None:
    """Nothing is missing from training, and the batch size is theirs."""
    found = gloo_pool.run(planned_by_batches)
    for one in found:
        assert {0, 1, 2, 3, 200, 201, 202, 203} <= one["replicas"]
        assert one["first"]
    assert found[0]["batch size"] == BATCH
    assert found[0]["samples"] == 2 * 4 * BATCH


def planned_by_profile(path: Path) -> list[set[int]]:
    """A saved one, which rank 0 alone can reach; and one at hand."""
    profile = None
    if dist.get_rank() == 0:
        some = [next(visits(0)) for _ in range(3)]
        counted = {"pages": Counted(num_rows=ROWS, features=("pages",))}
        profile = profile_batches(some, counted)
        profile.save(path)
    found = []
    dist.barrier()
    for given in (path if dist.get_rank() == 0 else "/nowhere", profile or path):
        stack = rp.load(REGISTRY)
        stack.plan(Pages(), profile=given)
        planner = stack.planner()
        assert isinstance(planner, TierPlanner)
        assert planner.context.batch_size == BATCH or dist.get_rank() == 1
        found.append(replicas(stack))
    return found


def test_a_profile_takes_the_place_of_batches(gloo_pool: GlooPool, tmp_path: Path) -> None:
    (saved, at_hand), others = gloo_pool.run(planned_by_profile, tmp_path / "profile.arrow")
    assert {0, 1, 2, 3} <= saved
    assert not {200, 201} & saved
    assert saved == at_hand == others[0] == others[1]


def without_samples() -> KeyedJaggedTensor:
    none = torch.zeros(0, dtype=torch.int64)
    return KeyedJaggedTensor(keys=["pages"], values=none, lengths=none)


def refusals() -> list[str]:
    """What each mistake is answered with, on this rank."""
    rank = dist.get_rank()
    sized = {**REGISTRY, "train": {"batch_size": 99}}
    read = {**REGISTRY, "plugins": ["recd_dlrm", "recd_flexshard"], "dataset": {"use": "sessions"}}
    alone = [(REGISTRY, None if rank else [next(visits(0))]), (REGISTRY, None if rank else [])]
    alone.append((read, None if rank else [next(visits(0))]))
    asked: list[tuple[dict[str, Any], dict[str, Any]]] = [
        (sized, {"batches": [next(visits(0))]}),
        (REGISTRY, {"batches": visits(0)}),
        (REGISTRY, {"features": pages}),
        (REGISTRY, {"batches": []}),
        (REGISTRY, {"batches": [without_samples()] * 3}),
        ({**REGISTRY, "strict": True}, {}),
        *((registry, {"batches": mine}) for registry, mine in alone),
        (REGISTRY, {"profile": "x"} if rank else {}),
    ]
    messages = []
    for registry, given in asked:
        try:
            rp.load(registry).plan(Pages(), **given)
        except RecdError as error:
            messages.append(str(error))
    return messages


def test_mistakes_are_answered_on_every_rank(gloo_pool: GlooPool) -> None:
    first, second = gloo_pool.run(refusals)
    says = [
        "train.batch_size is 99, but the batches that stack.plan was given have 32 samples",
        "batches: is an iterator",
        "there are no `batches`. Pass both",
        "there are no batches to count",
        "there are no samples to count: 6 batches came, and none had a sample. Check what the",
        "sharding: flexshard is not used: there are no batches to profile. Pass the trainer's own",
        *["`batches` were given on rank 0 of 2 alone. Pass each rank its own"] * 3,
        "a `profile` was given on rank 1 of 2 alone, but rank 0 plans",
    ]
    for messages in (first, second):
        assert len(messages) == len(says)
    for one, other, said in zip(first, second, says, strict=True):
        assert said in other
        assert said in one or "rank 1 could not count" in one


def planned_by_rank_0(path: Path) -> list[set[int]]:
    """By its batches, where rank 1 has none to count; and by a profile that it alone names."""
    rank = dist.get_rank()
    some = [next(visits(0)) for _ in range(3)]
    if rank == 0:
        counted = {"pages": Counted(num_rows=ROWS, features=("pages",))}
        profile_batches(some, counted).save(path)
    found = []
    for given in (
        {"batches": [] if rank else some},
        {"batches": [next(visits(1))], "profile": None if rank else path},
    ):
        stack = rp.load(REGISTRY)
        stack.plan(Pages(), **given)
        found.append(replicas(stack))
    return found


def test_a_rank_may_have_nothing_to_count(gloo_pool: GlooPool, tmp_path: Path) -> None:
    first, second = gloo_pool.run(planned_by_rank_0, tmp_path / "profile.arrow")
    assert first == second
    for rows in first:
        assert {0, 1, 2, 3} <= rows
        assert not {200, 201} & rows


def warned(do: Callable[[], object]) -> list[str]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        do()
    return [str(one.message) for one in found if one.category is NoticeWarning]


def unused() -> list[list[str]]:
    """The warnings of a plan without batches, of sharders without a plan, of a plan that was not
    passed on, and of slots that the trainer leaves alone."""
    cpu = torch.device("cpu")
    batch = next(visits(dist.get_rank()))

    def trained_without_sharders() -> None:
        stack = rp.load({**REGISTRY, "callbacks": [{"use": "mixed_precision"}]})
        model = Pages()
        plan = stack.plan(model, batches=[batch] * 4)
        stack.sharders()
        sharders = get_default_sharders()
        sharded = DistributedModelParallel(model, device=cpu, plan=plan, sharders=sharders)
        for _ in range(2):
            sharded(batch.pages)

    deduplicated = {"plugins": ["recd_dedup"], "dedup": {"use": "exact", "groups": [["pages"]]}}

    def trained_without_converting() -> None:
        retiers = {**deduplicated, "train": {"retier_every": 5}}
        stack = rp.load({**retiers, "sharding": {"use": "torchrec", "search": "greedy"}})
        model = stack.adapt(Pages())
        plan, sharders = stack.plan(model), stack.sharders()
        sharded = DistributedModelParallel(model, device=cpu, plan=plan, sharders=sharders)
        sharded(batch.pages)

    def trained_on(model: nn.Module) -> None:
        stack = rp.load({**deduplicated, "sharding": {"use": "torchrec", "search": "greedy"}})
        model = stack.adapt(model)
        plan, sharders = stack.plan(model), stack.sharders()
        sharded = DistributedModelParallel(model, device=cpu, plan=plan, sharders=sharders)
        Tracer().trace(Around(sharded))  # as pipelines do, which have no batch then
        for _ in range(2):
            sharded(features=stack.convert(batch.pages))

    def planned_two_first() -> None:
        stack, first, second = rp.load(REGISTRY), Pages(), Pages()
        plan = stack.plan(first, batches=[batch] * 4)
        stack.plan(second, batches=[batch] * 4)
        sharders = stack.sharders()
        sharded = DistributedModelParallel(first, device=cpu, plan=plan, sharders=sharders)
        sharded(batch.pages)

    def wrapped_afterwards() -> None:
        stack, model = rp.load(REGISTRY), Pages()
        plan = stack.plan(model, batches=[batch] * 4)
        around, sharders = Around(model), stack.sharders()
        sharded = DistributedModelParallel(around, device=cpu, plan=plan, sharders=sharders)
        for _ in range(4):
            sharded(batch.pages)

    def trained_without_tables() -> None:
        stack, model = rp.load(REGISTRY), nn.Linear(2, 1)
        plan = stack.plan(model, batches=[batch] * 4)
        sharders = stack.sharders()
        sharded = DistributedModelParallel(model, device=cpu, plan=plan, sharders=sharders)
        for _ in range(4):
            sharded(torch.ones(1, 2))

    def trained_one_collection() -> None:
        """DistributedModelParallel has another module in its place."""
        stack, model = (
            rp.load({**REGISTRY, "callbacks": [{"use": "mixed_precision"}]}),
            Pages().table,
        )
        plan = stack.plan(model, batches=[batch] * 4)
        sharders = stack.sharders()
        sharded = DistributedModelParallel(model, device=cpu, plan=plan, sharders=sharders)
        for _ in range(2):
            sharded(batch.pages)

    def nothing_is_moved() -> None:
        cache = {"use": "scars", "size": "hit_rate", "hit_rate": 0.5, "hot_batches": False}
        cache |= {"profile_batches": 0, "tables": ["*"]}
        stack, model = rp.load({"plugins": ["recd_scars"], "cache": cache}), Pages()
        plan, sharders = stack.plan(model), stack.sharders()
        sharded = DistributedModelParallel(model, device=cpu, plan=plan, sharders=sharders)
        for _ in range(2):
            sharded(batch.pages)

    def planned_a_copy() -> None:
        stack = rp.load({"sharding": {"search": "greedy"}})
        stack.plan(Pages())
        stack.sharders()

    return [
        warned(lambda: rp.load(REGISTRY).plan(Pages())),
        warned(lambda: rp.load(REGISTRY).sharders()),
        warned(trained_without_sharders),
        warned(lambda: rp.load(deduplicated).sharders()),
        warned(trained_without_converting),
        warned(planned_a_copy),
        warned(lambda: trained_on(Joined())),
        warned(lambda: trained_on(Pages())),
        warned(planned_two_first),
        warned(wrapped_afterwards),
        warned(trained_without_tables),
        warned(trained_one_collection),
        warned(nothing_is_moved),
    ]


def test_what_does_nothing_is_a_warning_on_rank_0(gloo_pool: GlooPool) -> None:
    first, others = gloo_pool.run(unused)
    planless, early, left, raw, plain, copied, joined, whole, two, wrapped, bare, lone, still = (
        first
    )
    assert others == [[]] * 13
    assert len(planless) == len(early) == 1
    assert "there are no batches to profile. Pass the trainer's own" in planless[0]
    assert "stack.sharders() was asked before there is a plan. Call `plan =" in early[0]
    assert len(left) == 2
    assert "the model was sharded without its sharders" in left[0]
    assert "callbacks[0]: mixed_precision is not used" in left[1]
    assert "Call it: `for callback, _ in stack.callbacks()`, and at each step the me" in left[1]
    assert [one.partition(" is not used: ")[0] for one in raw] == ["dedup: exact"]
    assert "the model is not adapted" in raw[0]
    assert [one.partition(" is not used: ")[0] for one in plain] == [
        "dedup: exact",
        "train: retier_every",
    ]
    assert "are not converted: they hold no unique samples" in plain[0]
    assert len(copied) == 1
    assert "Hand stack.plan the model that is trained, not a copy" in copied[0]
    assert len(joined) == 1
    assert "so that pages are looked up for all samples. Hand the collection" in joined[0]
    assert "made of its batch's ids or another one of the batch" in joined[0]
    assert whole == []
    assert len(two) == len(wrapped) == len(bare) == len(lone) == 1
    assert "or by another plan, so that no table has its tiers. Write" in two[0]
    assert "the model trains unsharded: its plan knows modules by their paths" in wrapped[0]
    assert "the model has no EmbeddingCollection or EmbeddingBagCollection. Plan" in bare[0]
    assert "callbacks[0]: mixed_precision is not used" in lone[0]
    assert len(still) == 1
    assert "no row has a replica before they are moved first, and nothing moves them" in still[0]


def trained_without_optimizer(calls: str) -> list[str]:
    """A trainer that asks for a factory of optimizers, or for an optimizer, or synchronises."""
    torch.set_num_threads(1)
    plugins = [str(Path(__file__).parents[1] / "trainer" / "callback_plugin.py")]
    stack = rp.load(
        {"plugins": plugins, "optimizer": "plain", "sharding": {"search": "greedy"},
         "train": {"sync_batch_norm": True, "device": "cpu"}}
    )  # fmt: skip
    model = Pages()
    if "synchronises" in calls:
        model.norm = nn.SyncBatchNorm(2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        plan, factory = stack.plan(model), stack.optimizer()
        assert factory is not None
        if "factory" in calls:
            factory(list(nn.Linear(2, 2).parameters()))
        sharded = DistributedModelParallel(
            model,
            device=torch.device("cpu"),
            plan=plan,
            sharders=stack.sharders(),
            init_data_parallel=False,
        )
        sharded(next(visits(0)).pages)
    return [str(one.message) for one in caught if one.category is NoticeWarning]


def test_a_factory_that_is_not_called_and_norms_that_are_not_synchronised_are_told(
    gloo_pool: GlooPool,
) -> None:
    first, others = gloo_pool.run(trained_without_optimizer, "")
    assert others == []
    assert [one.partition(" is not used: ")[0] for one in first] == [
        "train: sync_batch_norm",
        "optimizer: plain",
    ]
    assert "calls stack.optimizer, and not the factory that it returns" in first[1]
    assert gloo_pool.run(trained_without_optimizer, "factory, synchronises") == [[], []]


def sharded_by(stack: Any, model: nn.Module) -> nn.Module:
    """The model, as a trainer shards it by the stack's lines."""
    plan, sharders = stack.plan(model), stack.sharders()
    return DistributedModelParallel(model, device=torch.device("cpu"), plan=plan, sharders=sharders)


def trained_for(steps: int, reads: str, train: dict[str, Any]) -> list[str]:
    """A trainer that reads registry.yaml before its steps, between them, or not at all."""
    torch.set_num_threads(1)
    stack = rp.load({"sharding": {"search": "greedy"}, "train": train})
    model = Pages()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        sharded = sharded_by(stack, model)
        with torch.no_grad():  # an evaluation is no step
            for _ in range(3):
                sharded(next(visits(0)).pages)
        if reads == "before":
            assert stack.registry.train.steps == steps
        for _ in range(steps):
            sharded(next(visits(0)).pages)
            if reads == "between":
                assert stack.registry.train.steps == steps
    return [str(one.message) for one in caught if one.category is NoticeWarning]


FOR_RECD_TRAIN = {
    "steps": 5,
    "batch_size": 4,
    "ranks": 2,
    "log_every": 2,
    "retier_batches": 3,
    "optimizer": {"dense": "sgd", "dense_lr": 0.5, "tables": "sgd", "tables_lr": 0.1},
}


def test_what_is_for_recd_train_alone_is_told_where_the_trainer_reads_nothing_of_it(
    gloo_pool: GlooPool,
) -> None:
    """Of each that is written, once, in the third step; batches and tables go by theirs, and so do
    ranks, if the job has as many."""
    first, others = gloo_pool.run(trained_for, 5, "nothing", FOR_RECD_TRAIN)
    assert others == []
    assert [one.partition(" is not used: ")[0] for one in first] == [
        "train: retier_batches",
        "train: steps, optimizer.dense, optimizer.dense_lr, log_every",
    ]
    assert first[1].endswith(
        "it is for `recd train`, and this trainer reads nothing of it. Have the trainer go by "
        "`stack.registry.train`, or write in it what is meant and take it out here."
    )
    only = {key: FOR_RECD_TRAIN[key] for key in ("batch_size", "ranks", "steps")}
    assert gloo_pool.run(trained_for, 2, "nothing", only) == [[], []]
    for reads in ("before", "between"):
        assert gloo_pool.run(trained_for, 5, reads, only) == [[], []]
    (told,), others = gloo_pool.run(trained_for, 5, "nothing", {**only, "ranks": 4, "steps": 5})
    assert (told.partition(" is not used: ")[0], others) == ("train: ranks, steps", [])
    for_tables = {"optimizer": {"tables": "sgd", "tables_lr": 0.1}, "batch_size": 4}
    assert gloo_pool.run(trained_for, 5, "nothing", for_tables) == [[], []]


def trained_with_callbacks(how: str) -> list[str]:
    """A trainer that drops its callbacks, keeps them, asks for them in each step, or has none."""
    torch.set_num_threads(1)
    callbacks = [{"use": "schedule", "warmup": 2}, {"use": "clipping", "norm": 1.0}]
    registry = {"sharding": {"search": "greedy"}, "callbacks": callbacks * (how != "has none")}
    stack, model = rp.load(registry), Pages()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        sharded = sharded_by(stack, model)
        kept = stack.callbacks()
        if how == "drops":
            kept = []
        for _ in range(5):
            sharded(next(visits(0)).pages)
            if how == "asks":
                kept = stack.callbacks()
        assert len(kept) == 2 * (how in ("keeps", "asks"))
    return [str(one.message) for one in caught if one.category is NoticeWarning]


def test_callbacks_that_a_trainer_drops_are_told(gloo_pool: GlooPool) -> None:
    first, others = gloo_pool.run(trained_with_callbacks, "drops")
    assert others == []
    assert [one.partition(" is not used: ")[0] for one in first] == [
        "callbacks[0]: schedule",
        "callbacks[1]: clipping",
    ]
    assert "keeps none of what it returns, so that nothing can call it. Keep them" in first[0]
    for how in ("keeps", "asks", "has none"):
        assert gloo_pool.run(trained_with_callbacks, how) == [[], []]


def trained_beside_callbacks(calls: bool) -> list[str]:
    """A trainer that keeps its callbacks for longer than any that calls them late."""
    torch.set_num_threads(1)
    used = [{"use": name} for name in ("mixed", "steps", "ends", "assigned")]
    registry = {"plugins": [KEPT], "sharding": {"search": "greedy"}, "callbacks": used}
    stack, model = rp.load(registry), Pages()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        sharded = sharded_by(stack, model)
        kept = stack.callbacks()
        pages = next(visits(0)).pages
        training: Any = None
        for step in range(120):
            sharded(pages)
            if calls and step == 50:
                for callback, _ in kept[:2]:
                    callback.after_step(training)
        assert len(kept) == 4
    return [str(one.message) for one in caught if one.category is NoticeWarning]


KEPT = str(Path(__file__).with_name("kept_callbacks_plugin.py"))


def test_callbacks_that_a_trainer_keeps_and_never_calls_are_told(gloo_pool: GlooPool) -> None:
    first, others = gloo_pool.run(trained_beside_callbacks, False)
    assert others == []
    assert [one.partition(" in 100 steps")[0] for one in first] == [
        "callbacks[0]: mixed is not used: this trainer calls stack.callbacks, and has called none "
        "of its methods (after_step)",
        "callbacks[1]: steps is not used: this trainer calls stack.callbacks, and has called none "
        "of its methods (before_step, after_step)",
    ]
    assert gloo_pool.run(trained_beside_callbacks, True) == [[], []]


class SlottedLoader:
    """A reader's loader to which nobody can refer weakly."""

    __slots__ = ()
    is_read = False


def test_a_loader_may_have_slots() -> None:
    usage = rp.load({})._usage
    usage.gave_loader(SlottedLoader())
    assert not usage.loaders_are_unread


class Regions(nn.Module):
    """Looks up one feature of the sessions."""

    def __init__(self) -> None:
        super().__init__()
        config = EmbeddingConfig(
            name="regions", embedding_dim=4, num_embeddings=200, feature_names=["user_region"]
        )
        self.table = EmbeddingCollection(tables=[config], device=torch.device("meta"))

    def forward(self, features: KeyedJaggedTensor) -> torch.Tensor:
        found: torch.Tensor = self.table(features)["user_region"].values()
        return found.sum()


def trained_beside_a_loader(how: str, folder: str) -> list[str]:
    """A trainer that leaves its loader alone, or reads it, at once or after its warm-up."""
    torch.set_num_threads(1)
    stack = rp.load(
        {"plugins": ["recd_dlrm"], "dataset": {"use": "sessions", "samples": 2_000},
         "sharding": {"search": "greedy"}, "train": {"batch_size": 8}, "folder": folder}
    )  # fmt: skip
    model = Regions()
    loader = stack.loader(dist.get_rank(), dist.get_world_size())
    drawn = KeyedJaggedTensor(["user_region"], torch.arange(8), lengths=torch.ones(8).int())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        sharded = sharded_by(stack, model)
        batches = iter(loader) if how == "reads" else None
        for step in range(120):
            if how == "warms up" and step == 50:
                batches = iter(loader)
            features = drawn if batches is None else next(batches).features
            sharded(features)
    return [str(one.message) for one in caught if one.category is NoticeWarning]


def test_a_loader_of_which_no_batch_is_taken_is_told(tmp_path: Path, gloo_pool: GlooPool) -> None:
    for how in ("reads", "warms up"):
        assert gloo_pool.run(trained_beside_a_loader, how, str(tmp_path)) == [[], []]
    (first,), others = gloo_pool.run(trained_beside_a_loader, "leaves", str(tmp_path))
    assert others == []
    assert first == (
        "dataset: sessions is not used: this trainer calls stack.loader, and has taken no batch of "
        "what it returns in 100 steps. Train on the batches of that loader, or take `dataset` out "
        "of registry.yaml and write `stack.plan(model, batches=loader)` of the loader that is "
        "trained on."
    )


def used() -> list[list[str]]:
    """The warnings of a model that is planned twice, of replicas that move before the first batch,
    of a copy that was planned itself, of a copy that is trained beside the model, and of an
    evaluation, on batches of its own, before a trainer makes the loader that it trains on."""
    cpu, group = torch.device("cpu"), dist.GroupMember.WORLD
    assert group is not None
    rank = dist.get_rank()
    batch, other = next(visits(rank)), next(visits(1 - rank))

    def train(stack: rp.Stack, model: nn.Module, *, moved: bool = False) -> None:
        plan = stack.plan(model, batches=[other] * 4)
        sharders = stack.sharders()
        sharded = DistributedModelParallel(model, device=cpu, plan=plan, sharders=sharders)
        if moved:
            stack.retiering_planner().retier([batch] * 4, group)
        sharded(batch.pages)

    def planned_twice() -> None:
        stack, model = rp.load(REGISTRY), Pages()
        stack.plan(model, batches=[batch] * 4)
        train(stack, model)

    def planned_a_copy_too() -> None:
        stack, model = rp.load(REGISTRY), Pages()
        stack.plan(model, batches=[batch] * 4)
        train(stack, copy.deepcopy(model))

    def trained_a_copy_too() -> None:
        stack, model = rp.load(REGISTRY), Pages()
        stack.plan(model, batches=[batch] * 4)
        beside = copy.deepcopy(model).to_empty(device=cpu)
        for _ in range(4):
            beside(batch.pages)

    def evaluated_first() -> None:
        deduplicated = {"plugins": ["recd_dedup"], "dedup": {"use": "exact", "groups": [["pages"]]}}
        stack = rp.load({**deduplicated, "sharding": {"use": "torchrec", "search": "greedy"}})
        model = stack.adapt(Pages())
        plan, sharders = stack.plan(model), stack.sharders()
        sharded = DistributedModelParallel(model, device=cpu, plan=plan, sharders=sharders).eval()
        with torch.no_grad():
            sharded(batch.pages)
        sharded.train()(stack.convert(batch.pages))

    return [
        warned(evaluated_first),
        warned(planned_twice),
        warned(lambda: train(rp.load(REGISTRY), Pages(), moved=True)),
        warned(planned_a_copy_too),
        warned(trained_a_copy_too),
    ]


def test_what_is_used_is_no_warning(gloo_pool: GlooPool) -> None:
    assert gloo_pool.run(used) == [[[]] * 5] * 2


def test_the_look_is_closed_where_a_plan_fails(gloo_pool: GlooPool) -> None:
    assert gloo_pool.run(state_after_a_failure) == [True, True]


def state_after_a_failure() -> bool:
    before = torch.get_rng_state()

    def noisy() -> Iterator[Visits]:
        torch.rand(3)
        yield next(visits(0))

    class Noisy:
        def __iter__(self) -> Iterator[Visits]:
            return noisy()

    stack = rp.load({**REGISTRY, "train": {"batch_size": 1}})
    with pytest.raises(RecdError, match=r"train\.batch_size is 1"):
        stack.plan(Pages(), batches=Noisy())
    return torch.equal(before, torch.get_rng_state())


def collectives_of_a_step(registry: dict[str, Any]) -> Counter[str]:
    """The calls of collectives in a step of one rank, by name, once all has warmed up."""
    stack = rp.load(registry)
    batches = stack.peek(visits(0))
    model = Pages()
    plan = stack.plan(model, batches=batches, features=pages)
    cpu = torch.device("cpu")
    sharded = DistributedModelParallel(model, device=cpu, plan=plan, sharders=stack.sharders())
    for _ in range(2):
        sharded(next(batches).pages).backward()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        sharded(next(batches).pages).backward()
    return Counter(event.name for event in profile.events() if event.name.startswith("c10d::"))


@pytest.mark.parametrize(
    "changed",
    [
        {"sharding": {**REGISTRY["sharding"], "coalesce": "rank"}},
        {
            "plugins": ["recd_scars"],
            "cache": {"use": "scars", "size": "hit_rate", "hit_rate": 0.5},
            "sharding": None,
        },
    ],
    ids=["flexshard", "scars"],
)
@pytest.mark.filterwarnings("ignore::recd_plugins.notices.NoticeWarning")
def test_one_rank_calls_no_collective_that_plain_torchrec_does_not(
    gloo_pool: GlooPool, changed: dict[str, Any]
) -> None:
    (plain,) = gloo_pool.run(collectives_of_a_step, {}, world_size=1)
    (ours,) = gloo_pool.run(collectives_of_a_step, {**REGISTRY, **changed}, world_size=1)
    assert not ours - plain


def a_strangers_error() -> tuple[str, str]:
    def make() -> int:
        raise KeyError("a table of its own")

    group = dist.GroupMember.WORLD
    assert group is not None
    try:
        from_rank_0(group, make)
    except Exception as error:
        return type(error).__name__, str(error)
    return "", ""


def test_an_error_of_others_code_on_rank_0_is_known_to_every_rank(gloo_pool: GlooPool) -> None:
    first, second = gloo_pool.run(a_strangers_error)
    assert first == ("KeyError", "'a table of its own'")
    assert second[0] == "FailedOnRank0"
    assert "rank 0 ended with KeyError: 'a table of its own'" in second[1]


class Scored(Pages):
    """With a dense part, whose optimizer callbacks see."""

    def __init__(self) -> None:
        super().__init__()
        self.over = nn.Linear(16, 1)

    def forward(self, features: KeyedJaggedTensor) -> torch.Tensor:
        loss: torch.Tensor = self.over(self.table(features)["pages"].values()).sum()
        return loss


def trained_by_the_page(code: str) -> tuple[list[float], float]:
    """On a rank: the dense rate of each step, and the norm of the last gradients that a step took,
    in a trainer that calls its callbacks as the page has it."""
    device, chosen = torch.device("cpu"), [{"use": "schedule", "warmup": 4}]
    stack = rp.load({**REGISTRY, "callbacks": [*chosen, {"use": "clipping", "norm": 0.5}]})
    model: Any = Scored()
    batches = list(islice(visits(dist.get_rank()), 4))
    plan = stack.plan(model, batches=batches)
    model = DistributedModelParallel(model, device=device, plan=plan, sharders=stack.sharders())
    dense = torch.optim.SGD(model.module.over.parameters(), lr=0.4)
    rates: list[float] = []

    class Steps:
        def progress(self, batches: Iterator[Visits]) -> None:
            rates.append(dense.param_groups[0]["lr"])
            dense.zero_grad()
            model(next(batches).pages).backward()
            dense.step()

    of_the_trainer = {"stack": stack, "model": model, "dense": dense, "device": device}
    ranks = {"rank": dist.get_rank(), "world_size": dist.get_world_size()}
    exec(
        code, {**of_the_trainer, **ranks, "steps": 3, "pipeline": Steps(), "batches": iter(batches)}
    )
    norms = [one.grad.norm() for group in dense.param_groups for one in group["params"]]
    return rates, float(torch.stack(norms).norm())


def test_a_trainer_calls_its_callbacks_as_the_page_says(gloo_pool: GlooPool) -> None:
    page = (Path(__file__).parents[2] / "docs" / "own-trainer.md").read_text()
    code = page.partition("\n## Callbacks\n")[2].partition("```python\n")[2].partition("```")[0]
    for rates, norm in gloo_pool.run(trained_by_the_page, code):
        assert rates == pytest.approx([0.1, 0.2, 0.3])  # of 0.4, warmed up in 4 steps
        assert norm == pytest.approx(0.5, rel=1e-4)

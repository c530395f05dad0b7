"""Habits of trainers: by the lines of docs/own-trainer.md two gloo ranks train, with replicas and
on unique samples, what the same trainer trains without them."""

from __future__ import annotations

import copy
import gc
import multiprocessing
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from foreign import (
    CPU,
    Clicks,
    Collate,
    Job,
    MakeLoader,
    ShardingKind,
    Side,
    drawn,
    job,
    same_batches,
)
from torch import Tensor
from torch.distributed.checkpoint import DefaultLoadPlanner
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from torchdata.stateful_dataloader import StatefulDataLoader
from torchrec.distributed.train_pipeline import TrainPipelineSparseDist
from torchrec.optim.clipping import GradientClipping, GradientClippingOptimizer
from torchrec.optim.warmup import WarmupOptimizer, WarmupPolicy, WarmupStage

import recd_plugins as rp
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.testing.parity import assert_alike
from recd_plugins.testing.rounding import plain_of

STEPS = 3

Seen = dict[str, Tensor]
Habit = Callable[[Job], Seen]
"""Trains, and yields what the trainer sees of it beside what it trains."""


def step(own: Job, batch: Clicks) -> None:
    own.optimizer.zero_grad()
    own.model(batch)[0].backward()
    own.optimizer.step()


def evaluated(own: Job) -> Tensor:
    """The logits of batches that are held out."""
    own.model.eval()
    with torch.no_grad():
        logits = torch.cat([own.model(batch)[1] for batch in own.batches(2)])
    own.model.train()
    return logits


def evaluating(own: Job) -> Seen:
    """An evaluation after each step."""
    logits = []
    for batch in own.batches(STEPS):
        step(own, batch)
        logits.append(evaluated(own))
    return {"logits": torch.stack(logits)}


def clipped_and_scheduled(own: Job) -> Seen:
    """Norms of gradients are clipped, and a schedule of torch's sets the rates of all, tables'
    too."""
    schedule = LambdaLR(own.optimizer, lambda step: 1 / (1 + step))
    norms = []
    for batch in own.batches(STEPS):
        own.optimizer.zero_grad()
        own.model(batch)[0].backward()
        norms.append(clip_grad_norm_(own.model.parameters(), 0.1))
        own.optimizer.step()
        schedule.step()
    return {"norms": torch.stack(norms)}


def warmed_up(own: Job) -> Seen:
    """By TorchRec's optimizers around all of its own."""
    clipping = GradientClippingOptimizer(own.optimizer, GradientClipping.NORM, max_gradient=0.1)
    stages = [WarmupStage(WarmupPolicy.LINEAR, max_iters=STEPS, value=0.1)]
    own.optimizer = WarmupOptimizer(clipping, stages, lr=0.2)
    for batch in own.batches(STEPS):
        step(own, batch)
    return {}


def averaged(own: Job) -> Seen:
    """A copy of the dense part has its moving average, by which the model is evaluated."""
    over = own.model.module.over
    average = AveragedModel(over, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    for batch in own.batches(STEPS):
        step(own, batch)
        average.update_parameters(over)
    now = copy.deepcopy(over.state_dict())
    over.load_state_dict(average.module.state_dict())
    logits = evaluated(own)
    over.load_state_dict(now)
    return {"logits": logits, **average.state_dict()}


def at_other_rates(own: Job) -> Seen:
    """Each group of parameters has rates of its own, zero among them, which change as it trains."""
    groups = own.optimizer.param_groups
    rates = [group["lr"] for group in groups]
    for number, batch in enumerate(own.batches(2 * STEPS)):
        for place, (group, rate) in enumerate(zip(groups, rates, strict=True)):
            group["lr"] = rate * ((number + place) % 3)
        step(own, batch)
    return {}


class Bad(Exception):
    """A batch is one that the trainer leaves out."""


def leaves_out(own: Job) -> Seen:
    """The model raises after its lookups, or the trainer before its backward; it goes on."""

    def refuse(*_: object) -> None:
        raise Bad

    for number, batch in enumerate(own.batches(2 * STEPS)):
        own.optimizer.zero_grad()
        hook = own.model.module.over.register_forward_pre_hook(refuse) if number == 1 else None
        try:
            loss = own.model(batch)[0]
            if number == 3:
                raise Bad
            loss.backward()
        except Bad:
            continue
        finally:
            if hook is not None:
                hook.remove()
        own.optimizer.step()
    return {}


def goes_back_to_the_best(own: Job) -> Seen:
    """A copy of the state dict is loaded some steps later, and trained on from."""
    logits = []
    batches = [*own.batches(2 * STEPS)]
    for number, batch in enumerate(batches):
        step(own, batch)
        if number == 1:
            best = copy.deepcopy(own.model.state_dict())
            logits.append(evaluated(own))
        if number == 3:
            logits.append(evaluated(own))
            own.model.load_state_dict(best)
            logits.append(evaluated(own))
    assert torch.equal(logits[0], logits[2])
    return {"logits": torch.stack(logits)}


def in_strange_modes(own: Job) -> Seen:
    """Every other step trains in the mode of evaluations, and an evaluation comes between each
    forward and its backward, which another thread computes."""
    logits = []
    with ThreadPoolExecutor(1) as pool:
        for number, batch in enumerate(own.batches(2 * STEPS)):
            own.model.train(number % 2 == 0)
            own.optimizer.zero_grad()
            loss = own.model(batch)[0]
            logits.append(evaluated(own))
            pool.submit(loss.backward).result()
            own.optimizer.step()
    return {"logits": torch.stack(logits)}


def run(
    habit: Habit,
    side: Side,
    rounding: AbstractContextManager[object] | None = None,
    make_loader: MakeLoader = same_batches,
    bags: ShardingKind = "row_wise",
) -> dict[str, Tensor]:
    own = job(side, make_loader=make_loader, bags=bags)
    with rounding or nullcontext():
        seen = habit(own)
    if own.stack is not None:
        tables = own.stack.planner().tier_plan.tables.values()
        assert any(len(table.replicated) for table in tables)
        if bags != "row_wise":
            assert has_as_bags(own) == {bags}
    return {**own.trained(), **seen}


def has_as_bags(own: Job) -> set[str]:
    """The sharding types of the tables of bags."""
    plan = own.model.plan.plan
    return {one.sharding_type for path in ("bags", "scored") for one in plan[path].values()}


def trains_alike(habit: Habit, bags: ShardingKind = "row_wise") -> None:
    """On a rank."""
    expected = plain_of(partial(run, habit, "plain", bags=bags))
    assert_alike(run(habit, "registry", bags=bags), *expected)


@pytest.mark.parametrize(
    "habit",
    [
        evaluating,
        clipped_and_scheduled,
        warmed_up,
        averaged,
        at_other_rates,
        leaves_out,
        goes_back_to_the_best,
        in_strange_modes,
    ],
)
def test_what_a_trainer_does_around_its_steps(gloo_pool: GlooPool, habit: Habit) -> None:
    gloo_pool.run(trains_alike, habit)


@pytest.mark.parametrize("bags", ["table_wise", "column_wise"])
@pytest.mark.parametrize("habit", [evaluating, clipped_and_scheduled, averaged])
def test_the_same_beside_bags_that_torchrec_has_whole_or_by_columns(
    gloo_pool: GlooPool, habit: Habit, bags: ShardingKind
) -> None:
    gloo_pool.run(trains_alike, habit, bags)


def cast(own: Job) -> Seen:
    """The forward computes in bfloat16 what can be."""
    for batch in own.batches(STEPS):
        own.optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = own.model(batch)[0]
        loss.backward()
        own.optimizer.step()
    return {}


def casts_alike() -> None:
    """On a rank. Numbers that differ in their last bits, as plain TorchRec's own do, round to
    neighbours in bfloat16, 1/128 apart: so may what is learned of them."""
    before, plain, ours = (
        run(*one) for one in ((nothing, "plain"), (cast, "plain"), (cast, "registry"))
    )
    learned = {name: (plain[name] - value).abs().max() for name, value in before.items()}
    assert sum(one > 0 for one in learned.values()) > len(learned) / 2
    for name, most in learned.items():
        torch.testing.assert_close(ours[name], plain[name], rtol=0, atol=float(most) / 64)


def nothing(own: Job) -> Seen:
    """Trains no step: but there are states, and momenta of zero."""
    for one in own.model.module.over.parameters():
        one.grad = torch.zeros_like(one)
    own.optimizer.step()
    return {}


def test_what_autocast_casts_is_cast_alike(gloo_pool: GlooPool) -> None:
    gloo_pool.run(casts_alike)


class Stream(IterableDataset[Clicks]):
    """This rank's batches, without end; read again, they go on, as torchdata has it."""

    def __init__(self) -> None:
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.read = 0

    def __iter__(self) -> Iterator[Clicks]:
        worker = get_worker_info()
        number, workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        while True:
            step = self.read * workers + number
            self.read += 1
            yield drawn(step * self.world_size + self.rank)

    def state_dict(self) -> dict[str, int]:
        return {"read": self.read}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.read = state["read"]


def by_a_loader(workers: int, collate: Collate | None) -> Iterable[Clicks]:
    return DataLoader(
        Stream(),
        batch_size=None,
        num_workers=workers,
        collate_fn=collate,
        multiprocessing_context="fork" if workers else None,
    )


ENDED: list[str] = []
"""Generators that were closed."""


def by_a_generator(collate: Collate | None) -> Iterable[Clicks]:
    def batches() -> Iterator[Clicks]:
        try:
            for batch in Stream():
                yield batch if collate is None else collate(batch)
        finally:
            ENDED.append("batches")

    return rp.load({}).peek(batches())


def some_of_a_stream(own: Job) -> Seen:
    """The pipeline reads two batches ahead, and nobody asks for them."""
    pipeline = TrainPipelineSparseDist(own.model, own.optimizer, CPU)
    batches = iter(own.loader)
    return {"logits": torch.cat([pipeline.progress(batches) for _ in range(STEPS)])}


def leaves_nothing_behind() -> None:
    """On a rank: plain TorchRec and ours, each at its end."""
    expected = plain_of(
        partial(run, some_of_a_stream, "plain", make_loader=partial(by_a_loader, 0))
    )
    threads = set(threading.enumerate())
    for make_loader in (partial(by_a_loader, 1), by_a_generator):
        assert_alike(run(some_of_a_stream, "registry", make_loader=make_loader), *expected)
        gc.collect()
        assert multiprocessing.active_children() == []
        for thread in set(threading.enumerate()) - threads:
            thread.join(timeout=60)  # a queue's ends soon after the queue is closed
        assert set(threading.enumerate()) <= threads
    assert ENDED == ["batches"]
    ENDED.clear()


def test_a_stream_without_end_is_left_when_the_trainer_has_enough(gloo_pool: GlooPool) -> None:
    gloo_pool.run(leaves_nothing_behind)


def by_torchdata(
    workers: int, position: dict[str, Any] | None, collate: Collate | None
) -> Iterable[Clicks]:
    loader = StatefulDataLoader(
        Stream(),
        batch_size=None,
        num_workers=workers,
        collate_fn=collate,
        multiprocessing_context="fork" if workers else None,
    )
    if position is not None:
        loader.load_state_dict(position)
    return loader


def two_steps(own: Job) -> Seen:
    batches = iter(own.loader)
    for _ in range(2):
        step(own, next(batches))
    return {}


def four_steps(own: Job) -> Seen:
    for batch in own.batches(4):
        step(own, batch)
    return {}


def resumes(folder: str, workers: int) -> None:
    """On a rank: two steps, checkpoints of model and loader, a new plan, and two steps more."""
    first = job("registry", make_loader=partial(by_torchdata, workers, None))
    two_steps(first)
    position = first.loader.state_dict()
    save(first, folder)
    second = job("registry", make_loader=partial(by_torchdata, workers, position))
    load(second, folder)
    two_steps(second)
    assert_alike(second.trained(), *plain_of(partial(run, four_steps, "plain")))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_of_torchdata_is_resumed(
    gloo_pool: GlooPool, tmp_path: Path, workers: int
) -> None:
    gloo_pool.run(resumes, str(tmp_path), workers)


def save(own: Job, folder: str) -> None:
    state = {"model": own.model.state_dict(), "optimizer": own.optimizer.state_dict()}
    dcp.save(state, checkpoint_id=folder)


def load(own: Job, folder: str, partly: bool = False) -> None:
    nothing(own)  # for a checkpoint is read into what is there
    state = {"model": own.model.state_dict(), "optimizer": own.optimizer.state_dict()}
    # torch writes what is no tensor on rank 0 alone. So the empty state of a table that SGD steps
    # is lost where another rank has that table whole.
    planner = DefaultLoadPlanner(allow_partial_load=partly)
    dcp.load(state, checkpoint_id=folder, planner=planner)
    own.model.load_state_dict(state["model"])
    own.optimizer.load_state_dict(state["optimizer"])


def attempt(side: Side, before: str | None, after: str, bags: ShardingKind) -> dict[str, Tensor]:
    """On a rank: go on from a checkpoint for two steps, and leave another."""
    own = job(side, bags=bags)
    if before is not None:
        load(own, before, partly=bags == "table_wise")
    for batch in own.batches(2):
        step(own, batch)
    save(own, after)
    return own.trained()


@pytest.mark.parametrize("bags", ["row_wise", "table_wise"])
def test_a_job_is_restarted_on_another_number_of_ranks(
    gloo_pool: GlooPool, tmp_path: Path, bags: ShardingKind
) -> None:
    trained: dict[Side, dict[str, Tensor]] = {}
    for side in ("plain", "registry"):
        before = None
        for number, ranks in enumerate((2, 3, 2)):
            after = str(tmp_path / f"{side} {number}")
            trained[side] = gloo_pool.run(attempt, side, before, after, bags, world_size=ranks)[0]
            before = after
    # A row or a state of another's would be off by a hundredth: these are off by rounding.
    torch.testing.assert_close(trained["registry"], trained["plain"], rtol=1e-4, atol=1e-6)

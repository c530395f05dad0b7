"""Drawn trainers whose training is in parts, each on ranks and by a registry of its own, or
plainly: each goes on from the state that the one before left."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from drawn_trainer import (
    DENSE,
    DrawnBatch,
    DrawnTrainer,
    Job,
    Loop,
    Samples,
    Side,
    assembled,
    draw_groups,
    draw_registry,
    evaluate,
    train,
)
from foreign import all_that_is_trained
from torch import Tensor
from torch.distributed.checkpoint import DefaultLoadPlanner
from torchrec.distributed.types import Shard, ShardedTensor

from recd_plugins.notices import NoticeWarning
from recd_plugins.trainer.checkpoints.storage import JsonReader, JsonWriter

__all__ = ["LOADS", "WAYS", "DrawnParts", "Left", "Part", "go_on", "undisturbed"]

SAMPLES = 12
"""Of a step, on all ranks."""
NOTHING = ("",) * 99
BETWEEN = ("", "", "evaluate", "state", "reload", "retier")
"""What a trainer does behind a step."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """Some steps of a training, from one state to the next."""

    side: Side
    trainer: DrawnTrainer
    """As the ranks of this part have it."""
    first: int
    last: int
    """Its steps are those from `first` to before `last`."""
    rate: float
    """What the rates of all optimizers are multiplied by."""
    loads: str
    """One of `LOADS`: how it takes the state that it goes on from."""
    saves: str
    """One of `WAYS`."""


@dataclass(frozen=True, kw_only=True)
class DrawnParts:
    """A training in parts."""

    trainer: DrawnTrainer
    """As one rank has it that trains all of it plainly."""
    parts: tuple[Part, ...]

    @classmethod
    def of(cls, seed: int) -> DrawnParts:
        draw = random.Random(seed)
        # What is clipped depends on how many ranks gradients are divided by.
        own = replace(DrawnTrainer.of(seed), clips=None, dense=draw.choice([*DENSE]))
        counts = [draw.choice([1, 1, 2, 3]) for _ in range(draw.choice([2, 2, 3, 4]))]
        own = replace(own, steps=sum(counts))
        sides: list[Side] = [draw.choice(["plain", "ours", "ours"]) for _ in counts]
        sides[draw.randrange(len(counts))] = "ours"
        return cls(
            trainer=replace(own, world_size=1, batch_size=SAMPLES, between=NOTHING),
            parts=tuple(
                Part(
                    side=side,
                    trainer=_of_part(draw, own),
                    first=sum(counts[:number]),
                    last=sum(counts[: number + 1]),
                    rate=draw.choice([1.0, 1.0, 0.5]),
                    loads=draw.choice([*LOADS]),
                    saves=draw.choice([*WAYS]),
                )
                for number, side in enumerate(sides)
            ),
        )


def _of_part(draw: random.Random, own: DrawnTrainer) -> DrawnTrainer:
    """The trainer on other ranks, by another registry, in another loop."""
    loops: list[Loop] = ["loop", "TrainPipelineBase", "TrainPipelineSparseDist"]
    world_size = draw.choice([1, 2, 2, 3, 4])
    groups = draw_groups(draw, own.collections) if draw.random() < 0.5 else []
    return replace(
        own,
        world_size=world_size,
        batch_size=SAMPLES // world_size,
        loop=own.loop if own.loop == "accumulating" else draw.choice(loops),
        bags=draw.choice(["row-wise", "row-wise", "table-wise", "any"]),
        between=tuple(draw.choice(BETWEEN) for _ in range(own.steps)),
        registry=draw_registry(draw, groups, world_size),
    )


@dataclass(frozen=True, kw_only=True)
class Left:
    """What a part left on a rank."""

    samples: list[list[int]]
    """Those of each of this rank's batches, as it trained them."""
    loaded: dict[str, Tensor] | None
    """All that it went on from; none of the first part."""
    state: dict[str, Tensor]
    """All that was trained, in full."""
    replicas: bool
    """Whether any row had one, or could have been given one."""


def go_on(part: Part, before: tuple[str, str] | None, after: str) -> Left:
    """On a rank: load what lies `before`, in which way it was kept and where; train; save."""
    samples = Samples(part.trainer)
    *batches, held_out = samples.of_rank(dist.get_rank())
    each = _batches_of_step(part.trainer)
    own = batches[part.first * each : part.last * each]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoticeWarning)
        job = assembled(part.trainer, part.side, own)
    if part.side == "ours":
        own = list(job.loader)
    held_out = job.convert(held_out)
    loaded = None
    if before is not None:
        LOADS[part.loads](job, held_out, WAYS[before[0]].fill, before[1])
        loaded = trained(job)
    _multiply_rates(job, part.rate)
    # TrainPipelineSparseDist has batches under way when the part ends.
    ahead = [job.convert(one) for one in batches[part.last * each :]]
    train(part.trainer, job, own, held_out, ahead)
    WAYS[part.saves].save(job, after)
    planner = None if job.stack is None else job.stack.planner()
    return Left(
        samples=[batch.samples.tolist() for batch in own],
        loaded=loaded,
        state=trained(job),
        replicas=getattr(planner, "tier_plan", None) is not None,
    )


def undisturbed(
    drawn: DrawnParts,
    samples: list[list[int]],
    rounding: AbstractContextManager[Any] | None = None,
) -> dict[str, Tensor]:
    """On one rank: all batches plainly, one after another; all that is trained."""
    every = Samples(drawn.trainer)
    batches = [every.batch(one) for one in samples]
    job = assembled(drawn.trainer, "plain", batches)
    each = _batches_of_step(drawn.trainer)
    with rounding or nullcontext():
        for part in drawn.parts:
            _multiply_rates(job, part.rate)
            own = batches[part.first * each : part.last * each]
            train(drawn.trainer, job, own, held_out=batches[0])
            _multiply_rates(job, 1 / part.rate)
    return trained(job)


def trained(job: Job) -> dict[str, Tensor]:
    assert job.optimizer is not None
    return all_that_is_trained(job.model, job.optimizer)


def _batches_of_step(trainer: DrawnTrainer) -> int:
    return 2 if trainer.loop == "accumulating" else 1


def _multiply_rates(job: Job, by: float) -> None:
    assert job.optimizer is not None
    for group in job.optimizer.param_groups:
        group["lr"] *= by


States = dict[str, Any]
"""The state dicts of model and optimizers."""
Fill = Callable[[States, str], None]
"""Fills states from where they are kept."""


@dataclass(frozen=True)
class Way:
    """How states are kept, and filled again."""

    save: Callable[[Job, str], None]
    fill: Fill


def states_of(job: Job) -> States:
    return {"model": job.model.state_dict(), "optimizer": job.optimizer.state_dict()}


# torch writes what is no tensor on rank 0 alone. So the empty state of a table that SGD steps is
# lost where another rank has that table whole. Nothing else is: it is held to what was left.
PARTLY = DefaultLoadPlanner(allow_partial_load=True)


def _flat(states: States) -> dict[str, Tensor | ShardedTensor]:
    """All tensors, by the names that `trained` has for them."""
    return states["model"] | {
        f"{name}/{key}": one
        for name, own in states["optimizer"]["state"].items()
        for key, one in own.items()
        if isinstance(one, Tensor | ShardedTensor)
    }


def save_as_json(job: Job, folder: str) -> None:
    if dist.get_rank() == 0:
        Path(folder).mkdir()
    dist.barrier()
    dcp.save(_flat(states_of(job)), storage_writer=JsonWriter(Path(folder)))


def fill_from_json(states: States, folder: str) -> None:
    dcp.load(_flat(states), storage_reader=JsonReader(Path(folder)), planner=PARTLY)


def save_whole(job: Job, file: str) -> None:
    found = trained(job)
    if dist.get_rank() == 0:
        torch.save(found, file)
    dist.barrier()


def fill_from_whole(states: States, file: str) -> None:
    found = torch.load(file)
    for name, one in _flat(states).items():
        if not isinstance(one, ShardedTensor):
            one.detach().copy_(found[name])
            continue
        for shard in one.local_shards():
            place = zip(shard.metadata.shard_offsets, shard.metadata.shard_sizes, strict=True)
            shard.tensor.copy_(found[name][tuple(slice(at, at + n) for at, n in place)])
    # TorchRec cuts whole tables down to what a rank holds.
    states["model"] = {name: found[name] for name in states["model"]}


WAYS: Mapping[str, Way] = {
    "torch.distributed.checkpoint": Way(
        lambda job, folder: dcp.save(states_of(job), checkpoint_id=folder),
        lambda states, folder: dcp.load(states, checkpoint_id=folder, planner=PARTLY),
    ),
    "the format of recd train": Way(save_as_json, fill_from_json),
    "whole": Way(save_whole, fill_from_whole),
}


def _filled(job: Job, fill: Fill, where: str) -> States:
    """States that are filled in, of all optimizers: those that make theirs at their first step
    have them now."""
    for group in job.optimizer.param_groups:
        for one in group["params"]:
            if not isinstance(one, ShardedTensor):
                one.grad = torch.zeros_like(one)
    job.optimizer.step()
    job.optimizer.zero_grad(set_to_none=True)
    states = states_of(job)
    fill(states, where)
    return states


def at_once(job: Job, held_out: DrawnBatch, fill: Fill, where: str) -> None:
    """Before the first forward."""
    states = _filled(job, fill, where)
    job.model.load_state_dict(states["model"])
    job.optimizer.load_state_dict(states["optimizer"])


def in_place(job: Job, held_out: DrawnBatch, fill: Fill, where: str) -> None:
    """By nothing but the tensors of the state dicts, which are those that are trained."""
    _filled(job, fill, where)


def behind_a_step(job: Job, held_out: DrawnBatch, fill: Fill, where: str) -> None:
    """When replicas hold what other samples trained."""
    loss, _ = job.model(held_out)
    loss.backward()
    job.optimizer.step()
    at_once(job, held_out, fill, where)


def behind_evaluations(job: Job, held_out: DrawnBatch, fill: Fill, where: str) -> None:
    """When replicas hold what was there before: first the model, then the optimizers."""
    states = _filled(job, fill, where)
    kept = {
        name: {key: _moved_out(one) for key, one in own.items()}
        for name, own in states["optimizer"]["state"].items()
    }
    weights = {name: _moved_out(one) for name, one in states["model"].items()}
    evaluate(job, held_out)
    job.model.load_state_dict(weights)
    evaluate(job, held_out)
    job.optimizer.load_state_dict({"state": kept})


def _moved_out(state: Any) -> Any:
    """A state; where it was there are ones."""
    if not isinstance(state, Tensor | ShardedTensor):
        return state
    if not isinstance(state, ShardedTensor):
        copy = state.clone()
        state.fill_(1)
        return copy
    shards = [Shard(one.tensor.clone(), one.metadata) for one in state.local_shards()]
    for one in state.local_shards():
        one.tensor.fill_(1)
    return ShardedTensor._init_from_local_shards_and_global_metadata(
        shards, state.metadata(), process_group=state._process_group
    )


LOADS: Mapping[str, Callable[[Job, DrawnBatch, Fill, str], None]] = {
    "at once": at_once,
    "in place": in_place,
    "behind a step": behind_a_step,
    "behind evaluations": behind_evaluations,
}
"""How a part takes a state that was kept."""

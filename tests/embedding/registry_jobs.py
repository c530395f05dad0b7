"""A registry's training on a rank, with its own loader, plan and pipeline."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torchrec.distributed.types import ShardedModule

from recd_plugins.stack import load
from recd_plugins.testing.trained import Trained
from recd_plugins.trainer.assemble import assemble
from recd_plugins.trainer.initial_tables import table_initialisers


class Job(NamedTuple):
    """What a training on a rank left behind."""

    trained: Trained
    pipelined: int
    """Sharded modules whose exchange runs ahead."""
    sharded: int
    """Sharded modules that the model has."""
    names: set[str]
    """Of parameters, states and optimizer states, on whichever rank."""
    explained: str


def train_registry(registry: Mapping[str, Any], steps: int) -> Job:
    """`recd train`'s steps on this rank."""
    logging.getLogger("torchrec").setLevel(logging.ERROR)
    stack = load(registry)
    tables = table_initialisers(stack.model())
    job = assemble(stack, torch.device("cpu"))
    start = Trained.of(job.model, tables, losses=[])
    batches = iter(stack.loader(dist.get_rank(), dist.get_world_size()))
    losses = [job.pipeline.progress(batches)[0].item() for _ in range(steps)]
    parameters = {name for name, _ in job.model.named_parameters()}
    names = parameters.union(job.model.state_dict(), job.optimizer.state_dict()["state"])
    return Job(
        trained=Trained.of(
            job.model,
            tables,
            losses=torch.tensor(_gathered(losses)).T.tolist(),
            start=start.tables,
        ),
        pipelined=len(job.pipeline._pipelined_modules),
        sharded=sum(isinstance(module, ShardedModule) for module in job.model.modules()),
        names=set().union(*_gathered(names)),
        explained=stack.explain(),
    )


def _gathered(mine: Any) -> list[Any]:
    everyones: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyones, mine)
    return everyones

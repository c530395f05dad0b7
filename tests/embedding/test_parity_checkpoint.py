"""Rung 3 (two gloo ranks): checkpoints of adapted models and of others are each other's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from mixed import Mixed, Sharded, batch_of, deduplicated
from torchrec.distributed import DistributedModelParallel, TrainPipelineSparseDist
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter

from recd_plugins.data.batch import Batch
from recd_plugins.registry.settings import OptimizerSettings
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.testing.parity import assert_parity, reference_of
from recd_plugins.testing.trained import Trained
from recd_plugins.trainer.assemble import Job
from recd_plugins.trainer.checkpoints.checkpoint import Checkpoints
from recd_plugins.trainer.initial_tables import initialise_tables, table_initialisers

ADAGRAD = OptimizerSettings(
    tables="adagrad", tables_lr=0.1, tables_eps=1e-4, dense="adagrad", dense_lr=0.1
)
CPU = torch.device("cpu")
PLAIN, ADAPTED = Sharded("row_wise", adapted=False), Sharded("row_wise")
OTHERWISE = Sharded("mixed", shares=None)

Batches = Sequence[Sequence[Batch]]


def batches() -> list[list[Batch]]:
    # Plain TorchRec trains row-wise bags on gloo on even batches alone.
    return [
        [batch_of(6, unique=2 + rank, seed=10 * step + rank) for rank in range(2)]
        for step in range(4)
    ]


def job(arrange: Sharded, seed: int) -> Job:
    torch.manual_seed(seed)
    model = Mixed()
    tables = table_initialisers(model)
    arranged = arrange(model, ADAGRAD)
    sharded = DistributedModelParallel(
        arranged.model, device=CPU, plan=arranged.plan, sharders=arranged.sharders
    )
    initialise_tables(sharded, tables, seed)
    parameters = dict(in_backward_optimizer_filter(sharded.named_parameters()))
    dense = torch.optim.Adagrad(parameters.values(), lr=ADAGRAD.dense_lr)
    keyed = KeyedOptimizerWrapper(parameters, lambda _: dense)
    optimizer = CombinedOptimizer([sharded.fused_optimizer, keyed])
    pipeline = TrainPipelineSparseDist(sharded, optimizer, CPU)
    return Job(sharded, optimizer, dense, pipeline, arranged.plan, CPU)


def names(of: Job) -> tuple[list[str], list[str], set[str]]:
    """Of parameters, states, and optimizer states on whichever rank."""
    states = of.optimizer.state_dict()["state"]
    everyones: list[set[str]] = [set(), set()]
    dist.all_gather_object(everyones, {f"{name}/{key}" for name in states for key in states[name]})
    parameters = [name for name, _ in of.model.named_parameters()]
    return parameters, list(of.model.state_dict()), set().union(*everyones)


def save_and_go_on(
    folder: Path, first: Sharded, then: Sharded, early: Batches, late: Batches
) -> tuple[Trained, list[object]]:
    """Train on `early`, save; load into another model that starts otherwise, train on `late`."""
    rank = dist.get_rank()
    losses, parameters = [], []
    checkpoints = Checkpoints(folder, keep=1, registry={})
    for seed, arrange, steps in ((0, first, early), (1, then, late)):
        now = job(arrange, seed)
        parameters.append(names(now))
        if seed:
            latest = checkpoints.latest()
            assert latest is not None
            checkpoints.load(now, latest)
        else:
            start = Trained.of(now.model, table_initialisers(Mixed()), losses=[])
        mine = iter([step[rank] for step in steps])
        losses += [now.pipeline.progress(mine)[0].item() for _ in steps]
        checkpoints.save(now, len(losses), {})
    everyones: list[list[float]] = [[], []]
    dist.all_gather_object(everyones, losses)
    after = Trained.of(
        now.model,
        start.tables,
        losses=[list(each) for each in zip(*everyones, strict=True)],
        start=start.tables,
    )
    return after, parameters


@pytest.mark.parametrize(
    ("first", "then"),
    [(PLAIN, ADAPTED), (ADAPTED, PLAIN), (ADAPTED, OTHERWISE)],
    ids=["plain to adapted", "adapted to plain", "adapted to other parts and shards"],
)
def test_training_goes_on(
    gloo_pool: GlooPool, tmp_path: Path, first: Sharded, then: Sharded
) -> None:
    """With the states of optimizers: losses and weights are those of one training."""
    plain = batches()
    unique = [[deduplicated(batch) for batch in step] for step in plain]
    early, late = (unique if one.adapted else plain for one in (first, then))
    trained, parameters = gloo_pool.run(save_and_go_on, tmp_path, first, then, early[:2], late[2:])[
        0
    ]
    assert_parity(trained, *reference_of(Mixed, plain, optimizer=ADAGRAD))
    assert parameters[0] == parameters[1]

"""Rung 1 (values): what a job on CUDA hands to collectives and to other processes."""

from __future__ import annotations

import math

import pytest
import torch
import torch.distributed as dist
from emulated import EmulatedCuda
from torch import Tensor, nn

from recd_plugins.stack import load
from recd_plugins.testing.batches import random_batch
from recd_plugins.testing.probe import SCHEMA
from recd_plugins.testing.trained import Trained
from recd_plugins.trainer.measure.finite import FiniteInputs
from recd_plugins.trainer.measure.watched import WatchedBatches


def test_nccl_is_handed_what_is_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though batches are looked at as they were read."""
    handed: list[Tensor] = []
    monkeypatch.setattr(dist, "all_reduce", lambda tensor, **_: handed.append(tensor))
    with EmulatedCuda():
        inputs = FiniteInputs(torch.device("cuda"))
        batch = random_batch(SCHEMA, 4, seed=0)
        batch.labels[-1] = math.nan
        inputs.add(7, batch)
        assert inputs.culprit(SCHEMA.dense).endswith("step 7 holds NaN or infinity in the label")
        assert [one.is_cuda for one in handed] == [True]


def test_a_trainer_of_ones_own_has_its_forecasts_by_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which takes nothing from the CPU, though nobody says so to `lines`."""
    dist.init_process_group("cuda:gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        handed: list[Tensor] = []
        with pytest.raises(RuntimeError, match="No backend type associated with device type cpu"):
            dist.all_reduce(torch.zeros(1))
        monkeypatch.setattr(dist, "all_reduce", lambda tensor, **_: handed.append(tensor))
        batches = WatchedBatches(load({}), [random_batch(SCHEMA, 4, seed=0)] * 2)
        assert len(list(batches)) == 2
        with EmulatedCuda():
            batches.lines()
        assert [one.is_cuda for one in handed] == [True, True, True]
    finally:
        dist.destroy_process_group()


def test_what_a_training_leaves_travels_from_the_cpu() -> None:
    """A process that it is sent to may have no device, or fork others that are to have it."""
    with EmulatedCuda():
        model = nn.Module()
        model.register_buffer("mean", torch.ones(2, device="cuda"))
        model.register_buffer("songs", torch.ones(2, device="cuda"))
        left = Trained.of(model, [], losses=[]).dense
        assert all(one.is_cpu for one in left.values())

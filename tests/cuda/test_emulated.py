"""Rung 1 (values): the emulated device refuses what a GPU refuses, and counts what waits for it."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from emulated import EmulatedCuda, held

from recd_plugins.tiers.peers import Peers


def test_its_tensors_are_on_cuda_and_nothing_of_the_cpu_meets_them() -> None:
    with EmulatedCuda() as device:
        ids = torch.arange(4, device="cuda")
        assert ids.is_cuda
        assert not ids.is_cpu
        assert ids.device == ids.new_zeros(2).device == torch.zeros_like(ids).device
        with pytest.raises(TypeError, match="numpy"):
            ids.numpy()
        with pytest.raises(RuntimeError, match="same device"):
            ids + torch.arange(4)
        assert not device.waits
        weights = torch.ones(3, device="cuda").requires_grad_()
        (2 * weights).sum().backward()
        assert weights.grad is not None
        assert held(weights.grad).tolist() == [2, 2, 2]


def test_what_waits_is_counted() -> None:
    with EmulatedCuda() as device:
        ids = torch.tensor([3, 1, 3], device="cuda")
        assert ids.tolist() == [3, 1, 3]
        assert int(ids[0]) == 3
        ids[ids > 1].unique()
        torch.repeat_interleave(ids)
        torch.repeat_interleave(ids, output_size=7)
        ids.cpu().numpy()
    kinds = {where.partition(": ")[2]: count for where, count in device.waits.items()}
    assert kinds == {
        "to the device": 1,
        "to the host": 2,
        "item": 1,
        "mask": 1,
        "unique": 1,
        "repeat_interleave": 1,
    }
    assert all(where.startswith("test_emulated.py test_what") for where in device.waits)


def test_ranks_exchange_for_the_tiers_what_is_on_the_device_alone() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with EmulatedCuda():
            peers = Peers(dist.group.WORLD)
            assert held(peers.all_reduce(torch.ones(2, device="cuda")).wait()).tolist() == [1, 1]
            with pytest.raises(RuntimeError, match="NCCL takes no tensor of the CPU"):
                peers.all_reduce(torch.ones(2))
    finally:
        dist.destroy_process_group()

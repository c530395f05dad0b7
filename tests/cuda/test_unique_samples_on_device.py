"""Rung 1 (values): a model's step on unique samples on CUDA's way, from the copy of a batch to the
gradients, held to the CPU's."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from emulated import CUDA, EmulatedCuda, held, on_device
from emulated_attention import attention_of_cuda
from torch import Tensor, nn

import recd_plugins as rp
from recd_plugins.data.batch import Batch
from recd_plugins.embedding.pooling import DedupPooling

WAITS_FOR = {
    "exact": {"features.py counts: to the host"},
    "partial": {"features.py counts: to the host", "partial.py to_ikjt: to the host"},
}
"""What a batch waits for, once each: how many ids sequences are expanded to, and how long their
rows are; and how many ids there are where rows share them."""
TRIALS_WAIT_FOR = {
    "pooling_trial.py _with_rows_twice: to the host",
    "pooling_trial.py _differ: item",
}
"""What the first batch waits for, once each for the poolings of views and of actions, to learn
whether rows change others; the one of visits has a `pool_unique`."""
FEATURES: list[dict[str, Any]] = [
    {"name": "views", "kind": "user", "sequence": True, "group": "history", "length": 6},
    {"name": "actions", "kind": "user", "sequence": True, "group": "history", "length": 6},
    {"name": "profile", "kind": "user", "length": 2},
    {"name": "shop", "kind": "item", "table": "shops", "length": 1},
    {"name": "visits", "kind": "user", "sequence": True, "table": "shops", "length": 4},
]


def prepared(folder: Path, dedup: str, pooling: str) -> tuple[nn.Module, list[Batch]]:
    """A model on the CPU that takes unique samples, and two of its batches."""
    features = [{"num_ids": 50, "stay": 0.9} | feature for feature in FEATURES]
    stack = rp.load(
        {
            "plugins": ["recd_dlrm", "recd_dedup"],
            "folder": str(folder),
            "dataset": {"use": "sessions", "samples": 200, "dense": 3, "features": features},
            "reader": {"use": "local", "sessions": "whole"},
            "dedup": {"use": dedup, "groups": [["views", "actions"], ["profile"], ["visits"]]},
            "model": {"use": "sequence_dlrm", "embedding_dim": 8, "bottom": [8], "top": [8]},
            "pooling": {"visits": "attention", "*": pooling},
            "train": {"batch_size": 32},
        }
    )
    model = stack.adapt(stack.model())
    torch.manual_seed(0)
    _each_tensor(model, lambda one: torch.randn(one.shape) / 3 if one.is_meta else one)
    loader: Iterator[Batch] = iter(stack.loader(0, 1))
    return model, [next(loader), next(loader)]


def trained(model: nn.Module, batches: list[Batch]) -> list[Tensor]:
    """The loss of each batch, and what all of them leave as gradients."""
    losses = []
    for batch in batches:
        loss, _ = model(batch)
        loss.backward()
        losses.append(held(loss))
    return losses + [held(one.grad) for one in model.parameters() if one.grad is not None]


def _each_tensor(model: nn.Module, becomes: Callable[[Tensor], Tensor]) -> None:
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            setattr(module, name, nn.Parameter(becomes(parameter)))
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, becomes(buffer))


@pytest.mark.parametrize(
    ("dedup", "pooling"),
    [
        ("exact", "mean"),
        ("exact", "sum"),
        ("exact", "max"),
        ("exact", "transformer"),
        ("partial", "mean"),
    ],
)
def test_a_step_on_unique_samples_is_the_cpus(tmp_path: Path, dedup: str, pooling: str) -> None:
    model, batches = prepared(tmp_path, dedup, pooling)
    there = copy.deepcopy(model)
    here = trained(model, batches)
    assert any(isinstance(part, DedupPooling) for part in model.modules())
    with attention_of_cuda(), EmulatedCuda() as device:
        _each_tensor(there, on_device)
        copied = torch.cuda.Stream(CUDA)
        with torch.cuda.stream(copied):
            moved_batches = [batch.to(CUDA, non_blocking=True) for batch in batches]
        torch.cuda.current_stream().wait_stream(copied)
        for batch in moved_batches:
            batch.record_stream(torch.cuda.current_stream())
        found = trained(there, moved_batches)
        del moved_batches, batch
        assert not device.races, device.races
    assert device.waits == {
        **dict.fromkeys(WAITS_FOR[dedup], len(batches)),
        **dict.fromkeys(TRIALS_WAIT_FOR, len(["views", "actions"])),
        **({"whole_rows.py of: to the host": 2} if pooling == "transformer" else {}),  # as above
    }
    for one, its in zip(found, here, strict=True):
        torch.testing.assert_close(one, its, rtol=1e-4, atol=1e-5)

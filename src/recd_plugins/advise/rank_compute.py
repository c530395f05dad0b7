"""The compute of a rank, as advice takes it: a model is timed on this device once, with what
deduplication adds, for ranks that share the cores of a processor."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.advise.computed import measured_compute
from recd_plugins.advise.torchrec_step import seconds_of_torchrec
from recd_plugins.embedding.adapt import poolings_by_feature
from recd_plugins.embedding.timing import seconds_of, seconds_of_call, seconds_of_copies
from recd_plugins.launch.machine_cores import machine_cores
from recd_plugins.planning.step.compute import Compute, FeatureCompute
from recd_plugins.planning.tables.model_tables import model_tables
from recd_plugins.sparse.ikjt import InverseKeyedJaggedTensor
from recd_plugins.stack import Stack

__all__ = ["LARGEST", "rank_compute"]

LARGEST = 2048
"""The most samples of a timed batch; times are in proportion."""
COPIED = 1 << 18
"""About how many floats are copied to time copies."""


def rank_compute(
    stack: Stack,
    model: Callable[[], nn.Module],
    batches: Callable[[], Iterable[Any]],
    features: Callable[[Any], KeyedJaggedTensor],
    ranks_here: int,
) -> Compute:
    """The compute of one rank with a model, timed on this device with a few batches, none of them
    deduplicated; `ranks_here` ranks train on one machine. The caller sets in how many bits dense
    gradients travel, which changes nothing here. An empty `Compute` if the stack's plan is for
    devices that are not here."""
    if (stack.registry.topology.device or stack.device) != stack.device:
        return Compute()
    from recd_plugins.trainer.dense_optimizer import dense_optimizer

    device, timed, some = torch.device(stack.device), model(), list(batches())
    found = measured_compute(
        timed,
        some,
        features,
        device=device,
        optimizer=lambda parameters: dense_optimizer(stack, list(parameters)),
    )
    alone = dataclasses.replace(
        found,
        features=_with_unique(timed, features(some[-1]), found, device),
        call=seconds_of_call(device),
    )
    python = seconds_of_torchrec(timed, stack.default_sharders(), device)
    if stack.device == "cuda":
        return dataclasses.replace(alone, fixed=alone.fixed + python)
    threads = stack.registry.train.threads_of_each(ranks_here)
    crowded = stack.registry.topology.crowded if ranks_here > 1 else None
    return _shared(alone, python, ranks_here, threads, crowded or 1.0)


def _with_unique(
    model: nn.Module, features: KeyedJaggedTensor, found: Compute, device: torch.device
) -> Mapping[str, FeatureCompute]:
    """The compute of a sample by feature, with what deduplication of the feature adds: the sample
    is compared with others, and gets the row of its unique sample."""
    tables = model_tables(model)
    looked_up = sorted({name for table in tables.values() for name in table.features})
    names = [name for name in features.keys() if name in looked_up]  # noqa: SIM118  # a KJT's
    if not names:
        return found.features
    pooled = set(poolings_by_feature(model, names))
    batch = features.stride()
    ids = dict(zip(features.keys(), features.length_per_key(), strict=True))
    groups = [[name] for name in names]
    converted = seconds_of(
        lambda: InverseKeyedJaggedTensor.from_kjt(features, groups), torch.device("cpu")
    )
    weights = {name: ids[name] + 4 * batch for name in names}  # a row counts as four ids
    every = sum(weights.values())
    copied = _copied(batch, device)
    made = dict(found.features)
    for name in names:
        floats = 0.0
        for table in tables.values():
            if name in table.features:
                rows = 1.0 if table.pooled or name in pooled else ids[name] / max(1, batch)
                floats += rows * table.dim
        made[name] = dataclasses.replace(
            made.get(name, FeatureCompute()),
            expanded=copied * floats,
            converted=converted * weights[name] / every / max(1, batch),
        )
    return made


def _copied(batch: int, device: torch.device) -> float:
    """The seconds for each float that a sample copies from its unique sample, and whose gradient it
    adds to that."""
    dim = min(2048, max(64, COPIED // batch))
    rows: Tensor = torch.zeros(max(1, batch // 4), dim, device=device)
    lookup = torch.arange(batch, device=device) % len(rows)
    return seconds_of_copies(rows, lookup) / (batch * dim)


def _shared(
    alone: Compute, python: float, ranks_here: int, threads: int, crowded: float = 1.0
) -> Compute:
    """The compute of a rank with its share of the processor's cores. Its kernels run on at most
    `threads` threads, and torch may have another number now. If there are more ranks than cores,
    all that the rank does waits its turn. And ranks that each have a core still share caches and
    memory: together they take `crowded` times as long as one alone, as the topology says. Nothing
    else changes for work that one thread does anyway: conversion, small calls and TorchRec's
    `python`."""
    cores = machine_cores()
    turns = max(1.0, ranks_here / cores)
    slower = max(turns, crowded)
    of_threads = torch.get_num_threads() / min(threads, cores / ranks_here)  # with the turns
    kernels = alone.slower(slower / turns * of_threads)
    features = {
        name: dataclasses.replace(one, converted=slower * alone.features[name].converted)
        for name, one in kernels.features.items()
    }
    return dataclasses.replace(
        kernels,
        fixed=kernels.fixed + slower * python,
        features=features,
        call=slower * alone.call,
    )

"""What a registry's model computes beside its tables, timed here once for all that is weighed."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from recd_plugins.embedding.adapt import poolings_by_feature
from recd_plugins.embedding.timing import seconds_of, seconds_of_copies
from recd_plugins.planning.model_tables import model_tables
from recd_plugins.planning.step.compute import Compute, FeatureCompute
from recd_plugins.sparse.ikjt import InverseKeyedJaggedTensor
from recd_plugins.stack import Stack
from recd_plugins.trainer.measure.model_compute import measured_compute

if TYPE_CHECKING:
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

__all__ = ["computed"]

LARGEST = 2048
"""Samples of a batch that is timed, at the most: times are in proportion."""
COPIED = 1 << 18
"""Floats that are copied to time copies, about."""


def computed(stack: Stack, ranks: int, ranks_here: int) -> Compute:
    """What the stack's model takes of one rank, on this device with a few of its batches, of which
    none is deduplicated; `ranks_here` train on one machine. Nothing where the plan is for devices
    that are not here."""
    if (stack.registry.topology.device or stack.device) != stack.device:
        return Compute()
    device, model = torch.device(stack.device), stack.model()
    batches = list(_some(stack, ranks))
    found = measured_compute(model, batches, lambda batch: batch.features, device=device)
    features = _with_unique(model, batches[-1].features, found, device)
    found = dataclasses.replace(found, features=features)
    return found if stack.device == "cuda" else found.slower(_sharing(ranks_here))


def _some(stack: Stack, ranks: int) -> Iterator[Any]:
    """A batch, and one of a quarter of its samples before it, so that what does not grow shows."""
    size = min(stack.registry.train.batch_size, LARGEST)
    for some in dict.fromkeys((max(1, size // 4), size)):
        with closing(Stack(stack.registry.with_batch_size(some)).read(0, ranks)) as loader:
            yield next(iter(loader))


def _with_unique(
    model: nn.Module, features: KeyedJaggedTensor, found: Compute, device: torch.device
) -> Mapping[str, FeatureCompute]:
    """What a sample takes of each feature where it is deduplicated: to be compared with others, and
    to get the row of its unique sample."""
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
    """Seconds of a float that a sample gets of its unique sample, and adds its gradient to."""
    dim = min(2048, max(64, COPIED // batch))
    rows: Tensor = torch.zeros(max(1, batch // 4), dim, device=device)
    lookup = torch.arange(batch, device=device) % len(rows)
    return seconds_of_copies(rows, lookup) / (batch * dim)


def _sharing(ranks_here: int) -> float:
    """How many times the seconds of all of torch's threads a rank takes that has its share of the
    processor's cores."""
    cores = os.cpu_count() or 1
    threads = max(1, cores // ranks_here)
    return torch.get_num_threads() / threads * max(1.0, ranks_here * threads / cores)

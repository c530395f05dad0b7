"""Times what a model computes apart from its tables, on this device with its own batches.

`computed` times the model of an advice, once for all registries that are weighed.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor, KeyedTensor

from recd_plugins.advise.torchrec_step import Collection, of_one_row, seconds_of_torchrec
from recd_plugins.embedding.adapt import DEDUP_COLLECTIONS, poolings_by_feature
from recd_plugins.embedding.timing import (
    seconds_of,
    seconds_of_call,
    seconds_of_copies,
    seconds_of_kernels,
    seconds_of_pooling,
)
from recd_plugins.errors import CapabilityError, DataError
from recd_plugins.launch.machine_cores import machine_cores
from recd_plugins.planning.model_tables import model_tables
from recd_plugins.planning.step.compute import Compute, FeatureCompute
from recd_plugins.planning.timer import Timer
from recd_plugins.sparse.ikjt import InverseKeyedJaggedTensor
from recd_plugins.stack import Stack

__all__ = [
    "LARGEST",
    "computed",
    "fitted_line",
    "measured_compute",
    "on_held_embeddings",
]

ROUNDS = 6
"""The number of timed runs if ranks compute together; the middle half counts."""


def measured_compute(
    model: nn.Module,
    batches: Sequence[Any],
    features: Callable[[Any], KeyedJaggedTensor],
    *,
    device: torch.device,
    group: dist.ProcessGroup | None = None,
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer] | None = None,
) -> Compute:
    """Time the model, before it is adapted and sharded, on some of its batches.

    Its collections yield embeddings that are held ready, so that all but lookups is timed: forward,
    and backward of the first thing that the model returns. `features` gets a batch's KJT. If
    batches differ in size, the time that does not grow with the size is `fixed`; a step of the
    `optimizer` over the dense parameters is added to it. With a `group`, all its ranks compute at
    the same time, and the slowest counts: ranks that share cores slow each other. The model is
    copied without its tables, and stays unchanged.
    """
    if not batches:
        raise DataError("compute: there is no batch to time the model with. Give at least one.")
    timed = _clock(group, device)
    dense = on_held_embeddings(model, device)
    points = []
    for batch in batches:
        ready = batch.to(device)
        size = features(ready).stride()
        points.append((size, timed(partial(_once, dense, ready))))
    fixed, each = fitted_line(points)
    biggest = max(batches, key=lambda batch: features(batch).stride())
    poolings = _poolings(model, features(biggest), device)
    if group is not None:  # poolings were timed as if no other rank computed at the same time
        alone = seconds_of_kernels(partial(_once, dense, biggest.to(device)), device)
        crowded = max(seconds for _, seconds in points) / alone
        poolings = Compute(features=poolings).slower(crowded).features
    pooled = sum(one.pooled for one in poolings.values())
    if pooled > each:  # poolings that are timed by themselves take a little more
        poolings = {
            name: replace(one, pooled=one.pooled * each / pooled) for name, one in poolings.items()
        }
    parameters = [one for one in dense.parameters() if one.requires_grad]
    if optimizer is not None and parameters:
        step = optimizer(parameters)
        _once(dense, batches[0].to(device))
        fixed += timed(step.step)
    return Compute(
        fixed=fixed,
        dense=max(each - pooled, 0.0),
        features=poolings,
        dense_bytes=float(sum(one.numel() * one.element_size() for one in parameters)),
        activations=_activations(dense, biggest.to(device)) / max(1, features(biggest).stride()),
        ranks=1 if group is None else group.size(),
        measured=True,
    )


def on_held_embeddings(model: nn.Module, device: torch.device) -> nn.Module:
    """A copy of the model without its tables, which computes with embeddings that are held
    ready."""
    held: dict[int, Any] = {}
    for path, module in model.named_modules():
        if isinstance(module, DEDUP_COLLECTIONS):
            raise CapabilityError(
                f"compute: {path or 'the model'} looks up unique samples already. Time the model "
                "before it is adapted: the forecast itself counts the shares of unique samples."
            )
        if isinstance(module, Collection):
            held[id(module)] = _HeldEmbeddings(module, device)
    made = copy.deepcopy(model, held)
    for module in made.modules():
        for name, one in (
            *module.named_parameters(recurse=False),
            *module.named_buffers(recurse=False),
        ):
            if one.is_meta:
                filled = torch.zeros_like(one, device=device)
                kept = nn.Parameter(filled) if isinstance(one, nn.Parameter) else filled
                setattr(module, name, kept)
    return made.to(device)


class _HeldEmbeddings(nn.Module):
    """A stand-in for a collection: for a batch it yields embeddings of the right shape, the same
    ones each time."""

    def __init__(self, collection: Collection, device: torch.device) -> None:
        super().__init__()
        # One row of each table; it is in a list so that it is not part of the model's state.
        self._rows = [of_one_row(collection, device)]
        self._held: dict[int, tuple[KeyedJaggedTensor, Any]] = {}

    def forward(self, features: KeyedJaggedTensor) -> Any:
        key = id(features)
        if key not in self._held:
            zeros = KeyedJaggedTensor(
                keys=features.keys(),
                values=torch.zeros_like(features.values()),
                lengths=features.lengths(),
                weights=features.weights_or_none(),
                stride=features.stride(),
            )
            with torch.no_grad():
                # The KJT is kept too, so that no other object gets its id.
                self._held[key] = features, self._rows[0](zeros)
        _, found = self._held[key]
        if isinstance(found, KeyedTensor):
            return KeyedTensor(
                keys=found.keys(),
                length_per_key=found.length_per_key(),
                values=_leaf(found.values()),
                key_dim=found.key_dim(),
            )
        return {
            name: JaggedTensor(
                values=_leaf(one.values()),
                lengths=one.lengths(),
                weights=None if one.weights_or_none() is None else _ids(name, features),
            )
            for name, one in found.items()
        }


def _ids(name: str, features: KeyedJaggedTensor) -> Tensor:
    """The ids of an embedding; a collection that is asked for them (`need_indices`) returns them as
    weights. If two tables have a feature, the embedding is named `feature@table`."""
    ids: Tensor = features[name if name in features.keys() else name.rpartition("@")[0]].values()  # noqa: SIM118
    return ids


def _leaf(values: Tensor) -> Tensor:
    return values.detach().requires_grad_()


def _once(model: nn.Module, batch: Any) -> None:
    model.zero_grad(set_to_none=True)
    _first(model(batch)).backward()


def _first(output: Any) -> Tensor:
    while isinstance(output, tuple | list):
        output = output[0]
    if not isinstance(output, Tensor):
        raise DataError(
            f"compute: the model returns a {type(output).__name__}, on which backward cannot be "
            "called. Let it return the loss, or (loss, ...): `recd advise` takes nothing else."
        )
    return output.sum()


def _clock(
    group: dist.ProcessGroup | None, device: torch.device
) -> Callable[[Callable[[], object]], float]:
    if group is None:
        return lambda call: seconds_of_kernels(call, device)
    return Timer(group, device, ROUNDS).seconds


def fitted_line(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """The seconds that do not depend on the size, and the seconds per unit of size: by least
    squares, neither below 0."""
    most = max(size for size, _ in points)
    mean = sum(size for size, _ in points) / len(points)
    took = sum(seconds for _, seconds in points) / len(points)
    spread = sum((size - mean) ** 2 for size, _ in points)
    if not spread:
        return 0.0, took / max(most, 1)
    slope = sum((size - mean) * (seconds - took) for size, seconds in points) / spread
    slope = min(max(slope, 0.0), took / mean)
    return took - slope * mean, slope


def _poolings(
    model: nn.Module, features: KeyedJaggedTensor, device: torch.device
) -> Mapping[str, FeatureCompute]:
    """The compute of the poolings of features, if they are known; those of similar features are
    timed once."""
    dims = {
        name: table.dim
        for table in model_tables(model).values()
        if not table.pooled
        for name in table.features
    }
    found: dict[str, FeatureCompute] = {}
    alike: dict[tuple[Any, ...], float] = {}
    batch = features.stride()
    every = torch.arange(batch, device=device)
    for name, pooling in poolings_by_feature(model, list(dims)).items():
        lengths = features[name].lengths().long().to(device)
        ids = max(1, int(lengths.sum()))
        key = (type(pooling), repr(pooling), dims[name], round(2 * math.log2(ids)))
        if key not in alike:
            seconds = seconds_of_pooling(pooling, dims[name], lengths, every).all
            alike[key] = seconds / ids
        found[name] = FeatureCompute(pooled=alike[key] * ids / max(1, batch))
    return found


def _activations(model: nn.Module, batch: Any) -> float:
    """The bytes of tensors that forward keeps for backward, without parameters."""
    own = {one.untyped_storage().data_ptr() for one in model.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        _first(model(batch)).backward()
    return float(sum(kept.values()))


LARGEST = 2048
"""The most samples of a timed batch; times are in proportion."""
COPIED = 1 << 18
"""About how many floats are copied to time copies."""


def computed(
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
    return _shared(alone, python, ranks_here, threads)


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


def _shared(alone: Compute, python: float, ranks_here: int, threads: int) -> Compute:
    """The compute of a rank with its share of the processor's cores. Its kernels run on at most
    `threads` threads, and torch may have another number now. If there are more ranks than cores,
    all that the rank does waits its turn. That is all that changes for work that one thread does
    anyway: conversion, small calls and TorchRec's `python`."""
    cores = machine_cores()
    crowded = max(1.0, ranks_here / cores)
    kernels = alone.slower(torch.get_num_threads() / min(threads, cores / ranks_here))
    features = {
        name: dataclasses.replace(one, converted=crowded * alone.features[name].converted)
        for name, one in kernels.features.items()
    }
    return dataclasses.replace(
        kernels,
        fixed=kernels.fixed + crowded * python,
        features=features,
        call=crowded * alone.call,
    )

"""Times what a model computes apart from its tables, on this device with its own batches."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor, KeyedTensor

from recd_plugins.advise.torchrec_step import Collection, of_one_row
from recd_plugins.embedding.adapt import DEDUP_COLLECTIONS, poolings_by_feature
from recd_plugins.embedding.timing import seconds_of_kernels, seconds_of_pooling
from recd_plugins.errors import CapabilityError, DataError
from recd_plugins.planning.cluster.timer import Timer
from recd_plugins.planning.step.compute import Compute, FeatureCompute
from recd_plugins.planning.tables.model_tables import model_tables

__all__ = ["fitted_line", "measured_compute", "on_held_embeddings"]

ROUNDS = 6
"""The number of timed runs if ranks compute together; the middle half counts."""
COPIES = 8
"""How many samples share a sequence where it is timed what a pooling then takes less."""


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
    pooled = sum(one.pooled + one.queried for one in poolings.values())
    if pooled > each:  # poolings that are timed by themselves take a little more
        poolings = Compute(features=poolings).slower(each / pooled).features
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
    timed once. If each sample's query weighs a sequence's embeddings, little of that is done once
    for samples that share the sequence."""
    dims = {
        name: table.dim
        for table in model_tables(model).values()
        if not table.pooled
        for name in table.features
    }
    found: dict[str, FeatureCompute] = {}
    alike: dict[tuple[Any, ...], tuple[float, float]] = {}
    batch = features.stride()
    for name, pooling in poolings_by_feature(model, list(dims)).items():
        lengths = features[name].lengths().long().to(device)
        ids = max(1, int(lengths.sum()))
        key = (type(pooling), repr(pooling), dims[name], round(2 * math.log2(ids)))
        if key not in alike:
            seconds, share = _of_unique(pooling, dims[name], lengths)
            alike[key] = seconds / ids, share
        each, share = alike[key]
        of_sample = each * ids / max(1, batch)
        found[name] = FeatureCompute(pooled=share * of_sample, queried=(1 - share) * of_sample)
    return found


def _of_unique(pooling: nn.Module, dim: int, lengths: Tensor) -> tuple[float, float]:
    """The seconds of a pooling on all samples, and the share of them that is in proportion to
    unique samples: what it takes less when each sequence has `COPIES` samples."""
    samples = torch.arange(len(lengths), device=lengths.device)
    apart = seconds_of_pooling(pooling, dim, lengths, samples)
    if len(lengths) < COPIES:
        return apart.all, 1.0
    # As many ids as before, or nearly: every eighth sequence, by length.
    shared = lengths.sort().values[COPIES // 2 :: COPIES]
    copies = samples.clamp(max=COPIES * len(shared) - 1) // COPIES
    together = seconds_of_pooling(pooling, dim, shared, copies)
    less = (apart.unique - together.unique) / (1 - 1 / COPIES)
    return apart.all, min(max(less / apart.all, 0.0), 1.0)


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

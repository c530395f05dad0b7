"""The prices of a step, measured on the device with its own kernels and the contents of batches."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from recd_dedup.dedup.worth import FeatureUse, StepPrices
from recd_plugins.api.embedding import (
    PoolingSeconds,
    poolings_by_feature,
    seconds_of,
    seconds_of_call,
    seconds_of_copies,
    seconds_of_lookups,
    seconds_of_pooling,
)
from recd_plugins.api.planning import GB, Cluster, model_tables

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

__all__ = ["measured_prices", "over_links", "uses_of"]

CPU = torch.device("cpu")
LOOKUPS = 1 << 15
"""About how many ids of all samples are looked up to time lookups."""
COPIED_FLOATS = 1 << 18
"""About how many floats are copied to time copies; with fewer, the call would take most of the
time."""
A_PART_WAITS = 3
"""How many exchanges of a further part of a collection wait for one another: of ids, of sums, and
of their gradients."""
POOLED_VALUES = 1 << 13
"""About how many values of all samples are pooled to time a pooling."""
LOOPBACK_GBPS = 2.0
"""The highest speed assumed for an exchange between processes of one machine through its CPU, even
if a topology has more for links that were not measured."""


def uses_of(
    model: nn.Module,
    features: KeyedJaggedTensor,
    preprocessed: Callable[[KeyedJaggedTensor], KeyedJaggedTensor],
) -> dict[str, FeatureUse]:
    """How the model uses each feature that it looks up."""
    before, after = features, preprocessed(features)
    lengths = dict(zip(before.keys(), before.length_per_key(), strict=True))
    left = dict(zip(after.keys(), after.length_per_key(), strict=True))
    sums: dict[str, list[int]] = {}
    rows: dict[str, list[int]] = {}
    for table in model_tables(model).values():
        for name in table.features:
            (sums if table.pooled else rows).setdefault(name, []).append(table.dim)
    return {
        name: FeatureUse(
            sums=tuple(sums.get(name, ())),
            rows=tuple(rows.get(name, ())),
            kept_ids=left.get(name, 0) / max(1, lengths[name]),
        )
        for name in lengths
        if name in sums or name in rows
    }


def measured_prices(
    features: KeyedJaggedTensor,
    candidates: Sequence[str],
    *,
    model: nn.Module,
    uses: Mapping[str, FeatureUse],
    convert: Callable[[KeyedJaggedTensor, Sequence[Sequence[str]]], Any],
    device: torch.device,
) -> StepPrices:
    """The prices in seconds on this device, measured on one batch for features that repeat.

    The prices of sending are not included: see `over_links`.
    """
    from recd_plugins.api.batch import InverseKeyedJaggedTensor

    groups = [[name] for name in candidates]
    ikjt = InverseKeyedJaggedTensor.from_kjt(features, groups)
    unique = {key: one.lengths.to(device) for key, one in ikjt.parts().items()}
    lookups = dict(zip(candidates, ikjt.inverse_lookup.to(device), strict=True))
    dims = sorted({dim for name in candidates for dim in _dims(uses.get(name))})
    first = candidates[0]
    dim = min(2048, max(64, COPIED_FLOATS // max(1, len(lookups[first]))))
    rows = torch.zeros(len(unique[first]), dim, dtype=torch.float32, device=device)
    return StepPrices(
        conversion=_conversion(features, candidates, convert),
        lookup={
            dim: _lookup(
                dim,
                [n for n in candidates if dim in _dims(uses.get(n))],
                features,
                ikjt.kjt,
                device,
            )
            for dim in dims
        },
        copy=seconds_of_copies(rows, lookups[first]) / max(1, len(lookups[first]) * dim),
        call=seconds_of_call(device),
        pooling=_poolings(model, [c for c in candidates if c in uses], uses, unique, lookups),
    )


def over_links(
    prices: StepPrices, cluster: Cluster, device: torch.device, carried: float = 1.0
) -> StepPrices:
    """The prices, including those of what a cluster's ranks send to each other; `carried` is the
    share of their bytes in which floats are sent."""
    if cluster.world_size == 1:
        return prices
    link = cluster.a2a_global
    gbps = min(link.gbps, LOOPBACK_GBPS) if device.type == "cpu" else link.gbps
    return dataclasses.replace(
        prices,
        byte=1 / (gbps * GB),
        carried=carried,
        waits=A_PART_WAITS * link.latency_ms / 1000,
    )


def _dims(use: FeatureUse | None) -> tuple[int, ...]:
    return () if use is None else (*use.sums, *use.rows)


def _lookup(
    dim: int,
    names: Sequence[str],
    every: KeyedJaggedTensor,
    unique: KeyedJaggedTensor,
    device: torch.device,
) -> float:
    """The seconds saved per id that is not looked up because its sample is a copy of another.

    Looking up such an id costs less than other ids do, since its row is updated anyway.
    """
    all_ids, kept = [], []
    for name in names:
        all_ids.append(every[name].values())
        kept.append(unique[name].values())
        if sum(map(len, all_ids)) >= LOOKUPS:
            break
    ids = [torch.cat(each).to(device) for each in (all_ids, kept)]
    took = seconds_of_lookups(dim, *ids)
    return max(0.0, took[0] - took[1]) / max(1, len(ids[0]) - len(ids[1]))


def _conversion(
    features: KeyedJaggedTensor,
    candidates: Sequence[str],
    convert: Callable[[KeyedJaggedTensor, Sequence[Sequence[str]]], Any],
) -> dict[str, float]:
    """The seconds to convert each feature: a part of those for all, by its ids plus 4 per row."""
    whole = seconds_of(lambda: convert(features, [[name] for name in candidates]), CPU)
    ids = dict(zip(features.keys(), features.length_per_key(), strict=True))
    weights = {name: ids[name] + 4 * features.stride() for name in candidates}
    every = max(1, sum(weights.values()))
    return {name: whole * weight / every for name, weight in weights.items()}


def _poolings(
    model: nn.Module,
    names: Sequence[str],
    uses: Mapping[str, FeatureUse],
    unique: Mapping[str, Tensor],
    lookups: Mapping[str, Tensor],
) -> dict[str, PoolingSeconds]:
    """The seconds of each feature's pooling, if its pooling is known; similar features are timed
    only once."""
    sequences = [name for name in names if uses[name].rows]
    found: dict[str, PoolingSeconds] = {}
    alike: dict[tuple[Any, ...], PoolingSeconds] = {}
    for name, pooling in poolings_by_feature(model, sequences).items():
        lengths, lookup = _shortened(unique[name], uses[name].kept_ids), lookups[name]
        ids = lengths[lookup]
        taken = max(1, int(torch.searchsorted(ids.cumsum(0), POOLED_VALUES)))
        some = lookup[:taken]
        used = lengths[: int(some.max()) + 1]  # numbered in order of first appearance
        values, values_of_all = max(1, int(used.sum())), int(ids[:taken].sum())
        shape = [round(2 * _log2(n)) for n in (values_of_all, values_of_all / values, taken)]
        key = (type(pooling), repr(pooling), uses[name].rows, *shape)
        if key not in alike:
            alike[key] = seconds_of_pooling(pooling, uses[name].rows[0], used, some)
        scale = int(ids.sum()) / max(1, values_of_all)
        found[name] = PoolingSeconds(*(scale * seconds for seconds in alike[key]))
    return found


def _shortened(lengths: Tensor, kept: float) -> Tensor:
    """Lengths of rows after `preprocess`, which keeps the share `kept` of the ids."""
    return (lengths * min(1.0, kept)).round().long() if kept < 1 else lengths.long()


def _log2(count: float) -> float:
    return math.log2(max(1.0, count))

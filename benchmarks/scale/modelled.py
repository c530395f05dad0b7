"""What is trained: RecD's RM1 to RM3 as their registries have them, FlexShard's RM-1 to RM-4 as
published; tables, poolings and dense layers, counted."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import groupby, pairwise
from typing import Any

import numpy as np

from benchmarks import models
from benchmarks.flexshard.paper import MODELS as PAPER_MODELS
from benchmarks.scale.devices import FLEXSHARD, DeviceSheet
from recd_plugins.planning.access.distribution import RowDistribution
from recd_plugins.planning.access.parametric import zipf
from recd_plugins.planning.cluster.cluster import Cluster
from recd_plugins.planning.prices.cost import Prices
from recd_plugins.planning.step.compute import Compute, FeatureCompute
from recd_plugins.planning.tables.planned_shards import PlannedShard, PlannedShards
from recd_plugins.planning.tables.profiled_table import ProfiledTable

__all__ = ["MODELS", "ModelledJob", "by_flexshard", "by_recd", "job"]

K = 1.65
"""Bytes of a replica over its row's: weights, gradients under way, row-wise Adagrad."""
SKEW = 1.05
"""The exponent of Zipf's law by which the `sessions` dataset draws ids."""
KEPT = 17
"""Floats that a transformer's layer keeps for each of a token's D: with attention in blocks, which
keeps no weights."""
TIMES_MOVED = 4
"""How often what is kept crosses memory: written and read forward, read and its gradient written
backward."""
REST_MS = 102.0
"""What FlexShard's RM-1 does beside its collectives, that its two tiers gain 61% of throughput:
(x + 307) / (x + 152) = 1.61. Its only number that a throughput was used for."""


@dataclass(frozen=True, kw_only=True)
class ModelledJob:
    """A model on devices of one kind, in batches of one size."""

    name: str
    batch_size: int
    sequences: Mapping[str, ProfiledTable]
    """Tables whose rows come one by one, those of a feature group as one."""
    bags: Mapping[str, ProfiledTable]
    """Pooled tables, as one for user features and one for items."""
    compute: Compute
    shares: Mapping[str, float]
    """Unique samples of each table's features, over samples of a clustered batch."""

    def prices(self, cluster: Cluster) -> Prices:
        """Of rows, on a cluster of its devices."""
        return Prices(cluster=cluster, batch_size=self.batch_size, k=K)

    def tables(self, *, unique: bool, world_size: int) -> dict[str, ProfiledTable]:
        """All tables, those of `unique` samples where these are looked up; pooled ones table-wise,
        dealt out evenly."""
        even = PlannedShards(
            kind="table_wise",
            shards=tuple(PlannedShard(rank, 1 / world_size, 1.0) for rank in range(world_size)),
        )
        found = dict(self.sequences)
        for name, table in self.bags.items():
            found[name] = dataclasses.replace(table, shards=even)
        if not unique:
            return found
        return {
            name: dataclasses.replace(
                table,
                rows=table.rows.deduplicated(1 / self.shares.get(name, 1.0)),
                bags=table.bags * self.shares.get(name, 1.0),
            )
            for name, table in found.items()
        }


MODELS = ("RM1", "RM2", "RM3", *PAPER_MODELS)


def job(name: str, sheet: DeviceSheet) -> ModelledJob:
    """One of `MODELS`."""
    return by_flexshard(name, sheet) if name in PAPER_MODELS else by_recd(name, sheet)


@cache
def by_flexshard(name: str, sheet: DeviceSheet) -> ModelledJob:
    """One of FlexShard's: a table of sequences, and as much more as RM-1's throughput implies. No
    session is known, so that nothing is deduplicated."""
    model = PAPER_MODELS[name]
    rest = REST_MS / 1000 * model.lookups / 1000 / 4096 * FLEXSHARD.tflops / sheet.tflops
    return ModelledJob(
        name=name,
        batch_size=4096,
        sequences=model.tables(),
        bags={},
        compute=Compute(dense=rest),
        shares={},
    )


@cache
def by_recd(
    name: str, sheet: DeviceSheet, *, batch_size: int = 0, dim: int = 0, sessions: float = 0.0
) -> ModelledJob:
    """One of RecD's; with other samples a batch, another D, or other samples a session."""
    values = models.registry(name.lower())
    model, dataset = values["model"], values["dataset"]
    dim = dim or model["embedding_dim"]
    alone = 1 - 1 / (sessions or dataset["samples_per_session"])
    features: list[Mapping[str, Any]] = dataset["features"]
    every = sorted((one for one in features if one.get("sequence")), key=lambda one: one["group"])
    sequences, compute, shares = {}, {}, {}
    transformer = "transformer" in str(values["pooling"])
    for group, members in groupby(every, key=lambda one: one["group"]):
        alike = list(members)
        sequences[group] = _table(group, alike, dim, bags=0)
        shares[group] = 1 - alone * alike[0]["stay"]
        compute[group] = _pooling([one["length"] for one in alike], dim, sheet, transformer)
    bags = {}
    for kind in ("user", "item"):
        alike = [one for one in features if one["kind"] == kind and not one.get("sequence")]
        bags[kind] = _table(kind, alike, dim, bags=len(alike))
    shares["user"] = 1 - alone * next(
        one["stay"] for one in features if one["kind"] == "user" and not one.get("sequence")
    )
    summed = FeatureCompute(expanded=sheet.seconds(0, 12 * dim * bags["user"].bags))
    layers = _layers(dataset["dense"], len(features), model, dim)
    parameters = sum(a * b + b for a, b in layers)
    flops = 2 * sum(a * b for a, b in layers) + 2 * (len(features) + 1) ** 2 * dim
    kept = 4 * (sum(a + b for a, b in layers) + 3 * (len(features) + 1) * dim)
    return ModelledJob(
        name=name,
        batch_size=batch_size or values["train"]["batch_size"],
        sequences=sequences,
        bags=bags,
        compute=Compute(
            dense=sheet.seconds(3 * flops, TIMES_MOVED * kept),
            features={**compute, "user": summed},
            dense_bytes=4 * parameters,
            activations=kept,
        ),
        shares=shares,
    )


def flops_of_transformer(length: float, dim: int) -> float:
    """Of a layer with four times as wide a middle, forward: 24 l D^2 + 4 l^2 D."""
    return 24 * length * dim**2 + 4 * length**2 * dim


def _pooling(
    lengths: list[float], dim: int, sheet: DeviceSheet, transformer: bool
) -> FeatureCompute:
    """A group's features, each pooled."""
    ids = sum(lengths)
    flops = sum(flops_of_transformer(length, dim) for length in lengths) if transformer else 0.0
    kept = 4.0 * (KEPT if transformer else 1) * ids * dim
    return FeatureCompute(
        pooled=sheet.seconds(3 * flops, TIMES_MOVED * kept),
        expanded=sheet.seconds(0, 12 * dim * len(lengths)),
        activations=kept,
    )


def _table(name: str, features: list[Mapping[str, Any]], dim: int, *, bags: float) -> ProfiledTable:
    """The tables of features alike, as one of as many rows."""
    parts = [zipf(one["num_ids"], one["length"], SKEW) for one in features]
    rows = RowDistribution.of(
        np.concatenate([part.counts for part in parts]), np.concatenate([part.p for part in parts])
    )
    collection = "bags" if bags else "sequences"
    return ProfiledTable(name=name, rows=rows, dim=dim, bags=bags, collection=collection)


def _layers(dense: int, features: int, model: Mapping[str, Any], dim: int) -> list[tuple[int, int]]:
    """Inputs and outputs of each layer of both MLPs."""

    def chain(widths: list[int]) -> Iterator[tuple[int, int]]:
        return pairwise(widths)

    top = dim + features * (features + 1) // 2
    return [*chain([dense, *model["bottom"], dim]), *chain([top, *model["top"], 1])]

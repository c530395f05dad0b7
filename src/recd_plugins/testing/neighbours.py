"""The neighbours that a record under check finds in its context if the caller gives none."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from recd_plugins.data.batch import Batch
from recd_plugins.data.columns import Columns
from recd_plugins.data.reader.local_reader import LocalReaderConfig, build_local_reader
from recd_plugins.planning.torchrec_plan.torchrec_planner import (
    TorchRecPlannerConfig,
    build_torchrec_planner,
)
from recd_plugins.slots import SLOTS, Context, Record, stands_in_front
from recd_plugins.sparse.groups import Groups
from recd_plugins.testing.batches import random_batches
from recd_plugins.testing.probe import SCHEMA, Probe

__all__ = ["OTHERS", "Sums", "probe_batches", "supplied", "with_neighbours"]


class Sums(nn.Module):
    """A pooling that adds up a row's values."""

    needs_query = False

    def forward(self, values: Tensor, lengths: Tensor, query: Tensor | None = None) -> Tensor:
        return torch.segment_reduce(values, "sum", lengths=lengths, unsafe=True)


class EachAlone:
    """A dedup converter that takes every feature of a schema, each in a group of its own."""

    def __init__(self, context: Context) -> None:
        self.groups: Groups = tuple((name,) for name in context.require_schema().sparse_names)

    def convert(self, features: Columns) -> Any:
        return features.to_ikjt(self.groups)


OTHERS = TorchRecPlannerConfig(search="greedy")
"""The planner that the kit puts behind records that stand in front of one."""


def _planner(context: Context) -> Any:
    return build_torchrec_planner(OTHERS, context)


BUILDS: Mapping[str, Callable[[Context], Any]] = {
    "reader": lambda context: build_local_reader(LocalReaderConfig(prefetch=False), context),
    "dedup": EachAlone,
    "sharding": _planner,
    "cache": _planner,
    "pooling": lambda context: {"*": lambda dim: Sums()},
    "model": lambda context: Probe(context.require_schema()),
}
"""What the kit builds for a neighbour slot; slots that take a list get an empty one."""


def supplied() -> set[str]:
    """The slots that the kit fills by itself."""
    return {*BUILDS, *(slot for slot, kind in SLOTS.items() if kind.fills == "many")}


def with_neighbours(
    record: Record[Any, Any], context: Context, others: TorchRecPlannerConfig = OTHERS
) -> Context:
    """The context with a neighbour for each slot that the record uses and the caller left out. A
    record that stands in front of a planner also gets TorchRec's, with the options `others`.

    Ranks call this too, so that a neighbour planner has their optimizer and need not be sent to
    them.
    """
    if context.others is None and stands_in_front(record):
        behind = dataclasses.replace(context, where=f"{record.slot}.others")
        context = dataclasses.replace(context, others=build_torchrec_planner(others, behind))
    missing = {*record.uses, *_needed(record)} & supplied() - context.neighbours.keys()
    built = {slot: BUILDS[slot](context) if slot in BUILDS else [] for slot in missing}
    return dataclasses.replace(context, neighbours={**built, **context.neighbours})


def probe_batches() -> Iterable[Batch]:
    """Batches for a planner to profile."""
    return [step[0] for step in random_batches(SCHEMA, steps=8)]


def _needed(record: Record[Any, Any]) -> set[str]:
    return {need.removeprefix("slot:") for need in record.needs if need.startswith("slot:")}

"""The settings of a registry that do nothing, as registry.yaml itself shows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from recd_plugins.errors import so_many
from recd_plugins.notices import Unused
from recd_plugins.patterns import fitting
from recd_plugins.planning.constraints import TableConstraint
from recd_plugins.registry.registry import Registry

__all__ = ["idle_settings"]


def idle_settings(registry: Registry, world_size: int) -> Iterator[Unused]:
    """Notices of settings that are for what other settings switch off, or that allow all that is
    allowed without them, in a job of so many ranks."""
    train = registry.train
    if train.optimizer.tables == "sgd" and "tables_eps" in registry.written("train", "optimizer"):
        yield Unused(
            what="train: optimizer.tables_eps",
            why="it is the epsilon of the Adagrads, and tables are trained by sgd, which has none",
            cure="Set `train.optimizer.tables` to an Adagrad, or take tables_eps out.",
        )
    if "retier_batches" in registry.written("train") and not train.retier_every:
        yield Unused(
            what="train: retier_batches",
            why="it sets which batches replicas move by, but retier_every is 0, so replicas do not "
            "move",
            cure="Set `train.retier_every`, or take it out.",
        )
    stated = registry.topology.ranks_per_node
    if stated and stated > world_size and _is_written(registry, "topology", "ranks_per_node"):
        yield Unused(
            what="topology: ranks_per_node",
            why=f"nodes of {so_many(stated, 'rank')} are more than {so_many(world_size, 'rank')} "
            "fill, so that these count as one node",
            cure=f"Train on more ranks, or write `topology.ranks_per_node: {world_size}`.",
        )
    yield from _empty_constraints(registry)


def _is_written(registry: Registry, slot: str, key: str) -> bool:
    """Whether registry.yaml itself has the key, not a preset or a file that the slot names."""
    values: Any = registry.source.values.get(slot)
    return isinstance(values, Mapping) and key in values


def _empty_constraints(registry: Registry) -> Iterator[Unused]:
    """Notices of constraints that leave a table all choices, which it has without them.

    One after others may be there to free its table of those: the last that fits counts.
    """
    for choice in registry.chosen("sharding"):
        constraints = getattr(choice.config, "constraints", None)
        if not isinstance(constraints, Mapping):
            continue
        before: list[str] = []
        for name, one in constraints.items():
            free = type(one) is TableConstraint and one == TableConstraint()
            frees = bool(before) and ("*" in name or fitting(name, before))
            if free and not frees:
                yield Unused(
                    what=f"{choice.where}: constraints.{name}",
                    why="it names nothing to choose from, so the planner chooses from all, as "
                    "without it",
                    cure="Name `sharding_types` or `compute_kernels`, or take it out.",
                )
            before.append(name)

"""The machines of ranks, as the launcher says, and the nodes of a topology."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from recd_plugins.launch.environment import ranks_of_a_node
from recd_plugins.planning.cluster.topology import Topology
from recd_plugins.planning.tables.planned_tables import planned_tables

if TYPE_CHECKING:
    from torchrec.distributed.types import ShardingPlan

__all__ = ["as_launched", "finds_these_nodes", "neighbours", "on_machines"]


def as_launched(topology: Topology, world_size: int) -> Topology:
    """The topology, with the launcher's nodes where it names none. All ranks are one node where
    nobody names any, where they do not fill the launcher's nodes, or where they are fewer than one
    of its own."""
    launched = ranks_of_a_node(world_size) or world_size
    per_node = world_size if world_size % launched else launched
    per_node = min(topology.ranks_per_node or per_node, world_size)
    return dataclasses.replace(topology, ranks_per_node=per_node)


def finds_these_nodes(topology: Topology, world_size: int) -> bool:
    """Whether TorchRec will find the topology's nodes when it shards; a topology may name several
    on one machine. Nodes of one rank share nothing."""
    per_node = topology.ranks_per_node or world_size
    return per_node > 1 and _ranks_of_machine(world_size) in (None, per_node)


def neighbours(rank: int, world_size: int) -> range:
    """The ranks of this rank's machine, itself among them."""
    each = _ranks_of_machine(world_size) or world_size
    first = rank // each * each
    return range(first, min(first + each, world_size))


def on_machines(plan: ShardingPlan, world_size: int) -> None:
    """Place each shard of a plan on the device that its rank has on its machine, if these ranks are
    running: planners count ranks by the nodes of a topology, which may differ. Where there are
    fewer devices than ranks, ranks share them in turn."""
    import torch
    from torchrec.distributed.planner.utils import placement

    if (here := _ranks_of_machine(world_size)) is None:
        return
    devices = min(here, torch.cuda.device_count() or here)
    for _, _, sharding in planned_tables(plan):
        spec: Any = sharding.sharding_spec
        shards = [] if spec is None else spec.shards
        for index, shard in enumerate(shards):
            rank, kind = shard.placement.rank(), shard.placement.device().type
            there = placement(kind, rank, devices)
            shards[index] = dataclasses.replace(shard, placement=there)


def _ranks_of_machine(world_size: int) -> int | None:
    """The number of ranks on a machine that TorchRec finds when it shards, by the launcher's
    LOCAL_WORLD_SIZE; None where these ranks are not running here."""
    import torch.distributed as dist
    from torchrec.distributed.comm import get_local_size

    here = dist.is_initialized() and dist.get_world_size() == world_size
    return get_local_size(world_size) if here else None

"""What a run was made of, as files in its folder: its registry, its plan, and the machine and the
versions that it ran with."""

from __future__ import annotations

import json
import os
import platform
import time
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from recd_plugins.compat.versions import installed_versions
from recd_plugins.config.yaml_text import to_yaml
from recd_plugins.launch.machine_cores import machine_cores
from recd_plugins.planning.cluster.cluster import Cluster
from recd_plugins.planning.planner_bases import Tiered
from recd_plugins.planning.tables.planned_tables import planned_tables

if TYPE_CHECKING:
    from recd_plugins.stack import Stack
    from recd_plugins.trainer.assemble import Job
    from recd_plugins.trainer.run_report import RunReport

__all__ = ["keep_provenance"]


def keep_provenance(report: RunReport, stack: Stack, job: Job) -> None:
    """Rank 0 writes registry.yaml, plan.json and environment.json."""
    if dist.get_rank() == 0:
        report.keep("registry.yaml", to_yaml(stack.registry.source.values))
        report.keep("plan.json", json.dumps(_plan(stack, job)) + "\n")
        report.keep("environment.json", json.dumps(_environment(stack, job), indent=1) + "\n")


def _plan(stack: Stack, job: Job) -> dict[str, Any]:
    """The plan as `recd plan --json` prints it, and where TorchRec has the tables."""
    planner = stack.planner()
    tiers = planner.report if isinstance(planner, Tiered) else None
    placed = {
        table: {
            "sharding": sharding.sharding_type,
            "kernel": sharding.compute_kernel,
            "ranks": sharding.ranks,
        }
        for _, table, sharding in planned_tables(job.plan)
    }
    return {
        "plan": stack.explain(),
        "tiers": None if tiers is None else tiers.values(),
        "placed": placed,
    }


def _environment(stack: Stack, job: Job) -> dict[str, Any]:
    cluster = Cluster.of(stack.registry.topology, dist.get_world_size())
    devices = [
        torch.cuda.get_device_name(number)
        for number in range(torch.cuda.device_count())
        if job.device.type == "cuda"
    ]
    return {
        "begun": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "ranks": dist.get_world_size(),
        "ranks_per_node": cluster.ranks_per_node,
        "backend": dist.get_backend(),
        "device": devices[0] if devices else "CPU",
        "cores": machine_cores(),
        "threads_a_rank": torch.get_num_threads(),
        "load_before": round(os.getloadavg()[0], 2),
        "system": platform.platform(),
        "versions": {
            "recd-plugins": version("recd-plugins"),
            "python": platform.python_version(),
            **installed_versions(),
        },
    }

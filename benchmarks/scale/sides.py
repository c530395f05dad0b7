"""Plain row-wise, each paper alone, and all together: the step of each, modelled."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial

from benchmarks.scale.modelled import ModelledJob
from recd_flexshard.policy.goals import choose
from recd_plugins.planning.cluster.cluster import Cluster
from recd_plugins.planning.cluster.topology import GB
from recd_plugins.planning.prices.cost import Prices
from recd_plugins.planning.prices.ledger import Ledger
from recd_plugins.planning.step.step_forecast import StepForecast
from recd_plugins.planning.tables.profiled_table import ProfiledTable
from recd_plugins.planning.tier_plans.table_sizes import AS_TORCHREC, TableSizes

__all__ = ["PLANS", "TOGETHER", "at_batch", "modelled_step", "modelled_steps", "step_of"]

BUDGET = 1.0 * GB
"""For SCARS' cache, and for all together, a rank."""
TOGETHER = "together"
PLANS = ("row-wise", "RecD", "FlexShard", "SCARS", TOGETHER)


def modelled_step(job: ModelledJob, cluster: Cluster, plan: str) -> StepForecast:
    """One step by one of `PLANS`.

    row-wise   TorchRec's, sequences row-wise, pooled tables table-wise, whose kin all have
    RecD       lookups and poolings of unique samples
    FlexShard  three tiers for sequences, memory-neutral
    SCARS      coalescing for each rank, and a cache of 1 GB
    together   unique samples, and tiers and coalescing as take the least time within 1 GB; or
               any other plan, where the price of small operations makes that one faster
    """
    if plan == TOGETHER:
        return modelled_steps(job, cluster)[TOGETHER]
    return _with(job, cluster, plan)


def modelled_steps(job: ModelledJob, cluster: Cluster) -> dict[str, StepForecast]:
    """One step by each of `PLANS`."""
    found = {plan: _with(job, cluster, plan) for plan in PLANS}
    return found | {TOGETHER: min(found.values(), key=lambda one: one.ms)}


def _with(job: ModelledJob, cluster: Cluster, plan: str) -> StepForecast:
    unique = plan in ("RecD", TOGETHER) and bool(job.shares)
    tables = job.tables(unique=unique, world_size=cluster.world_size)
    sequences = {name: tables[name] for name in job.sequences}
    return step_of(job, cluster, _sizes(plan, sequences, job.prices(cluster)), unique=unique)


def step_of(
    job: ModelledJob, cluster: Cluster, sizes: Mapping[str, TableSizes], *, unique: bool
) -> StepForecast:
    """One step with these sizes of sequences; pooled tables are TorchRec's."""
    return StepForecast(
        ledger=Ledger.of(
            job.tables(unique=unique, world_size=cluster.world_size),
            {**dict.fromkeys(job.bags, AS_TORCHREC), **sizes},
            job.prices(cluster),
        ),
        compute=job.compute,
        unique={name: job.shares[name] for name in job.compute.features} if unique else {},
    )


def _sizes(
    plan: str, sequences: Mapping[str, ProfiledTable], prices: Prices
) -> dict[str, TableSizes]:
    chosen = partial(choose, sequences, prices)
    if plan == "FlexShard":
        ledger = chosen(goal="memory_neutral", tiers=3)
    elif plan == "SCARS":
        ledger = chosen(goal="budget", tiers=2, budget=BUDGET, coalesce="rank")
    elif plan == TOGETHER:
        ledger = chosen(goal="auto", tiers=3, budget=BUDGET)
    else:
        return {}
    return {name: table.sizes for name, table in ledger.tables.items()}


def at_batch(job: ModelledJob, batch_size: int) -> ModelledJob:
    """The same job, of other batches."""
    return dataclasses.replace(job, batch_size=batch_size)

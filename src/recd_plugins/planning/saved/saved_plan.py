"""A tier plan from a file, held to the model and the cluster that are to train by it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from recd_plugins.errors import CapabilityError, nearest
from recd_plugins.planning.cluster import Cluster
from recd_plugins.planning.model_tables import ModelTable
from recd_plugins.planning.tier_plan import TablePlan, TierPlan

__all__ = ["lines", "saved_plan"]


def saved_plan(
    path: Path, tables: Mapping[str, ModelTable], cluster: Cluster, *, where: str
) -> TierPlan:
    """What `TierPlan.save` wrote there, if it is for this cluster and for tables among these.

    `where` opens the error if it is not.
    """
    plan = TierPlan.load(path)
    made, here = (f"{one.n_nodes} nodes of {one.ranks_per_node} ranks" for one in (plan, cluster))
    if made != here:
        raise CapabilityError(
            f"{where}: {path} is for {made}, but here are {here}. `recd plan --ranks "
            f"{cluster.world_size} --save FILE` makes one for these, without `plan`."
        )
    for name, table in plan.tables.items():
        if name not in tables:
            raise CapabilityError(
                f"{where}: {path} has replicas of a table {name!r}, but the model has none of "
                f"that name that may have any; {nearest(name, tables)}"
            )
        _check_rows(table, tables[name].num_rows, f"{where}: {path}")
    return plan


def lines(plan: TierPlan, path: Path) -> Iterator[str]:
    """The rows of each table in words."""
    yield (
        f"tier plan: as in {path}; {plan.n_nodes} nodes of {plan.ranks_per_node} ranks, "
        f"{len(plan.tables)} tables"
    )
    for name, table in plan.tables.items():
        yield (
            f"{name}: {len(table.replicated):,} rows in DP, {len(table.per_node):,} in Flex, "
            f"coalesced: {table.coalesce}"
        )


def _check_rows(table: TablePlan, num_rows: int, where: str) -> None:
    said = table.num_rows
    if said is not None and said != num_rows:
        raise CapabilityError(
            f"{where} was made of a table {table.table!r} of {said:,} rows, but the model's has "
            f"{num_rows:,}. Plan again: take `plan` out of registry.yaml."
        )
    highest = max(
        (int(rows.max()) for rows in (table.replicated, table.per_node) if len(rows)), default=-1
    )
    if highest >= num_rows:
        raise CapabilityError(
            f"{where} names row {highest:,} of table {table.table!r}, but the model's has "
            f"{num_rows:,} rows. Plan again: take `plan` out of registry.yaml."
        )

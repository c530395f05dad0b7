"""A cache: the rows of each table that take a given share of its lookups are on every rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from torch import nn

from recd_plugins.api import CacheRecord, Config, Context, Range, Topology, hookimpl
from recd_plugins.api.planning import (
    ChosenSizes,
    Cluster,
    Ledger,
    ModelTable,
    PlanReport,
    ProfiledTable,
    TableSizes,
    TierPlanner,
    model_tables,
)


@dataclass(frozen=True, kw_only=True)
class NewPluginConfig(Config):
    """The options of new_plugin."""

    share: Annotated[float, Range(ge=0, lt=1)] = 0.5
    """The share of a table's lookups that its cached rows take."""
    profile_batches: Annotated[int, Range(ge=1)] = 100
    """The number of batches in which lookups are counted."""


class NewPlugin(TierPlanner):
    """Chooses how many rows of each table; the base class finds them and plans the others."""

    name = "new_plugin"
    slot = "cache"

    def __init__(self, config: NewPluginConfig, context: Context) -> None:
        super().__init__(context, profile=None, profile_batches=config.profile_batches)
        self.share = config.share

    def tables(self, model: nn.Module) -> Mapping[str, ModelTable]:
        """All tables, since ids of all are coalesced: a rank looks up a row once per batch."""
        return model_tables(model)

    def choose(
        self,
        model: nn.Module,
        tables: Mapping[str, ProfiledTable],
        topology: Topology,
        world_size: int,
    ) -> ChosenSizes:
        sizes = {}
        for name, table in tables.items():
            covered = table.rows.coverage(np.arange(table.rows.num_rows + 1))
            cached = int(np.searchsorted(covered, self.share)) if table.rows.lookups else 0
            sizes[name] = TableSizes(replicated=cached, coalesce="rank")
        prices = self.prices(tables, Cluster.of(topology, world_size))
        ledger = Ledger.of(tables, sizes, prices)
        report = PlanReport(ledger=ledger, goal=f"{self.share:.0%} of lookups", budget=None)
        return ChosenSizes(sizes=sizes, report=report, reason="\n".join(report.lines()))


def build(config: NewPluginConfig, context: Context) -> NewPlugin:
    return NewPlugin(config, context)


@hookimpl
def recd_cache() -> list[CacheRecord[NewPluginConfig]]:
    return [
        CacheRecord(
            name="new_plugin",
            summary="Hot rows on every rank.",
            config=NewPluginConfig,
            build=build,
        )
    ]

"""Additions: what plugins would put into a registry, for `recd advise` to weigh.

A plugin yields them by the hook `recd_additions`. An addition knows which keys of registry.yaml it
writes, and why it cannot be where it cannot; what it is worth, the host finds out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from recd_plugins.data.schema import Schema
    from recd_plugins.planning.cluster.cluster import Cluster
    from recd_plugins.planning.tables.model_tables import ModelTable

__all__ = ["Addition", "NotHere", "Objective", "Situation", "Values", "as_they_are"]

Values = Mapping[str, Any]
"""registry.yaml in plain values: keys, and what stands under each."""
Objective = Literal["samples_per_second", "memory", "time_to_loss"]


@dataclass(frozen=True, kw_only=True)
class Situation:
    """The situation that an addition may ask about: the registry that it would be added to."""

    values: Values
    """The registry without it."""
    schema: Schema
    """The columns of its dataset, before any `etl` step."""
    tables: Mapping[str, ModelTable]
    """The tables of its model."""
    cluster: Cluster
    """Ranks and links."""
    budget_gb: float = 0.0
    """Memory that a rank may take over TorchRec's own plan, GB."""
    tiers: bool = False
    """Whether the planner of its slot `sharding` gives rows replicas, as that record declares."""
    objective: Objective = "samples_per_second"
    fits: bool = True
    """Whether memory has room for the tables by TorchRec's own plan, all of them in memory."""

    def use(self, slot: str) -> str:
        """The name of the record that fills a slot of one; empty where nothing does."""
        value = self.values.get(slot)
        if isinstance(value, Mapping):
            value = value.get("use")
        return str(value or "").rpartition(":")[2]

    def options(self, slot: str) -> dict[str, Any]:
        """The options of the record that fills a slot of one, `use` among them."""
        value = self.values.get(slot)
        return dict(value) if isinstance(value, Mapping) else ({"use": value} if value else {})


@dataclass(frozen=True)
class NotHere:
    """Why an addition cannot be in this registry."""

    why: str


def as_they_are(values: Values) -> Values:
    """The same values: an addition that stands in slots which the host empties by itself."""
    return values


@dataclass(frozen=True, kw_only=True)
class Addition:
    """An entry that a plugin would put into a registry."""

    name: str
    """Its name in `recd advise`: a few words, unlike those of other additions."""
    summary: str
    """A sentence: what it does to a step."""
    add: Callable[[Situation], Values | NotHere]
    """The keys of registry.yaml that it changes, each with the whole of its new value; or why not.
    The plugin that yields it is put under `plugins` by the host."""
    without: Callable[[Values], Values] = as_they_are
    """A registry without what this addition would put there, for the baseline. `dedup`, `sharding`
    and `cache` are TorchRec's own in it already."""
    after: tuple[str, ...] = ()
    """Additions that it follows, where they are there."""
    needs: tuple[str, ...] = ()
    """Additions without which it does nothing; it follows them, and they may pay by it alone."""
    variants: Mapping[str, Callable[[Situation], Values | NotHere]] = field(default_factory=dict)
    """Other ways to `add` it, by what they are called, each of which is tried on top of all that is
    kept in the end: what is best beside others may be less than what is best alone."""
    what_ifs: Mapping[str, Callable[[Values], Values]] = field(default_factory=dict)
    """Other data, or another cluster, that the advice is tried for where the addition can be, by
    what it is called: the registry as it would then be."""

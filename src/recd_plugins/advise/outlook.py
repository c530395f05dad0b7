"""Forecasts the step of a registry without training: its plan, and the plan's ledger."""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from recd_plugins.additions import Values
from recd_plugins.advise.model_and_batches import ModelAndBatches, ModelOfRegistry
from recd_plugins.data.progress import Progress, silent
from recd_plugins.embedding.unique_calls import calls_of_unique_samples
from recd_plugins.errors import RecdError, listed, so_many
from recd_plugins.notices import NoticeWarning
from recd_plugins.planning.cluster.cluster import Cluster
from recd_plugins.planning.explain.words import in_bytes
from recd_plugins.planning.homes import boundless
from recd_plugins.planning.planner_bases import OrdersBatches, Retiers, Tiered
from recd_plugins.planning.prices.cost import COLLECTIVES, Cost, priced
from recd_plugins.planning.prices.ledger import Ledger
from recd_plugins.planning.prices.milliseconds import Lane
from recd_plugins.planning.prices.replica_factor import replica_factor
from recd_plugins.planning.step.step_forecast import StepForecast
from recd_plugins.planning.tables.model_tables import model_tables
from recd_plugins.planning.tables.planned_shards import planned_shards
from recd_plugins.planning.tier_plans.table_sizes import AS_TORCHREC
from recd_plugins.registry import Registry
from recd_plugins.slots import ShardingRecord
from recd_plugins.stack import Stack

if TYPE_CHECKING:
    from torch import nn

    from recd_plugins.data.batch import Batch
    from recd_plugins.data.schema import Schema
    from recd_plugins.planning.access.access_profile import Profile
    from recd_plugins.planning.step.compute import Compute
    from recd_plugins.planning.tables.model_tables import ModelTable
    from recd_plugins.slots import Planner

__all__ = ["Outlook", "Outlooks", "changes_in_words"]

COUNTED_BY = ("dataset", "etl", "reader", "preprocess", "model", "pooling", "folder")
"""The keys of registry.yaml that, besides feature groups, decide what is looked up."""
COMPUTED_BY = ("dataset", "preprocess", "model", "pooling")
"""The keys that, besides `TIMED_BY`, decide how long a sample's dense layers and poolings take."""
TIMED_BY = ("optimizer", "threads")
"""The keys of `train` that decide it too."""
PLANNED_BY = ("dedup", "sharding", "cache")


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """The forecast step of a registry, by one ledger after deduplication."""

    values: Values
    """The values of the registry."""
    step: StepForecast
    tables: Mapping[str, ModelTable]
    groups: int
    """The number of groups of features that are deduplicated."""
    hot: float
    """The share of batches that will be hot; their steps exchange nothing with home."""
    why_groups: tuple[str, ...]
    """The lines that explain why features are deduplicated, or why not."""
    notices: tuple[str, ...]
    """The notices of what the registry switches on and would not use."""
    mapped: tuple[str, ...]
    """The tables in mapped files, since memory has no room for all tables."""
    lacks: str
    """Why memory has no room for the tables; empty if it has. All else is as if it had."""
    on_cpu: bool
    """Whether the plan is for ranks that train on a CPU, whose cores they share."""
    retiers: bool
    """Whether its planner can move replicas while training."""

    @cached_property
    def ms(self) -> float:
        """The expected milliseconds of a step, on average over hot and other batches."""
        return self.step.ms - self.hot * self._calls_of_home

    @property
    def ms_working_meanwhile(self) -> float:
        """The milliseconds if ranks that share processors work while others wait for bytes."""
        return self.step.ms_working_meanwhile

    @property
    def ledger(self) -> Ledger:
        """The ledger of exchange and lookups."""
        return self.step.ledger

    @property
    def batch_size(self) -> int:
        return self.step.batch_size

    @property
    def copies(self) -> bool:
        """Whether rows have replicas on a CPU."""
        return self.on_cpu and any(one.has_replicas for one in self.ledger.tables.values())

    @property
    def _calls_of_home(self) -> float:
        """The milliseconds of the calls that a hot step saves, less what backward hides of the
        calls that send ids. Its bytes travel with other steps."""
        step, ledger, cluster = self.step, self.ledger, self.ledger.prices.cluster
        latencies = min(step.ids, 2 * cluster.a2a_global.latency_ms)
        hidden = step.beside_backward(step.ids) - step.beside_backward(step.ids - latencies)
        return Lane.of(Cost(), cluster, ledger.home_calls).own - hidden

    @property
    def samples_per_second(self) -> float:
        return 1e3 * self.batch_size * self.ledger.prices.cluster.world_size / max(self.ms, 1e-9)

    @cached_property
    def bytes_by_link(self) -> dict[str, float]:
        """The bytes that a rank hands to each collective in a step, on average."""
        mean = self.ledger.cost.mean
        return {name: float(getattr(mean, name)) for name in COLLECTIVES}

    @property
    def between_nodes(self) -> float:
        """The bytes that leave nodes in a step, summed over nodes."""
        return self.step.bytes_by_link["between_nodes"]

    @property
    def memory(self) -> float:
        """The bytes of a rank for tables, replicas, what is exchanged and what is kept for
        backward."""
        return self.step.memory

    def over(self, base: Outlook) -> float:
        """By how many bytes a rank's memory exceeds another outlook's: with all memory or with only
        what stays, whichever gives less, since buffers exist only during an exchange."""
        mine, other = self.ledger, base.ledger
        return min(mine.memory - other.memory, mine.static_memory - other.static_memory)

    def summary(self) -> dict[str, Any]:
        """All numbers, for machines."""
        return {
            "ms": self.ms,
            "samples_per_second": self.samples_per_second,
            "batch_size": self.batch_size,
            "bytes_by_link": self.bytes_by_link,
            "between_nodes": self.between_nodes,
            "memory": self.memory,
            "ms_by_part": dict(self.step.parts),
            "ms_hidden": dict(self.step.hidden),
            "groups": self.groups,
            "hot": self.hot,
            "notices": list(self.notices),
            "mapped": list(self.mapped),
            "lacks": self.lacks,
        }


def changes_in_words(outlook: Outlook, before: Outlook) -> str:
    """The changes from one outlook to another, of a step and of memory."""
    words = [f"{before.ms:.3g} -> {outlook.ms:.3g} ms a step"]
    sent, now = (sum(one.bytes_by_link.values()) for one in (before, outlook))
    if outlook.ledger.prices.cluster.world_size > 1:
        words.append(f"{in_bytes(sent)} -> {in_bytes(now)} exchanged a rank")
    more = outlook.memory - before.memory
    words.append(f"{in_bytes(more, sign=True)} of memory a rank")
    if outlook.groups and outlook.groups != before.groups:
        words.append(f"{so_many(outlook.groups, 'group')} of features on unique samples")
    if outlook.hot:
        words.append(f"{outlook.hot:.0%} of batches hot")
    if outlook.mapped != before.mapped:
        words.append(f"{listed(outlook.mapped) or 'no table'} in mapped files")
    if before.lacks:
        words.append("without it memory has no room for the tables")
    return ", ".join(words)


class Outlooks:
    """The outlooks of registries that differ in a few keys. Each is made once; batches are counted
    once for all registries that read the same, and the model is timed once for all that compute the
    same."""

    def __init__(
        self,
        registry: Registry,
        ranks: int,
        ranks_here: int | None = None,
        progress: Progress = silent,
        source: ModelAndBatches | None = None,
    ) -> None:
        """`ranks_here` of the ranks share a machine's processors, by default those of a node. Model
        and batches are the registry's, unless a `source` gives others."""
        self._registry = registry
        self._source = source or ModelOfRegistry()
        self._ranks = ranks
        cluster = Cluster.of(registry.topology, ranks)
        self._ranks_here = ranks_here or cluster.ranks_per_node
        self._computes: dict[str, Compute] = {}
        self._progress = progress
        self._profiles: dict[str, Profile] = {}
        self._spread: dict[str, list[Batch]] = {}
        self._found: dict[str, Outlook] = {}
        self._checked: dict[str, Registry] = {}

    def registry(self, values: Values) -> Registry:
        """A registry like the given one, with these values, for the number of ranks that is planned
        for."""
        key = _as_text(values)
        if key not in self._checked:
            train = {**(values.get("train") or {}), "ranks": self._ranks}
            self._checked[key] = self._registry.having({**values, "train": train, "strict": False})
        return self._checked[key]

    def plans_tiers(self, values: Values) -> bool:
        """Whether the record that plans a registry's tables declares that it makes replicas."""
        record = self.registry(values).one("sharding").record
        return isinstance(record, ShardingRecord) and record.tiers

    def schema(self, values: Values) -> Schema:
        """The columns of the batches; a dataset that is not there is prepared first."""
        with _notices():
            return self._source.schema(Stack(self.registry(values)), self._progress)

    def of(self, values: Values) -> Outlook:
        """The outlook of a registry; `RecdError` if it has none."""
        key = _as_text(values)
        if key not in self._found:
            self._found[key] = self._made(values)
        return self._found[key]

    def _made(self, values: Values) -> Outlook:
        with _notices() as notices:
            stack = Stack(self.registry(values))
            model = self._source.model(stack, self._progress)
            tables = model_tables(model)
            profile = self._profile(stack, tables)  # before all else that reads: whole batches
            compute = self._compute(stack)
            planner, lacks = _planned(stack, model, self._ranks, profile)
            ledger = _ledger(stack, planner, tables, profile, self._ranks)
            hot = self._hot(stack, planner)
        reader = stack.registry.one("reader").config
        step = StepForecast(
            ledger=ledger,
            compute=compute,
            unique=stack.unique_shares,
            handled=calls_of_unique_samples(stack.groups, tables),
            workers=int(getattr(reader, "workers", 0) or 0),
        )
        return Outlook(
            values=values,
            step=step,
            tables=tables,
            groups=len(stack.groups),
            hot=hot,
            why_groups=tuple(stack.explain_groups().splitlines()),
            notices=tuple(dict.fromkeys(notices)),
            mapped=_mapped(planner),
            lacks=lacks,
            on_cpu=_on_cpu(stack),
            retiers=isinstance(planner, Retiers),
        )

    def _compute(self, stack: Stack) -> Compute:
        """The compute, timed once for all registries that compute the same, with the bits of this
        registry's dense gradients."""
        values, train = stack.registry.source.values, stack.registry.train
        timed_by = [getattr(train, name) for name in TIMED_BY]
        key = _as_text([*(values.get(name) for name in COMPUTED_BY), *timed_by])
        if key not in self._computes:
            bare = {name: value for name, value in values.items() if name not in PLANNED_BY}
            plain = Stack(self.registry(bare))
            self._computes[key] = self._source.compute(plain, self._ranks, self._ranks_here)
        carried = train.codecs.dense_carried
        return dataclasses.replace(self._computes[key], dense_carried=carried)

    def _profile(self, stack: Stack, tables: Mapping[str, ModelTable]) -> Profile:
        key = _read_by(stack)
        if key not in self._profiles:
            counted = {name: table.counted for name, table in tables.items()}
            self._profiles[key] = self._source.profile(stack, counted, self._progress)
        return self._profiles[key]

    def _hot(self, stack: Stack, planner: Planner) -> float:
        """The share of batches that the planner will make hot, forecast from some of them."""
        if not isinstance(planner, OrdersBatches):
            return 0.0
        if isinstance(planner, Tiered):
            planned = planner.tier_plan.tables.values() if planner.tier_plan else ()
            if not any(len(one.replicated) for one in planned):
                return 0.0  # without reading a batch
        key = _read_by(stack)
        if key not in self._spread:
            self._spread[key] = self._source.spread(stack, self._ranks)
        some = self._spread[key]
        return planner.hot_to_come(some, self._ranks) or 0.0 if some else 0.0


def _read_by(stack: Stack) -> str:
    """A text of all that decides what batches look up."""
    values, train = stack.registry.source.values, stack.registry.train
    parts = [values.get(name) for name in COUNTED_BY]
    return _as_text([*parts, stack.groups, train.batch_size, train.ranks])


def _as_text(values: Any) -> str:
    """A registry's values as text, which is equal for equal values."""
    return json.dumps(values, sort_keys=True, default=str)


def _planned(stack: Stack, model: nn.Module, ranks: int, profile: Profile) -> tuple[Planner, str]:
    """The planner after it has planned, and why memory has no room for the tables, or "". If it has
    no room, the planner plans as if it had."""
    try:
        return stack.planned_for(model, ranks, profile=profile), ""
    except RecdError as error:
        if not _on_cpu(stack):
            raise
        lacks = error
    try:
        endless = boundless(stack.registry.topology)
        return stack.planned_for(model, ranks, endless, profile), str(lacks)
    except RecdError:  # memory is not the reason
        raise lacks from None


def _on_cpu(stack: Stack) -> bool:
    """Whether the plan is for CPUs; a topology that names no device is for the device that
    trains."""
    return (stack.registry.topology.device or stack.device) == "cpu"


def _mapped(planner: Planner) -> tuple[str, ...]:
    return planner.mapped if isinstance(planner, Tiered) else ()


def _ledger(
    stack: Stack,
    planner: Planner,
    tables: Mapping[str, ModelTable],
    profile: Profile,
    ranks: int,
) -> Ledger:
    """The ledger of a plan: the planner's own if rows have replicas or ids are coalesced, or else
    that of all tables as TorchRec's plan places them."""
    tiered = planner if isinstance(planner, Tiered) else None
    if tiered is not None and tiered.tier_plan is not None and tiered.report is not None:
        return _whole(tiered.report.ledger, stack, tables, profile)
    return _as_placed(stack, tables, profile, ranks, _mapped(planner))


def _whole(
    ledger: Ledger, stack: Stack, tables: Mapping[str, ModelTable], profile: Profile
) -> Ledger:
    """The ledger with the other tables added, as the planner behind placed them."""
    others = {name: one for name, one in tables.items() if name not in ledger.tables}
    if not others:
        return ledger
    assert stack.proposed is not None
    shards = planned_shards(stack.proposed, others)
    sized = {name: one.sizes for name, one in ledger.tables.items()}
    every = {name: one.table for name, one in ledger.tables.items()}
    for name, table in others.items():
        every[name] = table.with_rows(profile[name], shards.get(name))
        sized[name] = AS_TORCHREC
    return Ledger.of(every, sized, ledger.prices)


def _as_placed(
    stack: Stack,
    tables: Mapping[str, ModelTable],
    profile: Profile,
    ranks: int,
    mapped: tuple[str, ...],
) -> Ledger:
    assert stack.proposed is not None
    shards = planned_shards(stack.proposed, tables)
    every = {
        name: table.with_rows(profile[name], shards.get(name), mapped=name in mapped)
        for name, table in tables.items()
    }
    fused = stack.registry.train.optimizer.fused_params()
    prices = priced(
        "ours",
        cluster=Cluster.of(stack.registry.topology, ranks),
        batch_size=stack.registry.train.batch_size,
        k=replica_factor(every.values(), dict.fromkeys(every, fused)),
        carried=stack.registry.train.codecs.carried,
    )
    return Ledger.of(every, dict.fromkeys(every, AS_TORCHREC), prices)


@contextmanager
def _notices() -> Iterator[list[str]]:
    """Collects the notices of the stack, which show that an addition does nothing."""
    found: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", NoticeWarning)
        yield found
    found += [str(one.message) for one in caught if issubclass(one.category, NoticeWarning)]

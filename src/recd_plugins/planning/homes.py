"""The homes of tables where memory has no room for all: which lie in mapped files, and why.

A page of a mapped file is read and written once a step for each different row of it that the step
looks up. So those tables leave memory first of which a step looks up the fewest rows a byte.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from recd_plugins.errors import CapabilityError, RecdError, listed, shortened
from recd_plugins.planning.access.access_profile import Profile
from recd_plugins.planning.answers import having_in_files, proposal
from recd_plugins.planning.cluster.cluster import Cluster
from recd_plugins.planning.cluster.topology import GB, Topology
from recd_plugins.planning.explain.words import aligned, in_bytes
from recd_plugins.planning.fused_params import state_bytes
from recd_plugins.planning.kernels_without_rows import (
    has_rows_on_all,
    row_wise_tables,
    without_rows,
)
from recd_plugins.planning.tables.model_tables import ModelTable, ambiguous, model_tables
from recd_plugins.planning.tables.planned_shards import planned_shards

if TYPE_CHECKING:
    from torch import nn
    from torchrec.distributed.types import ShardingPlan

    from recd_plugins.planning.planner_bases import HoldsRowWise

__all__ = [
    "Homes",
    "MayLeave",
    "boundless",
    "fewest",
    "homes_in_words",
    "may_leave",
    "with_less_memory",
    "without_advice",
]

T = TypeVar("T")

AGAIN = "Plan again: take `plan` out of registry.yaml."

BOUNDLESS_GB = 1e6
"""Memory of a rank that holds any table: a plan is asked for by it as if there were room."""


class Homes:
    """The homes of one model's tables in one plan. It has tables leave memory where the planner
    behind finds no room for all."""

    def __init__(
        self,
        model: nn.Module,
        topology: Topology,
        world_size: int,
        *,
        slot: str,
        name: str,
        options_in: str,
        device: Literal["cpu", "cuda"],
        chosen: bool,
    ) -> None:
        """For the planner `name` in `slot`, which has tables leave memory where homes are `chosen`,
        on the CPU; `options_in` is the slot whose options name tables. The planner behind counts
        memory by the topology."""
        self.mapped: tuple[str, ...] = ()
        """The tables that lie in mapped files."""
        self.lacking: RecdError | None = None
        """Why the planner behind has no plan with all tables in memory, where some may leave it."""
        self._may_leave: Sequence[MayLeave] = ()
        """The tables that may lie in mapped files, the cheapest there first, where some must."""
        self._model = model
        self._topology = topology
        self._world_size = world_size
        self._slot = slot
        self._name = name
        self._options_in = options_in
        self._device = device
        self._chosen = chosen
        self._saved = ""
        """The saved plan that has the homes, as errors begin."""

    def take(self, mapped: Sequence[str], saved: str) -> None:
        """Have these tables lie in mapped files, even if memory has room, as a `saved` plan says;
        errors begin with it."""
        if self._device != "cpu":
            raise CapabilityError(
                f"{saved} has {listed(mapped, kind='table')} in mapped files, which are for the "
                f"CPU, but the tables live on CUDA. {AGAIN}"
            )
        self.mapped, self._saved = tuple(mapped), saved

    def own_plan(self, behind: HoldsRowWise) -> ShardingPlan:
        """The plan of the planner behind, were there no tiers; as if memory had room for all
        tables, where it has not and some may leave it."""
        try:
            return proposal(behind, self._model, self._topology, self._world_size)
        except RecdError as error:
            if not self._chosen or self._device != "cpu":
                raise
            self.lacking = error
        try:
            return proposal(behind, self._model, boundless(self._topology), self._world_size)
        except RecdError:  # so it does not lack memory
            raise self.lacking from None

    def leave_memory(
        self,
        behind: HoldsRowWise,
        tables: Mapping[str, ModelTable],
        profile: Profile,
        fused: Mapping[str, Mapping[str, Any]],
        batch_size: int,
    ) -> tuple[HoldsRowWise, ShardingPlan]:
        """Have as few tables as possible lie in mapped files, so that the others have room; a
        planner like the one behind, and its plan then."""
        assert self.lacking is not None
        who = f"{self._slot}: {self._name}"
        self._may_leave = may_leave(
            tables, profile, fused, batch_size=batch_size, world_size=self._world_size
        )
        if not self._may_leave:
            raise self.none_may_leave(self.lacking) from self.lacking
        try:
            found, own = self._with_room(behind, self._topology, least=1)
        except RecdError as error:
            every = listed([one.name for one in self._may_leave], kind="table")
            raise CapabilityError(
                f"{who} finds no room for the tables, even with {every} in mapped files. {error}"
            ) from error
        if lacking := self.empty_somewhere(own, fused):
            raise CapabilityError(
                f"{who}: with {listed(self.mapped, kind='table')} in mapped files, "
                f"{listed(lacking, kind='table')} in memory would have no row on some rank, for "
                "TorchRec's own plan has each row-wise. Name another type in the constraints: "
                f"`{{{lacking[0]}: {{sharding_types: [table_wise]}}}}`."
            )
        return found, own

    def plan_beside(
        self, behind: HoldsRowWise, replicas: float, fused: Mapping[str, Mapping[str, Any]]
    ) -> tuple[HoldsRowWise, ShardingPlan]:
        """A planner like the one behind and its plan, where `replicas` take so many bytes of a
        rank. More tables may leave memory for them, unless the homes are those of a saved plan;
        `fused` has the optimizer of each table."""
        if self._saved:
            planner = having_in_files(behind, self.mapped)
            plan = proposal(planner, self._model, self._topology, self._world_size)
            self._check_saved(plan, fused)
            return planner, plan
        if self.lacking is None:
            return behind, proposal(behind, self._model, self._topology, self._world_size)
        room = with_less_memory(self._topology, replicas)
        return self._with_room(behind, room, least=len(self.mapped))

    def _check_saved(self, plan: ShardingPlan, fused: Mapping[str, Mapping[str, Any]]) -> None:
        """`CapabilityError` where a plan places tables so that the saved homes cannot be."""
        if dense := sorted(self._on_every_rank(plan) & {*self.mapped}):
            raise CapabilityError(
                f"{self._saved} has {listed(dense, kind='table')} in mapped files, but TorchRec's "
                f"own plan has each on every rank, in memory. {AGAIN}"
            )
        if empty := self.empty_somewhere(plan, fused):
            raise CapabilityError(
                f"{self._saved} has {listed(self.mapped, kind='table')} in mapped files, and "
                f"{listed(empty, kind='table')} in memory would have no row on some rank. {AGAIN}"
            )

    def _with_room(
        self, behind: HoldsRowWise, topology: Topology, *, least: int
    ) -> tuple[HoldsRowWise, ShardingPlan]:
        """A planner like the one behind and its plan, with as few tables in mapped files as memory
        allows, but at least `least`; `RecdError` where there is no plan even with all of them
        there.

        Those that the plan has on every rank lie in memory, and it counts them there.
        """
        names = tuple(one.name for one in self._may_leave)

        def attempt(count: int) -> tuple[HoldsRowWise, ShardingPlan]:
            planner = having_in_files(behind, names[:count])
            return planner, proposal(planner, self._model, topology, self._world_size)

        count, found = fewest(attempt, least, len(names))
        dense = self._on_every_rank(found[1])
        self.mapped = tuple(name for name in names[:count] if name not in dense)
        return found

    def _on_every_rank(self, plan: ShardingPlan) -> set[str]:
        shards = planned_shards(plan, model_tables(self._model))
        return {name for name, one in shards.items() if one.kind == "data_parallel"}

    def none_may_leave(self, lacking: RecdError) -> CapabilityError:
        """The error where memory has no room and no table may leave it."""
        return CapabilityError(
            f"{self._slot}: {self._name}: no table may lie in mapped files, for its optimizer, its "
            f"rows per rank, its variable batch, the constraints, {self._options_in}.tables or an "
            "fbgemm older than 1.7. "
            f"{without_advice(lacking)}"
        )

    def empty_somewhere(
        self, plan: ShardingPlan, fused: Mapping[str, Mapping[str, Any]]
    ) -> list[str]:
        """The row-wise tables of a plan in memory whose kernel has no row on some rank; `fused` has
        the optimizer of each. Collections with tables of one name are left out."""
        every, twice = model_tables(self._model), ambiguous(self._model)
        placed = cast("Mapping[str, Mapping[str, Any]]", plan.plan)
        unknown = {path for path, tables in placed.items() if twice & tables.keys()}
        row_wise = row_wise_tables(plan, every).items()
        sizes = {name: one for name, one in row_wise if every[name].module not in unknown}
        return without_rows(sizes, every, self._world_size, self.mapped, fused)

    def in_words(self) -> Iterator[str]:
        """Where each table that may leave memory is at home, and why; nothing where none has left
        it."""
        if self.mapped and self._may_leave:
            cluster = Cluster.of(self._topology, self._world_size)
            yield from homes_in_words(self._may_leave, self.mapped, cluster)


@dataclass(frozen=True, kw_only=True)
class MayLeave:
    """A table that may leave memory."""

    name: str
    size: float
    """Bytes of its rows and of their optimizer states, on all ranks together."""
    touched: float
    """Its different rows that a step of all ranks looks up."""

    def ms(self, cluster: Cluster) -> float:
        """Milliseconds of a step that a mapped file costs a rank, on average."""
        return self.touched / cluster.world_size * cluster.mapped_ns * 1e-6


def may_leave(
    tables: Mapping[str, ModelTable],
    profile: Profile,
    fused: Mapping[str, Mapping[str, Any]],
    *,
    batch_size: int,
    world_size: int,
) -> list[MayLeave]:
    """The tables that may lie in mapped files, the cheapest there first.

    A table that would have no row on some rank may not, since fbgemm looks nothing up in files
    without rows; nor may one whose optimizer (`fused`) mapped files do not support. With an old
    fbgemm none may.
    """
    from recd_plugins.compat.host_buffers import state_width, takes_buffers

    if not takes_buffers():
        return []
    found = []
    for name, table in tables.items():
        own, rows = fused[name], table.num_rows
        if not has_rows_on_all(rows, world_size) or state_width(own) is None:
            continue
        width = table.dim * table.element_bytes + state_bytes(own, table.dim)
        touched = profile[name].appearing(batch_size * world_size)
        found.append(MayLeave(name=name, size=float(rows * width), touched=touched))
    return sorted(found, key=lambda one: (one.touched / one.size, -one.size))


def fewest(attempt: Callable[[int], T], least: int, most: int) -> tuple[int, T]:
    """The smallest number of tables, from `least` to `most`, with which `attempt` raises no
    `RecdError`, and what it returns. Where it always raises, its error with `most`.

    If some are enough, more are too.
    """
    found = attempt(most)
    while least < most:
        middle = (least + most) // 2
        try:
            found, most = attempt(middle), middle
        except RecdError:
            least = middle + 1
    return most, found


def boundless(topology: Topology, memory: Literal["host", "device"] = "host") -> Topology:
    """The topology, with memory of that kind for any table."""
    if memory == "host":
        return dataclasses.replace(topology, host_memory_gb=BOUNDLESS_GB)
    return dataclasses.replace(topology, device_memory_gb=BOUNDLESS_GB)


def with_less_memory(topology: Topology, taken: float) -> Topology:
    """The topology, with `taken` bytes less of a rank's host memory; `RegistryError` where it has
    not so many."""
    from torchrec.distributed.planner.constants import DDR_CAP

    has = topology.host_memory_gb or DDR_CAP / GB
    return dataclasses.replace(topology, host_memory_gb=has - taken / GB)


def homes_in_words(
    tables: Sequence[MayLeave], mapped: Collection[str], cluster: Cluster
) -> Iterator[str]:
    """A line for each table: where it is at home, and what a mapped file costs, or would cost."""
    yield (
        "homes: memory has no room for all tables; those lie in mapped files of which a step looks "
        f"up the fewest different rows a byte, each of which takes {cluster.mapped_ns:,.0f} ns "
        "there (topology.mapped_ns)"
    )
    head = ("table", "home", "size", "rows a step", "of each MiB", "ms a step if mapped")
    rows = [
        (
            one.name,
            "mapped" if one.name in mapped else "memory",
            in_bytes(one.size),
            f"{one.touched:,.0f}",
            f"{one.touched / one.size * 2**20:.3g}",
            f"{one.ms(cluster):.3g}",
        )
        for one in tables
    ]
    yield from aligned([head, *rows])


def without_advice(error: RecdError) -> str:
    """What an error says, without the advice to have tables lie in mapped files."""
    return shortened(error.message) if isinstance(error, CapabilityError) else str(error)

"""What a planner may offer beyond its slot: plans without ranks, tiers, to stand in front of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable

from recd_plugins.errors import RecdError
from recd_plugins.planning.constraints import TableConstraint
from recd_plugins.planning.topology import Topology

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed import ProcessGroup
    from torchrec.distributed.types import ModuleSharder, ShardingPlan

    from recd_plugins.data.batch import Batch
    from recd_plugins.planning.access.access_profile import Profile
    from recd_plugins.planning.explain.plan_report import PlanReport
    from recd_plugins.planning.tier_plan import TierPlan
    from recd_plugins.slots import Loader

__all__ = [
    "HoldsRowWise",
    "OrdersBatches",
    "PlansOthers",
    "Proposes",
    "Retiers",
    "Tiered",
    "from_rank_0",
]


@runtime_checkable
class Proposes(Protocol):
    """Plans for ranks that need not be there: what `recd plan` asks for."""

    def propose(self, model: nn.Module, topology: Topology, world_size: int) -> ShardingPlan:
        """The plan for a number of ranks; `explain` then says why."""


@runtime_checkable
class Retiers(Protocol):
    """Moves replicas while training: what `train.retier_every` asks for."""

    def retier(self, batches: Iterable[Batch], group: ProcessGroup) -> None:
        """Give them to the rows that are hot in these batches, of rank 0; nothing if none has any.

        Every rank calls it between the same batches, with no backward due.
        """


@runtime_checkable
class Tiered(Protocol):
    """Gives rows replicas. All are None before the first plan, and where none has any."""

    @property
    def tier_plan(self) -> TierPlan | None:
        """Which rows, where."""

    @property
    def profile(self) -> Profile | None:
        """How tables are accessed, which it was made from."""

    @property
    def report(self) -> PlanReport | None:
        """What it costs and saves."""


@runtime_checkable
class OrdersBatches(Protocol):
    """Puts the samples of the train split in other batches, by its plan."""

    def order(self, loader: Loader, rank: int, world_size: int) -> Loader:
        """A loader of as many batches of the same samples, or the loader itself.

        It is made before there is a plan, and iterated once there is one, by every rank.
        """


class PlansOthers(Proposes, Protocol):
    """What `HoldsRowWise` makes: it plans all tables, some of them as it was told."""

    def sharders(self) -> list[ModuleSharder[nn.Module]]: ...
    def explain(self) -> str: ...


@runtime_checkable
class HoldsRowWise(Protocol):
    """Leaves some tables to another planner, which puts tiers in front of them."""

    def may_be_row_wise(self, table: str) -> bool:
        """Whether its options allow that, with TorchRec's fused kernel."""

    def row_wise(
        self, tables: Iterable[str], kernels: Mapping[str, TableConstraint] | None = None
    ) -> PlansOthers:
        """A planner like it, for which these tables are so, whatever it would choose; with
        TorchRec's fused kernel, but for those that `kernels` names another for."""


T = TypeVar("T")


def from_rank_0(group: ProcessGroup, make: Callable[[], T]) -> T:
    """What rank 0 makes, on every rank; or its error, for which the others wait as well."""
    from torchrec.distributed.collective_utils import invoke_on_rank_and_broadcast_result

    def attempt() -> T | RecdError:
        try:
            return make()
        except RecdError as error:
            return error

    found: T | RecdError = invoke_on_rank_and_broadcast_result(group, 0, attempt)
    if isinstance(found, RecdError):
        raise found
    return found

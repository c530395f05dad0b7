"""Bases by which a planner declares what it can do beyond its slot.

A method alone declares nothing: a planner with an attribute `order` does not order batches unless
it inherits `OrdersBatches`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from recd_plugins.planning.access.look import LooksAtBatches
from recd_plugins.planning.cluster.topology import Topology
from recd_plugins.planning.constraints import TableConstraint

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed import ProcessGroup
    from torchrec.distributed.types import ModuleSharder, ShardingPlan

    from recd_plugins.data.batch import Batch
    from recd_plugins.notices import Notice
    from recd_plugins.planning.access.access_profile import Profile
    from recd_plugins.planning.explain.plan_report import PlanReport
    from recd_plugins.planning.tier_plans.tier_plan import TierPlan
    from recd_plugins.slots import Context
    from recd_plugins.sparse.own_batches import OwnBatches

__all__ = [
    "RESERVE",
    "HoldsRowWise",
    "OrdersBatches",
    "Proposes",
    "Retiers",
    "TakesContext",
    "Tiered",
]

RESERVE = 0.15
"""The share of an accelerator's memory that TorchRec's own planner keeps from tables."""


class Proposes(ABC):
    """A planner that plans for ranks which need not be there: what `recd plan` asks for."""

    @abstractmethod
    def propose(self, model: nn.Module, topology: Topology, world_size: int) -> ShardingPlan:
        """The plan for a number of ranks; `explain` then says why."""


class Retiers(ABC):
    """A planner that moves replicas while training: what `train.retier_every` asks for."""

    @property
    def begins_empty(self) -> bool:
        """Whether no row has a replica before `retier` is called first; a notice then asks who is
        to call it."""
        return False

    @abstractmethod
    def retier(self, batches: Iterable[Batch], group: ProcessGroup) -> None:
        """Give the replicas to the rows that are hot in these batches, which are rank 0's.

        Every rank calls it between the same batches, with no backward due. Nothing happens where
        no table has replicas.
        """

    def restore_replicas(self, plan: TierPlan) -> bool:
        """Give the replicas to the rows that had them in a `plan` of before, which a checkpoint
        has; whether they have them. By default they have not, and a run says so as it resumes.

        Every rank calls it, before the first batch. A planner that remembers more than its plan
        remembers that no more.
        """
        return False


class Tiered:
    """A planner that gives rows replicas.

    Before the first plan, and where no table has replicas, it has no tier plan, no profile and no
    report.
    """

    tier_plan: TierPlan | None = None
    """The rows that have replicas, and where these are."""
    profile: Profile | None = None
    """The access distributions that the tier plan was made from."""
    report: PlanReport | None = None
    """The costs and the savings of the tier plan."""
    mapped: tuple[str, ...] = ()
    """The tables that lie in mapped files because memory has no room for all: by the prices, those
    that are the cheapest there."""

    @property
    def homes_by_table(self) -> bool:
        """Whether each table has a home of its own, so that no option says where all of them
        are."""
        return True

    @property
    def all_mapped(self) -> bool:
        """Whether all tables lie in mapped files, whatever memory has room for."""
        return False


class TakesContext(ABC):
    """A planner that is given its context again before each plan, with what is known by then.

    A trainer's batches, their size and its optimizer are not known when a planner is built early,
    say by a loader. A planner without this base is built anew for a plan that depends on them.
    """

    @abstractmethod
    def take(self, context: Context) -> None:
        """Plan by its batches, batch size, optimizer and profile; its `others` and neighbours stay
        those that the planner was built with."""


class OrdersBatches(LooksAtBatches, ABC):
    """A planner that puts the samples of the train split into other batches, by its plan."""

    @abstractmethod
    def order(self, loader: Any, rank: int, world_size: int, own: OwnBatches | None = None) -> Any:
        """A loader of as many batches of the same samples, or the loader itself.

        Every rank makes it before there is a plan, and iterates it once there is one. The loader is
        a `Loader` of the host's batches, or a trainer's own loader, whose samples `own` takes out
        of its batches.
        """

    def hot_to_come(self, batches: Sequence[Batch], world_size: int) -> float | None:
        """The share of batches that will be hot by the plan, forecast from some of this rank's as
        the reader delivers them; None where the planner makes no forecast."""
        return None

    def unordered(self) -> Iterable[Notice]:
        """Notices of options that a job which trains without `order` does not use."""
        return ()

    def ordered_in_vain(self, trained: int) -> Iterable[Notice] | None:
        """Notices of where its order gains nothing because the model does not see it, once the
        model was trained on so many batches; None as long as that is not known."""
        return ()


class HoldsRowWise(Proposes):
    """A planner that others may stand in front of: it holds tables row-wise where it is asked to.

    The planner in front puts its tiers before those tables; this one plans all tables.
    """

    @abstractmethod
    def may_be_row_wise(self, table: str) -> bool:
        """Whether its options allow the table to be row-wise with TorchRec's fused kernel."""

    @abstractmethod
    def row_wise(
        self, tables: Iterable[str], kernels: Mapping[str, TableConstraint] | None = None
    ) -> HoldsRowWise:
        """A planner like this one, which places these tables row-wise whatever it would choose.

        They have TorchRec's fused kernel, unless `kernels` names another one.
        """

    @property
    def reserve(self) -> float:
        """The share of an accelerator's memory that it keeps free of tables, for what is not
        counted: activations, CUDA's own, buffers of collectives. A planner in front that fills the
        rest keeps as much free. By default what TorchRec's own planner keeps."""
        return RESERVE

    def in_files(self, tables: Collection[str]) -> HoldsRowWise:
        """A planner like this one that counts no memory for the rows of these tables, since they
        lie in mapped files; by default this one, which counts them anyway."""
        return self

    @abstractmethod
    def sharders(self) -> list[ModuleSharder[nn.Module]]:
        """The trainer's own sharders, or wrappers of them: see `recd_plugins.api.Planner`."""

    @abstractmethod
    def explain(self) -> str:
        """Why the last plan is what it is, in words."""

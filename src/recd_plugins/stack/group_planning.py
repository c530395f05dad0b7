"""The plan that the ranks of a group make together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from recd_plugins.data.dataset import Tables
from recd_plugins.data.schema import Schema
from recd_plugins.planning.access.access_profile import Profile
from recd_plugins.planning.access.trainer_batches import TrainerBatches, trainer_batches
from recd_plugins.planning.cluster.topology import Topology
from recd_plugins.planning.together import meet, planning_by, together
from recd_plugins.registry.feature_steps import FeatureSteps
from recd_plugins.registry.registry import Registry
from recd_plugins.stack.adaptation import Adaptation
from recd_plugins.stack.batch_order import BatchOrder
from recd_plugins.stack.checked_plan import PartsWithoutRows, check_for_torchrec, check_is_plan
from recd_plugins.stack.looked_up import check_read, too_small
from recd_plugins.stack.made_alike import check_made_alike
from recd_plugins.stack.planner import RegistryPlanner
from recd_plugins.stack.usage import Usage

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed import ProcessGroup
    from torchrec.distributed.planner.types import ParameterConstraints
    from torchrec.distributed.types import ShardingPlan

    from recd_plugins.sparse.own_batches import FeaturesOf

__all__ = ["GroupPlanning", "TrainersOwn"]


@dataclass(frozen=True, kw_only=True)
class TrainersOwn:
    """What a trainer hands `stack.plan` of its own."""

    batches: Iterable[Any] | None
    features: FeaturesOf | None
    profile: Profile | Path | str | None
    constraints: Mapping[str, ParameterConstraints]

    def looked_at(self, group: ProcessGroup) -> AbstractContextManager[TrainerBatches]:
        """The batches and the profile, for a plan that is made inside."""
        return trainer_batches(group, self.batches, self.features, self.profile)


class GroupPlanning:
    """Has a registry's planner plan on every rank of a group, from what all ranks bring."""

    def __init__(
        self,
        registry: Registry,
        planning: RegistryPlanner,
        features: FeatureSteps,
        usage: Usage,
        *,
        order: BatchOrder,
        adaptation: Adaptation,
        made: Callable[[], tuple[Tables | None, Schema | None, nn.Module | None]],
    ) -> None:
        """`made` returns the tables, the schema and the model that this rank has made of
        registry.yaml by now."""
        self._registry, self._planning = registry, planning
        self._features, self._usage = features, usage
        self._order, self._adaptation, self._made = order, adaptation, made

    def plan(
        self,
        model: nn.Module,
        on: Topology,
        device: Literal["cpu", "cuda"],
        group: ProcessGroup,
        own: TrainersOwn,
    ) -> ShardingPlan:
        """A plan that TorchRec takes; every rank of the group calls this. Ranks train on `device`,
        unless the topology says another.

        Where a plan has no place for all parts of feature groups that nobody named, their
        collections look up all samples.
        """

        meet(group, "stack.plan")

        def checked() -> ShardingPlan:
            plan = self._planned(model, on, group, own)
            kind = on.device or device
            check_for_torchrec(
                plan, model, self._planning, self._usage, on, device=kind, group=group
            )
            return plan

        try:
            return checked()
        except PartsWithoutRows as error:
            if not self._features.are_advised:
                raise
            self._adaptation.look_up_all_samples(model, error)
            return checked()

    def _planned(
        self,
        model: nn.Module,
        on: Topology,
        group: ProcessGroup,
        own: TrainersOwn,
    ) -> ShardingPlan:
        """The planner's plan, of every rank; all have made the same of registry.yaml for it."""
        planning = self._planning
        with self._order.looking(), own.looked_at(group) as brought:
            given = brought.batches is not None or brought.profile is not None
            if self._registry.has_dataset and not given:
                check_read(model, self._features)
                self._usage.too_small(too_small(model, self._features.schema))
                planning.read_by_registry(group.rank(), group.size())
            else:
                planning.read_by_trainer(brought)
            planning.know(constraints=own.constraints)
            plans: list[ShardingPlan] = []

            def planned() -> int:
                planner = planning.planner_by_now()
                planning.check_has("plan")
                # What a trainer brought is called in it, and an error of that is the trainer's.
                with planning.choice.named("when it planned", trainers=given):
                    plans.append(planner.plan(model, on, group))
                check_is_plan(planning, plans[-1], "plan")
                return 1

            together(group, planned, planning_by(planning.choice.what))
        tables, schema, own_model = self._made()
        check_made_alike(
            self._registry,
            self._features,
            group,
            tables=tables,
            schema=schema,
            model=own_model,
            planned=model,
        )
        return plans[0]

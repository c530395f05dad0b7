"""The order of batches that a planner makes, hot and normal ones, instead of a loader's own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from recd_plugins.errors import CapabilityError, check_made
from recd_plugins.planning.planner_bases import OrdersBatches
from recd_plugins.slots import Loader
from recd_plugins.slots.built import LOADER, check_parts
from recd_plugins.stack.planner import RegistryPlanner
from recd_plugins.stack.usage import Usage

if TYPE_CHECKING:
    from recd_plugins.sparse.own_batches import FeaturesOf, Select

__all__ = ["BatchOrder"]


class BatchOrder:
    """Has a registry's planner put batches in order, and warns where there is no plan for that."""

    def __init__(self, planning: RegistryPlanner, usage: Usage) -> None:
        self._planning, self._usage = planning, usage
        self._looks = False
        self.ordered = False
        """Whether the registry's own batches come in an order of the planner's."""

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Batches that are asked for inside are looked at, not trained."""
        self._looks = True
        try:
            yield
        finally:
            self._looks = False

    def of_registry(self, loader: Loader, rank: int, world_size: int) -> Loader:
        """The registry's own batches in the planner's order, if it has one."""
        planner, planning = self._planning.planner(), self._planning
        if not isinstance(planner, OrdersBatches):
            return loader
        self._usage.asked("order")
        with planning.choice.named("when it ordered batches"):
            ordered: Loader = planner.order(loader, rank, world_size)
        check_parts(ordered, "Loader", LOADER, f"{planning.choice.who}: its `order` returned")
        self.ordered = ordered is not loader
        if self.ordered and not planning.planned:
            return cast("Loader", self._warning_without_plan(ordered, "stack.loader(...)"))
        return ordered

    def of_trainer(
        self,
        loader: Iterable[Any],
        rank: int | None,
        world_size: int | None,
        features: FeaturesOf | None,
        select: Select | None,
    ) -> Any:
        """A trainer's own batches in the planner's order; its loader itself where that has none."""
        planner, planning = self._planning.planner(), self._planning
        if not isinstance(planner, OrdersBatches):
            return loader
        import torch.distributed as dist

        from recd_plugins.sparse.own_batches import OwnBatches

        group = self._usage.group
        if rank is None or world_size is None:
            joined = dist.is_available() and dist.is_initialized()
            rank = dist.get_rank(group) if joined else 0
            world_size = dist.get_world_size(group) if joined else 1
        self._usage.asked("order")
        asked = "stack.order(loader)"
        given = loader if planning.planned else self._warning_without_plan(loader, asked)
        own = OwnBatches(features=features, select=select)
        with planning.choice.named("when it ordered batches", trainers=True):
            ordered = planner.order(given, rank, world_size, own)
        if ordered is given:
            return loader
        whose = f"{planning.choice.who}: its `order` returned"
        check_made(ordered, Iterable, whose, "Return a loader, or the one that it was given.")
        return ordered

    def check_none(self, loader: Loader, rank: int, world_size: int) -> None:
        """`CapabilityError` where the planner would put these batches of periods in order."""
        planner = self._planning.planner()
        if (
            isinstance(planner, OrdersBatches)
            and planner.order(loader, rank, world_size) is not loader
        ):
            raise CapabilityError(
                f"{self._planning.choice.where}: {type(planner).__name__} puts the batches of an "
                "epoch into an order of its own, but a dataset that grows has no such epochs. "
                "Switch that off (`cache.hot_batches: false`)."
            )

    def _warning_without_plan(self, loader: Iterable[Any], asked: str) -> Iterable[Any]:
        """The loader, with a warning where batches are trained before there is a plan to order
        them."""
        from recd_plugins.data.preprocess.conversion import ConvertedLoader

        def warn(batch: Any) -> Any:
            if not (self._planning.planned or self._looks):
                self._usage.unused(
                    self._planning.choice,
                    f"batches are asked of {asked} before there is a plan, so that all come as the "
                    "loader has them",
                    "Call `plan = stack.plan(model, ...)` before the first is asked for.",
                )
            return batch

        return ConvertedLoader(loader, warn)

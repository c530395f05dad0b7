"""The sharders that a trainer hands to DistributedModelParallel, by the plan that was made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from recd_plugins.planning.planner_bases import Tiered
from recd_plugins.registry.feature_steps import FeatureSteps
from recd_plugins.registry.registry import Registry
from recd_plugins.stack.adaptation import Adaptation
from recd_plugins.stack.planned_exchanges import PlannedExchanges
from recd_plugins.stack.planner import RegistryPlanner
from recd_plugins.stack.usage import Usage
from recd_plugins.stack.watched_models import WatchedModels

if TYPE_CHECKING:
    from torch import nn
    from torchrec.distributed.types import ModuleSharder

__all__ = ["HandedSharders"]


class HandedSharders:
    """Wraps the planner's sharders by what else a registry does to the modules that they shard."""

    def __init__(
        self,
        registry: Registry,
        planning: RegistryPlanner,
        features: FeatureSteps,
        usage: Usage,
        *,
        adaptation: Adaptation,
        exchanges: PlannedExchanges,
        watched: WatchedModels,
    ) -> None:
        self._registry, self._planning = registry, planning
        self._features, self._usage = features, usage
        self._adaptation, self._exchanges, self._watched = adaptation, exchanges, watched

    def of_plan(self, device: Literal["cpu", "cuda"]) -> list[ModuleSharder[nn.Module]]:
        """The sharders for training on this device; notices where they are not those of a plan, or
        not for the model that trains."""
        sharders = self._planning.sharders_of_plan()
        self._check_ready()
        if self._features.groups:
            sharders = self._adaptation.with_dedup(sharders)
        if self._registry.train.bags_of_one and device == "cpu":
            from recd_plugins.embedding.bags_of_one import with_bags_of_one

            sharders = with_bags_of_one(sharders, self._exchanges.rows)
        return self._fitted(sharders)

    def _check_ready(self) -> None:
        """Give notices where there is no plan, where the model that was planned is gone, and where
        it takes no unique samples."""
        planner, choice = self._planning.planner(), self._planning.choice
        named = isinstance(planner, Tiered) or choice.record.slot in self._registry.source.values
        if named and not self._planning.planned:
            self._usage.unused(
                choice,
                "stack.sharders() was asked before there is a plan",
                "Call `plan = stack.plan(model, ...)` first.",
            )
        if self._planning.model_is_gone:
            self._usage.planned_a_copy()
        if self._features.groups and not self._adaptation.explained:
            self._usage.unused(
                self._registry.one("dedup"),
                "the model is not adapted, so it takes no unique samples",
                "Write `model = stack.adapt(model)` before stack.plan, or take `dedup` out.",
            )

    def _fitted(self, sharders: list[ModuleSharder[nn.Module]]) -> list[ModuleSharder[nn.Module]]:
        """The sharders, wrapped where TorchRec's modules would be wrong for the model, and where
        one takes the model's own place, which is watched."""
        from recd_plugins.embedding.corrected_sharders import with_means, with_own_features

        model = self._planning.model
        if self._planning.model_is_gone:
            return with_means(with_own_features(sharders), None)
        if model is None:
            model = self._features.model  # one that the trainer plans itself
        if model is None:
            return sharders
        sharders = with_means(with_own_features(sharders), model)
        return self._watched.watched_sharders(model, sharders)

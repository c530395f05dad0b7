"""A trainer's models are made to take unique samples; what was done to them, and why, in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal

from recd_plugins.errors import listed
from recd_plugins.notices import Missed
from recd_plugins.registry.feature_steps import FeatureSteps
from recd_plugins.registry.registry import Registry
from recd_plugins.stack.usage import Usage

if TYPE_CHECKING:
    from torch import nn
    from torchrec.distributed.types import ModuleSharder, ShardingPlan

    from recd_plugins.stack.checked_plan import PartsWithoutRows

__all__ = ["Adaptation"]


class Adaptation:
    """Adapts the models of a trainer to the unique samples of a registry's `dedup`."""

    def __init__(self, registry: Registry, features: FeatureSteps, usage: Usage) -> None:
        self._registry, self._features, self._usage = registry, features, usage
        self.explained = ""
        """What was done to the last model, and why; "" where none is adapted."""
        self._has_sharders = False
        """Whether the trainer has asked for sharders that take adapted collections."""

    def adapt(
        self,
        model: nn.Module,
        poolings: Sequence[str],
        *,
        pool_unique: bool,
        route: Literal["padded", "vbe"],
        own_batches: bool,
    ) -> None:
        """Change a model in place so that it takes unique samples, where there are any."""
        from recd_plugins.embedding.adapt import adapt, explain, not_looked_up

        steps = self._features
        adapt(
            model,
            steps.groups,
            poolings=poolings,
            unique_shares=steps.unique_shares,
            pool_unique=pool_unique,
            route=route,
            own_batches=own_batches,
        )
        self.explained = explain(model)
        if lost := not_looked_up(model, steps.groups):
            self._usage.unused(
                self._registry.one("dedup"),
                f"no collection of the model looks up {lost} on unique samples",
                "Name features in dedup.groups that an EmbeddingCollection or an "
                "EmbeddingBagCollection of the model looks up.",
            )

    def look_up_all_samples(self, model: nn.Module, error: PartsWithoutRows) -> None:
        """Have collections look up all samples whose parts a plan has no place for."""
        from recd_plugins.embedding.adapt import explain, look_up_all_samples

        look_up_all_samples(model, error.modules, f"on unique samples {error.why}")
        self.explained = explain(model)
        choice = self._registry.one("dedup")
        missed = Missed(
            what=choice.what,
            why=f"collection {listed(sorted(error.modules))} looks up all samples, for on unique "
            f"samples {error.why}",
            cure="Have your sharder and constraints allow table_wise for small tables, too, or "
            "take their features into `dedup.groups` together with those of larger ones.",
        )
        self._usage.found([missed])

    def with_dedup(
        self, sharders: Iterable[ModuleSharder[nn.Module]]
    ) -> list[ModuleSharder[nn.Module]]:
        """The sharders, and those of adapted collections, for the trainer."""
        from recd_plugins.embedding.sharded import with_dedup

        self._has_sharders = True
        return with_dedup(sharders)

    def refusing_others(self, plan: ShardingPlan, model: nn.Module) -> ShardingPlan:
        """The plan of a model, which refuses sharders without those of adapted collections, if the
        model has any."""
        if not self.explained:
            return plan
        from recd_plugins.embedding.adapted_plan import AdaptedPlan

        return AdaptedPlan.of(plan, model, lambda: self._has_sharders)

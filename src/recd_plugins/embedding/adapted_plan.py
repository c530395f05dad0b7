"""The plan of a model that was adapted to unique samples, which says who can shard by it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Self

from torch import nn
from torchrec.distributed.types import ModuleShardingPlan, ShardingPlan

from recd_plugins.embedding.adapt import DEDUP_COLLECTIONS
from recd_plugins.errors import CapabilityError, listed

__all__ = ["AdaptedPlan"]


class AdaptedPlan(ShardingPlan):
    """A plan that refuses to be carried out without the sharders that take adapted collections:
    TorchRec looks a module's sharder up by its class, and has a bare KeyError for these.

    Copies and pickles of it are TorchRec's own ShardingPlan.
    """

    _collections: Collection[str] = ()
    """The paths of the adapted collections."""
    _has_sharders: Callable[[], bool] = bool

    @classmethod
    def of(cls, plan: ShardingPlan, model: nn.Module, has_sharders: Callable[[], bool]) -> Self:
        """The plan of an adapted model; `has_sharders()` says whether somebody has asked for the
        sharders by then."""
        made = cls(plan.plan)  # the same mapping: a trainer may write plans of its own into it
        modules = model.named_modules(remove_duplicate=False)
        made._collections = {path for path, one in modules if isinstance(one, DEDUP_COLLECTIONS)}
        made._has_sharders = has_sharders
        return made

    def get_plan_for_module(self, module_path: str) -> ModuleShardingPlan | None:
        found: ModuleShardingPlan | None = super().get_plan_for_module(module_path)
        if found and module_path in self._collections and not self._has_sharders():
            names = listed(path or "the model" for path in sorted(self._collections))
            raise CapabilityError(
                f"stack.plan: unique samples are looked up in {names} since stack.adapt, and "
                "TorchRec's own sharders know no such collection. Write "
                "`DistributedModelParallel(model, plan=plan, sharders=stack.sharders())`, or "
                "`stack.sharders(mine)` of sharders of yours; or take `dedup` out of registry.yaml."
            )
        return found

    def __reduce__(self) -> tuple[type[ShardingPlan], tuple[object]]:
        return ShardingPlan, (self.plan,)

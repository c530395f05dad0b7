"""An EmbeddingBagCollection with tiers: TorchRec sums the rows that miss, at home.

It sends each rank the sums of all its bags from every other rank: U · B · D numbers for a feature,
however few different rows the bags hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDict
from torchrec.distributed.embedding_sharding import KJTListSplitsAwaitable
from torchrec.distributed.embeddingbag import (
    EmbeddingBagCollectionContext,
    ShardedEmbeddingBagCollection,
)
from torchrec.distributed.types import LazyAwaitable, LazyNoWait, ParameterSharding, ShardingEnv
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor
from torchrec.sparse.tensor_dict import maybe_td_to_kjt

from recd_plugins.compat.mean_division import SUMMED_IN_PARTS, leave_means
from recd_plugins.compat.torchrec import pooled_columns
from recd_plugins.embedding.input_check import InputCheck
from recd_plugins.errors import RegistryError
from recd_plugins.planning.tier_plans.tier_plan import CHUNK_ROWS, TierPlan
from recd_plugins.tiers.collections.bag_sums_output import PackedBags, SumsAwaitable
from recd_plugins.tiers.collections.group_bags import Divisor, divisors_of
from recd_plugins.tiers.collections.tiered_module import TierContext, TieredModule
from recd_plugins.tiers.peers import Nodes
from recd_plugins.tiers.routed_batch import RoutedBatch
from recd_plugins.tiers.tables import is_coalesced
from recd_plugins.tiers.tiers import Tiers

__all__ = ["TierBagContext", "TierEmbeddingBagCollection", "summed_in_parts"]


@dataclass
class TierBagContext(TierContext, EmbeddingBagCollectionContext):
    """TorchRec's context of a batch, and the batch as it is routed."""

    packed: PackedBags | None = None

    def record_stream(self, stream: torch.Stream) -> None:
        super().record_stream(stream)
        if self.packed is not None:
            self.packed.record_stream(stream)


class TierEmbeddingBagCollection(TieredModule, ShardedEmbeddingBagCollection):
    """TorchRec's module sums the rows of ids that miss, over those bags that have such ids."""

    def __init__(
        self,
        module: EmbeddingBagCollection,
        parameters: Mapping[str, ParameterSharding],
        env: ShardingEnv,
        *,
        plan: TierPlan,
        nodes: Nodes,
        chunk_rows: int = CHUNK_ROWS,
        divisors: Mapping[str, Divisor] | None = None,
        **options: Any,
    ) -> None:
        """`options` are those of TorchRec's module. `divisors` are those of the tables' sums, by
        default as if these tables were their whole collection."""
        super().__init__(module, dict(parameters), env, **options)
        configs, shardings = module.embedding_bag_configs(), self.module_sharding_plan
        for config in configs:
            if is_coalesced(plan, config.name):
                raise RegistryError(
                    f"tier plan of table {config.name!r}: coalesce is "
                    f"{plan.tables[config.name].coalesce}, but the table is pooled, so sums travel "
                    "instead of rows. Set coalesce to none."
                )
        self.put_in_front(Tiers(self, configs, plan, nodes, chunk_rows))
        self._check = InputCheck(configs)
        if divisors is None:
            divisors = divisors_of(configs, summed_in_parts(shardings))
        self._divisors = [divisors.get(feature.table) for feature in self.tiers.features]
        leave_means(self)

    def create_context(self) -> TierBagContext:
        return TierBagContext()

    def input_dist(
        self, ctx: TierBagContext, features: KeyedJaggedTensor | TensorDict
    ) -> KJTListSplitsAwaitable[TierBagContext]:
        features = maybe_td_to_kjt(features)
        self._check.first(features)
        return super().input_dist(ctx, features)

    def _send_home(self, ctx: TierBagContext, batch: RoutedBatch) -> Sequence[Any]:
        if batch.hot:
            ctx.packed = PackedBags.none(batch.lengths)
            return []
        packed = ctx.packed = PackedBags.of(batch.missed_lengths(), self.tiers.nodes.world)
        return [*self._exchange(ctx, self._missed(batch, packed)).awaitables]

    def _missed(self, batch: RoutedBatch, packed: PackedBags) -> KeyedJaggedTensor:
        """The ids that miss, in bags packed to the front."""
        missed = batch.missed
        return KeyedJaggedTensor(
            keys=[feature.name for feature in self.tiers.features],
            values=batch.ids[missed].to(batch.given.dtype),
            weights=None if batch.weights is None else batch.weights[missed],
            lengths=packed.lengths.flatten(),
            stride=packed.stride,
        )

    def _nothing_from_home(self) -> LazyAwaitable[KeyedTensor]:
        keys, widths = pooled_columns(self)
        none = self.tiers.no_rows(sum(widths))
        return LazyNoWait(KeyedTensor(keys=keys, length_per_key=widths, values=none))

    def _joined(
        self, ctx: TierBagContext, home: LazyAwaitable[KeyedTensor]
    ) -> LazyAwaitable[KeyedTensor]:
        assert ctx.update is not None
        assert ctx.packed is not None
        return SumsAwaitable(self.tiers, ctx.update, ctx.packed, home, self._divisors)


def summed_in_parts(shardings: Mapping[str, ParameterSharding]) -> set[str]:
    """The tables whose bags are summed in parts on several ranks, as those of grids are."""
    return {name for name, one in shardings.items() if one.sharding_type in SUMMED_IN_PARTS}

"""An EmbeddingBagCollection that TorchRec sharded, with tiers in front of its tables."""

from __future__ import annotations

from collections.abc import Mapping
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
from torchrec.modules.embedding_configs import PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor
from torchrec.sparse.tensor_dict import maybe_td_to_kjt

from recd_plugins.compat.torchrec import leave_means, pooled_columns
from recd_plugins.embedding.input_check import InputCheck
from recd_plugins.errors import RegistryError
from recd_plugins.planning.tier_plan import TierPlan
from recd_plugins.tiers.bags import PackedBags, SumsAwaitable
from recd_plugins.tiers.places import Nodes
from recd_plugins.tiers.routed_batch import RoutedBatch
from recd_plugins.tiers.tiered_module import TierContext, TieredModule
from recd_plugins.tiers.tiers import CHUNK_ROWS, Tiers

__all__ = ["TierBagContext", "TierEmbeddingBagCollection"]


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
        **options: Any,
    ) -> None:
        """`options` are those of TorchRec's module."""
        super().__init__(module, dict(parameters), env, **options)
        configs, shardings = module.embedding_bag_configs(), self.module_sharding_plan
        for config in configs:
            if config.name in plan.tables and plan.tables[config.name].coalesce != "none":
                raise RegistryError(
                    f"tier plan of table {config.name!r}: coalesce is "
                    f"{plan.tables[config.name].coalesce}, but the table is pooled: not its rows "
                    "but their sums travel. Set coalesce to none."
                )
        self.put_in_front(Tiers(self, configs, plan, nodes, chunk_rows))
        self._check = InputCheck(configs)
        means = {
            config.name
            for config in configs
            if config.pooling is PoolingType.MEAN
            and shardings[config.name].sharding_type in ("row_wise", "table_row_wise")
        }
        self._divides = [feature.table in means for feature in self.tiers.features]
        leave_means(self)

    def create_context(self) -> TierBagContext:
        return TierBagContext()

    def input_dist(
        self, ctx: TierBagContext, features: KeyedJaggedTensor | TensorDict
    ) -> KJTListSplitsAwaitable[TierBagContext]:
        """Route the ids, send those that miss on TorchRec's way, and ask the node for others.

        A hot batch has none that miss, on no rank: TorchRec exchanges nothing.
        """
        home: list[Any] = []
        features = maybe_td_to_kjt(features)
        self._check.first(features)
        with torch.no_grad():
            batch = ctx.batch = self.tiers.route(features)
            if batch.hot:
                ctx.packed = PackedBags.none(batch.lengths)
            else:
                packed = ctx.packed = PackedBags.of(batch.missed_lengths(), self.tiers.nodes.world)
                home = super().input_dist(ctx, self._missed(batch, packed)).awaitables
            requests = self.tiers.requests(batch)
        return KJTListSplitsAwaitable([*home, *requests], ctx)

    def _missed(self, batch: RoutedBatch, packed: PackedBags) -> KeyedJaggedTensor:
        """The ids that miss, in bags packed to the front."""
        missed = batch.missed()
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

    def _with_tiers(
        self, ctx: TierBagContext, home: LazyAwaitable[KeyedTensor]
    ) -> LazyAwaitable[KeyedTensor]:
        assert ctx.update is not None
        assert ctx.packed is not None
        return SumsAwaitable(self.tiers, ctx.update, ctx.packed, home, self._divides)

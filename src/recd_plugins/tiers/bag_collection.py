"""An EmbeddingBagCollection that TorchRec sharded, with replicas of its hot rows in front."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torchrec.distributed.embedding_sharding import KJTListSplitsAwaitable
from torchrec.distributed.embedding_types import KJTList
from torchrec.distributed.embeddingbag import (
    EmbeddingBagCollectionContext,
    ShardedEmbeddingBagCollection,
)
from torchrec.distributed.types import LazyAwaitable, LazyNoWait, ParameterSharding, ShardingEnv
from torchrec.modules.embedding_configs import PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.optim.keyed import KeyedOptimizer
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor

from recd_plugins.compat.torchrec import leave_means, pooled_columns
from recd_plugins.errors import RegistryError
from recd_plugins.planning.tier_plan import TierPlan
from recd_plugins.tiers.nodes import Nodes
from recd_plugins.tiers.rows.bag_awaitable import BagsAwaitable
from recd_plugins.tiers.rows.packing import PackedBags
from recd_plugins.tiers.tiers import CHUNK_ROWS, Tiers
from recd_plugins.tiers.trip import RoutedBatch
from recd_plugins.tiers.updates.update import Update

__all__ = ["TierBagContext", "TierEmbeddingBagCollection"]


@dataclass
class TierBagContext(EmbeddingBagCollectionContext):
    """TorchRec's context of a batch, and its trip through the tiers."""

    trip: RoutedBatch | None = None
    packed: PackedBags | None = None
    update: Update | None = None

    @property
    def is_hot(self) -> bool:
        return self.trip is not None and self.trip.hot

    def record_stream(self, stream: torch.Stream) -> None:
        super().record_stream(stream)
        if self.trip is not None:
            self.trip.record_stream(stream)
        if self.packed is not None:
            self.packed.record_stream(stream)


class TierEmbeddingBagCollection(ShardedEmbeddingBagCollection):
    """TorchRec's module sums the rows that no tier has, over those bags that have such rows.

    Parameters, state dict and optimizer are TorchRec's: those of the canonical tables. Every
    rank must call `state_dict`, as for a checkpoint, for then the replicas bring rows home.
    """

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
        configs = module.embedding_bag_configs()
        for config in configs:
            if config.name in plan.tables and plan.tables[config.name].coalesce != "none":
                raise RegistryError(
                    f"tier plan of table {config.name!r}: coalesce is "
                    f"{plan.tables[config.name].coalesce}, but the table is pooled: not its rows "
                    "but their sums travel. Set coalesce to none."
                )
        shardings = self.module_sharding_plan
        self.tiers = Tiers(self, configs, self._optim, shardings, plan, nodes, chunk_rows)
        means = {
            config.name
            for config in configs
            if config.pooling is PoolingType.MEAN
            and shardings[config.name].sharding_type in ("row_wise", "table_row_wise")
        }
        self._divides = [slot.table in means for slot in self.tiers.slots]
        leave_means(self)
        self.register_state_dict_pre_hook(lambda *_: self.tiers.flush())
        self.register_load_state_dict_pre_hook(lambda *_: self.tiers.flush())

    @property
    def fused_optimizer(self) -> KeyedOptimizer:
        return self.tiers.optimizer

    def create_context(self) -> TierBagContext:
        return TierBagContext()

    def input_dist(
        self, ctx: TierBagContext, features: KeyedJaggedTensor
    ) -> KJTListSplitsAwaitable[TierBagContext]:
        """Route the ids, and send those that pass on TorchRec's way, the others' in the node.

        A hot batch has none that pass, on no rank: TorchRec exchanges nothing.
        """
        canonical = []
        with torch.no_grad():
            trip = ctx.trip = self.tiers.depart(features)
            if trip.hot:
                ctx.packed = PackedBags.none(trip.lengths)
            else:
                ctx.packed = PackedBags.of(trip.passing_lengths(), self.tiers.nodes.world)
                canonical = super().input_dist(ctx, self._passing(trip, ctx.packed)).awaitables
            in_node = self.tiers.requests(trip)
        return KJTListSplitsAwaitable([*canonical, *in_node], ctx)

    def compute(self, ctx: TierBagContext, dist_input: KJTList) -> list[Tensor]:
        canonical = self._arrive(ctx, dist_input)
        if ctx.is_hot:
            return []
        sums: list[Tensor] = super().compute(ctx, canonical)
        return sums

    def output_dist(self, ctx: TierBagContext, output: list[Tensor]) -> LazyAwaitable[KeyedTensor]:
        if ctx.is_hot:
            return self._added(ctx, self._no_sums())
        return self._added(ctx, super().output_dist(ctx, output))

    def compute_and_output_dist(
        self, ctx: TierBagContext, input: KJTList
    ) -> LazyAwaitable[KeyedTensor]:
        """Answer the node first: its rows travel while TorchRec looks up its own."""
        canonical = self._arrive(ctx, input)
        if ctx.is_hot:
            return self._added(ctx, self._no_sums())
        return self._added(ctx, super().compute_and_output_dist(ctx, canonical))

    def _passing(self, trip: RoutedBatch, packed: PackedBags) -> KeyedJaggedTensor:
        """The ids that pass, in bags packed to the front."""
        passed = trip.passing()
        return KeyedJaggedTensor(
            keys=[slot.name for slot in self.tiers.slots],
            values=trip.ids[passed],
            weights=None if trip.weights is None else trip.weights[passed],
            lengths=packed.lengths.flatten(),
            stride=packed.stride,
        )

    def _arrive(self, ctx: TierBagContext, input: KJTList) -> KJTList:
        """What TorchRec exchanged; what the node asked is answered."""
        assert ctx.trip is not None
        count = len(ctx.sharding_contexts)
        ctx.update = self.tiers.arrive(ctx.trip, input.features[count:])
        return KJTList(input.features[:count])

    def _no_sums(self) -> LazyAwaitable[KeyedTensor]:
        """What TorchRec would yield of no bag."""
        keys, widths = pooled_columns(self)
        none = torch.empty(0, sum(widths), dtype=self.tiers.output_type, device=self._device)
        return LazyNoWait(KeyedTensor(keys=keys, length_per_key=widths, values=none))

    def _added(self, ctx: TierBagContext, canonical: LazyAwaitable[KeyedTensor]) -> BagsAwaitable:
        assert ctx.update is not None
        assert ctx.packed is not None
        return BagsAwaitable(self.tiers, ctx.update, ctx.packed, canonical, self._divides)

"""An EmbeddingCollection that TorchRec sharded, with replicas of its hot rows in front."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torchrec.distributed.embedding import EmbeddingCollectionContext, ShardedEmbeddingCollection
from torchrec.distributed.embedding_sharding import KJTListSplitsAwaitable
from torchrec.distributed.embedding_types import KJTList
from torchrec.distributed.sharding.sequence_sharding import SequenceShardingContext
from torchrec.distributed.types import LazyAwaitable, LazyNoWait, ParameterSharding, ShardingEnv
from torchrec.modules.embedding_modules import EmbeddingCollection
from torchrec.optim.keyed import KeyedOptimizer
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor

from recd_plugins.planning.tier_plan import TierPlan
from recd_plugins.tiers.ids.departure import DeferredExchange, DeferredSplits
from recd_plugins.tiers.nodes import Nodes
from recd_plugins.tiers.rows.awaitable import SequencesAwaitable
from recd_plugins.tiers.tiers import CHUNK_ROWS, Tiers
from recd_plugins.tiers.trip import RoutedBatch
from recd_plugins.tiers.updates.update import Update

__all__ = ["TierEmbeddingCollection", "TierSequenceContext"]


@dataclass
class TierSequenceContext(EmbeddingCollectionContext):
    """TorchRec's context of a batch, and its trip through the tiers."""

    trip: RoutedBatch | None = None
    update: Update | None = None

    @property
    def is_hot(self) -> bool:
        return self.trip is not None and self.trip.hot

    def record_stream(self, stream: torch.Stream) -> None:
        super().record_stream(stream)
        if self.trip is not None:
            self.trip.record_stream(stream)


class TierEmbeddingCollection(ShardedEmbeddingCollection):
    """TorchRec's module, to which only those ids go that no tier has.

    Parameters, state dict and optimizer are TorchRec's: those of the canonical tables. Every
    rank must call `state_dict`, as for a checkpoint, for then the replicas bring rows home.
    """

    def __init__(
        self,
        module: EmbeddingCollection,
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
        self._width = module.embedding_dim()
        self.tiers = Tiers(
            self,
            module.embedding_configs(),
            self._optim,
            self.module_sharding_plan,
            plan,
            nodes,
            chunk_rows,
        )
        self.register_state_dict_pre_hook(lambda *_: self.tiers.flush())
        self.register_load_state_dict_pre_hook(lambda *_: self.tiers.flush())

    @property
    def fused_optimizer(self) -> KeyedOptimizer:
        return self.tiers.optimizer

    def create_context(self) -> TierSequenceContext:
        return TierSequenceContext()

    def input_dist(
        self, ctx: TierSequenceContext, features: KeyedJaggedTensor
    ) -> KJTListSplitsAwaitable[TierSequenceContext]:
        """Route the ids, and send those that pass on TorchRec's way, the others' in the node.

        A hot batch has none that pass, on no rank: TorchRec exchanges nothing.
        """
        canonical: list[Any] = []
        with torch.no_grad():
            trip = ctx.trip = self.tiers.depart(features)
            if trip.known:
                canonical = [] if trip.hot else self._send(ctx).awaitables
            else:
                canonical = self._depart(ctx)
            in_node = self.tiers.requests(trip)
        return KJTListSplitsAwaitable([*canonical, *in_node], ctx)

    def compute(self, ctx: TierSequenceContext, dist_input: KJTList) -> list[Tensor]:
        canonical = self._arrive(ctx, dist_input)
        if ctx.is_hot:
            return []
        rows: list[Tensor] = super().compute(ctx, canonical)
        return rows

    def output_dist(
        self, ctx: TierSequenceContext, output: list[Tensor]
    ) -> LazyAwaitable[dict[str, JaggedTensor]]:
        if ctx.is_hot:
            return self._merged(ctx, self._no_rows())
        return self._merged(ctx, super().output_dist(ctx, output))

    def compute_and_output_dist(
        self, ctx: TierSequenceContext, input: KJTList
    ) -> LazyAwaitable[dict[str, JaggedTensor]]:
        """Answer the node first: its rows travel while TorchRec looks up its own."""
        canonical = self._arrive(ctx, input)
        if ctx.is_hot:
            return self._merged(ctx, self._no_rows())
        return self._merged(ctx, super().compute_and_output_dist(ctx, canonical))

    def _depart(self, ctx: TierSequenceContext) -> list[DeferredSplits]:
        """What `_send` will exchange, once the node has said which ids pass.

        TorchRec's contexts are there from now on, for whoever joins those of several modules.
        """
        assert ctx.trip is not None
        count = len(self._input_dists)
        promised = [SequenceShardingContext() for _ in range(count)]

        def send() -> KJTListSplitsAwaitable[TierSequenceContext]:
            ctx.sharding_contexts = []
            request = self._send(ctx)
            for later, known in zip(promised, ctx.sharding_contexts, strict=True):
                vars(later).update(vars(known))
            ctx.sharding_contexts = promised
            return request

        ctx.sharding_contexts = promised
        departure = DeferredExchange([group.passing for group in ctx.trip.groups], send)
        self.tiers.follow(departure)
        return [DeferredSplits(departure, number) for number in range(count)]

    def _send(self, ctx: TierSequenceContext) -> KJTListSplitsAwaitable[TierSequenceContext]:
        """Have TorchRec exchange the ids that pass."""
        assert ctx.trip is not None
        request: Any = super().input_dist(ctx, self._passing(ctx.trip))
        return cast("KJTListSplitsAwaitable[TierSequenceContext]", request)

    def _passing(self, trip: RoutedBatch) -> KeyedJaggedTensor:
        """The ids that pass, as one sample with many ids: whose they are stays here."""
        parts = [group.passage for group in trip.groups]
        lengths = [length for part in parts for length in part.lengths]
        lengths += trip.length_per_feature[len(lengths) :]
        return KeyedJaggedTensor(
            keys=[slot.name for slot in self.tiers.slots],
            values=torch.cat([*(part.ids for part in parts), trip.ids[trip.num_tiered :]]),
            lengths=torch.tensor(lengths, dtype=torch.int32, device=trip.ids.device),
            stride=1,
            length_per_key=lengths,
        )

    def _arrive(self, ctx: TierSequenceContext, input: KJTList) -> KJTList:
        """What TorchRec exchanged; what the node asked is answered."""
        assert ctx.trip is not None
        count = len(ctx.sharding_contexts)
        ctx.update = self.tiers.arrive(ctx.trip, input.features[count:])
        return KJTList(input.features[:count])

    def _no_rows(self) -> LazyAwaitable[dict[str, JaggedTensor]]:
        """What TorchRec would yield of no id."""
        none = torch.empty(0, self._width, dtype=self.tiers.output_type, device=self._device)
        lengths = torch.empty(0, dtype=torch.int32, device=self._device)
        return LazyNoWait({s.name: JaggedTensor(none, lengths=lengths) for s in self.tiers.slots})

    def _merged(
        self, ctx: TierSequenceContext, canonical: LazyAwaitable[dict[str, JaggedTensor]]
    ) -> LazyAwaitable[Any]:
        assert ctx.update is not None
        self.tiers.advance()
        return SequencesAwaitable(self.tiers, ctx.update, canonical, self._need_indices)

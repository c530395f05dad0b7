"""An EmbeddingCollection that TorchRec sharded, with tiers in front of its tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from tensordict import TensorDict
from torchrec.distributed.embedding import EmbeddingCollectionContext, ShardedEmbeddingCollection
from torchrec.distributed.embedding_sharding import KJTListSplitsAwaitable
from torchrec.distributed.sharding.sequence_sharding import SequenceShardingContext
from torchrec.distributed.types import LazyAwaitable, LazyNoWait, ParameterSharding, ShardingEnv
from torchrec.modules.embedding_modules import EmbeddingCollection
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor
from torchrec.sparse.tensor_dict import maybe_td_to_kjt

from recd_plugins.compat.torchrec import exchanges_of, yields_ids
from recd_plugins.planning.tier_plan import TierPlan
from recd_plugins.sparse.rows.memory import numbers_on
from recd_plugins.tiers.exchange import DeferredExchange, DeferredSplits
from recd_plugins.tiers.places import Nodes
from recd_plugins.tiers.routed_batch import RoutedBatch
from recd_plugins.tiers.rows import SequencesAwaitable
from recd_plugins.tiers.tiered_module import TierContext, TieredModule
from recd_plugins.tiers.tiers import CHUNK_ROWS, Tiers

__all__ = ["TierEmbeddingCollection", "TierSequenceContext"]


@dataclass
class TierSequenceContext(TierContext, EmbeddingCollectionContext):
    """TorchRec's context of a batch, and the batch as it is routed."""


class TierEmbeddingCollection(TieredModule, ShardedEmbeddingCollection):
    """TorchRec's module looks up the rows of the ids that miss; the others' come from the tiers."""

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
        self.put_in_front(Tiers(self, module.embedding_configs(), plan, nodes, chunk_rows))

    def create_context(self) -> TierSequenceContext:
        return TierSequenceContext()

    def input_dist(
        self, ctx: TierSequenceContext, features: KeyedJaggedTensor | TensorDict
    ) -> KJTListSplitsAwaitable[TierSequenceContext]:
        """Route the ids, send those that miss on TorchRec's way, and ask the node for others.

        A hot batch has none that miss, on no rank: TorchRec exchanges nothing.
        """
        home: list[Any] = []
        features = maybe_td_to_kjt(features)
        with torch.no_grad():
            batch = ctx.batch = self.tiers.route(features)
            if not batch.knows_home_ids:
                home = self._defer(ctx, batch)
            elif not batch.hot:
                home = self._send(ctx, batch).awaitables
            requests = self.tiers.requests(batch)
        return KJTListSplitsAwaitable([*home, *requests], ctx)

    def _defer(self, ctx: TierSequenceContext, batch: RoutedBatch) -> list[DeferredSplits]:
        """What `_send` will exchange, once the node has agreed which ids it sends home.

        TorchRec's contexts are there from now on, for whoever joins those of several modules.
        """
        count = exchanges_of(self)
        promised = [SequenceShardingContext() for _ in range(count)]

        def send() -> KJTListSplitsAwaitable[TierSequenceContext]:
            ctx.sharding_contexts = []
            request = self._send(ctx, batch)
            for later, known in zip(promised, ctx.sharding_contexts, strict=True):
                vars(later).update(vars(known))
            ctx.sharding_contexts = promised
            return request

        ctx.sharding_contexts = promised
        exchange = DeferredExchange([group.home_ids for group in batch.groups], send)
        self.tiers.defer(exchange)
        return [DeferredSplits(exchange, number) for number in range(count)]

    def _send(
        self, ctx: TierSequenceContext, batch: RoutedBatch
    ) -> KJTListSplitsAwaitable[TierSequenceContext]:
        """Have TorchRec exchange the ids that go home, as one sample with many ids: which sample
        has which stays here."""
        parts = [group.home_ids.result for group in batch.groups]
        lengths = [length for part in parts for length in part.lengths]
        lengths += batch.length_per_feature[len(lengths) :]
        values = torch.cat([*(part.ids for part in parts), batch.ids[batch.num_tiered :]])
        ids = KeyedJaggedTensor(
            keys=[feature.name for feature in self.tiers.features],
            values=values.to(batch.given.dtype),
            lengths=numbers_on(batch.ids.device, lengths).to(torch.int32),
            stride=1,
            length_per_key=lengths,
        )
        request: Any = super().input_dist(ctx, ids)
        return cast("KJTListSplitsAwaitable[TierSequenceContext]", request)

    def _nothing_from_home(self) -> LazyAwaitable[dict[str, JaggedTensor]]:
        none = self.tiers.no_rows(self._width)
        lengths = torch.empty(0, dtype=torch.int32, device=none.device)
        names = [feature.name for feature in self.tiers.features]
        return LazyNoWait({name: JaggedTensor(none, lengths=lengths) for name in names})

    def _with_tiers(
        self, ctx: TierSequenceContext, home: LazyAwaitable[dict[str, JaggedTensor]]
    ) -> LazyAwaitable[Any]:
        assert ctx.update is not None
        return SequencesAwaitable(self.tiers, ctx.update, home, yields_ids(self))

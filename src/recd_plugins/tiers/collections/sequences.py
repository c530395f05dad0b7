"""An EmbeddingCollection with tiers: it yields the rows of its ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torchrec.distributed.embedding import EmbeddingCollectionContext, ShardedEmbeddingCollection
from torchrec.distributed.embedding_sharding import KJTListSplitsAwaitable
from torchrec.distributed.sharding.sequence_sharding import SequenceShardingContext
from torchrec.distributed.types import LazyAwaitable, LazyNoWait, ParameterSharding, ShardingEnv
from torchrec.modules.embedding_modules import EmbeddingCollection
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor

from recd_plugins.compat.torchrec import exchanges_of, yields_ids
from recd_plugins.planning.tier_plans.tier_plan import CHUNK_ROWS, TierPlan
from recd_plugins.sparse.rows.memory import numbers_on
from recd_plugins.tiers.collections.sequences_output import SequencesAwaitable
from recd_plugins.tiers.collections.tiered_module import TierContext, TieredModule
from recd_plugins.tiers.exchange.deferred_exchange import DeferredExchange, DeferredSplits
from recd_plugins.tiers.peers import Nodes
from recd_plugins.tiers.routed_batch import RoutedBatch
from recd_plugins.tiers.tiers import Tiers

__all__ = ["TierEmbeddingCollection", "TierSequenceContext"]


@dataclass
class TierSequenceContext(TierContext, EmbeddingCollectionContext):
    """TorchRec's context of a batch, and the batch as it is routed."""

    def __post_init__(self) -> None:
        if not hasattr(self, "sharding_contexts"):
            # Before TorchRec 1.8 its context is no dataclass, whose fields this one would have.
            EmbeddingCollectionContext.__init__(self)


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

    def _send_home(self, ctx: TierSequenceContext, batch: RoutedBatch) -> Sequence[Any]:
        if not batch.knows_home_ids:
            return self._defer(ctx, batch)
        return [] if batch.hot else self._send(ctx, batch).awaitables

    def _defer(self, ctx: TierSequenceContext, batch: RoutedBatch) -> list[DeferredSplits]:
        """The splits that `_send` will exchange once the node has agreed on the ids that it sends
        home.

        TorchRec's contexts exist from now on and are filled in then, since a caller may join those
        of several modules before.
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
        home_ids = [group.home_ids for group in batch.groups]
        exchange = DeferredExchange(home_ids, send, batch.ids.device)
        self.tiers.defer(exchange)
        return [DeferredSplits(exchange, number) for number in range(count)]

    def _send(
        self, ctx: TierSequenceContext, batch: RoutedBatch
    ) -> KJTListSplitsAwaitable[TierSequenceContext]:
        """Have TorchRec exchange the ids that go home as one sample with many ids; this rank keeps
        which sample has which."""
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
        return self._exchange(ctx, ids)

    def _nothing_from_home(self) -> LazyAwaitable[dict[str, JaggedTensor]]:
        none = self.tiers.no_rows(self._width)
        lengths = torch.empty(0, dtype=torch.int32, device=none.device)
        names = [feature.name for feature in self.tiers.features]
        return LazyNoWait({name: JaggedTensor(none, lengths=lengths) for name in names})

    def _joined(
        self, ctx: TierSequenceContext, home: LazyAwaitable[dict[str, JaggedTensor]]
    ) -> LazyAwaitable[Any]:
        assert ctx.update is not None
        return SequencesAwaitable(self.tiers, ctx.update, home, yields_ids(self))

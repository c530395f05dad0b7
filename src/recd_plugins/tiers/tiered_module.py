"""What TorchRec's sharded collections do alike once tiers stand in front of their tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torchrec.distributed.embedding_types import KJTList
from torchrec.distributed.types import LazyAwaitable, ShardedModule
from torchrec.optim.keyed import KeyedOptimizer
from torchrec.streamable import Multistreamable

from recd_plugins.tiers.routed_batch import RoutedBatch
from recd_plugins.tiers.tiers import Tiers
from recd_plugins.tiers.update import Update

__all__ = ["TierContext", "TieredModule"]


@dataclass
class TierContext(Multistreamable):
    """What a batch's context has beside TorchRec's own, which comes next in the order of bases."""

    batch: RoutedBatch | None = None
    """There from `input_dist` on."""
    update: Update | None = None
    """There from `compute` on: what the batch's backward will do to the replicas."""

    @property
    def is_hot(self) -> bool:
        return self.batch is not None and self.batch.hot

    def record_stream(self, stream: torch.Stream) -> None:
        super().record_stream(stream)
        if self.batch is not None:
            self.batch.record_stream(stream)


class TieredModule(ShardedModule[KJTList, list[Any], Any, Any]):
    """Comes before TorchRec's class in the order of bases, and hands it the ids that missed.

    Parameters, state dict and optimizer are TorchRec's: those of the tables at home. Every rank
    must call `state_dict`, as for a checkpoint, for then the replicas bring rows home.
    """

    tiers: Tiers

    def put_in_front(self, tiers: Tiers) -> None:
        """Have the replicas' rows at home whenever someone asks for the state, or loads one."""
        self.tiers = tiers
        self.register_state_dict_pre_hook(lambda *_: tiers.flush())
        self.register_load_state_dict_pre_hook(lambda *_: tiers.flush())

    @property
    def fused_optimizer(self) -> KeyedOptimizer:
        return self.tiers.optimizer

    def compute(self, ctx: Any, dist_input: KJTList) -> list[Any]:
        own = self._unpacked(ctx, dist_input)
        found: list[Any] = [] if ctx.is_hot else super().compute(ctx, own)
        return found

    def output_dist(self, ctx: Any, output: list[Any]) -> LazyAwaitable[Any]:
        home = self._nothing_from_home() if ctx.is_hot else super().output_dist(ctx, output)
        return self._output(ctx, home)

    def compute_and_output_dist(self, ctx: Any, input: KJTList) -> LazyAwaitable[Any]:
        """Answer the node first: its rows travel while TorchRec looks up its own."""
        own = self._unpacked(ctx, input)
        if ctx.is_hot:
            return self._output(ctx, self._nothing_from_home())
        return self._output(ctx, super().compute_and_output_dist(ctx, own))

    def _unpacked(self, ctx: Any, input: KJTList) -> KJTList:
        """What TorchRec exchanged, as it takes it; the node is sent the rows that it asked for."""
        count = len(ctx.sharding_contexts)
        ctx.update = self.tiers.answer_node(ctx.batch, input.features[count:])
        return KJTList(input.features[:count])

    def _output(self, ctx: Any, home: LazyAwaitable[Any]) -> LazyAwaitable[Any]:
        # The exchanges of batches to come have had time while this one was looked up.
        self.tiers.advance_deferred()
        return self._with_tiers(ctx, home)

    def _nothing_from_home(self) -> LazyAwaitable[Any]:
        """What TorchRec would yield if it were given no id: the whole of a hot batch is here."""
        raise NotImplementedError

    def _with_tiers(self, ctx: Any, home: LazyAwaitable[Any]) -> LazyAwaitable[Any]:
        """The output, from what comes from home and what the tiers have."""
        raise NotImplementedError

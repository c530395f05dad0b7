"""What all collections with tiers share: the exchanges beside TorchRec's own, and the state
dict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from tensordict import TensorDict
from torchrec.distributed.embedding_sharding import KJTListSplitsAwaitable
from torchrec.distributed.embedding_types import KJTList
from torchrec.distributed.types import LazyAwaitable, LazyNoWait, ShardedModule
from torchrec.optim.keyed import KeyedOptimizer
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
from torchrec.sparse.tensor_dict import maybe_td_to_kjt
from torchrec.streamable import Multistreamable

from recd_plugins.compat.home_weights import report_reads, report_reads_of_shards
from recd_plugins.compat.torchrec import refuse_trackers, table_of, wrap_own_optimizers
from recd_plugins.compat.tracing import autograd_is_compiled, outside_of_graphs
from recd_plugins.errors import CapabilityError
from recd_plugins.tiers.routed_batch import RoutedBatch
from recd_plugins.tiers.tiers import Tiers
from recd_plugins.tiers.updates.update import Update

__all__ = ["TierContext", "TieredModule"]


@dataclass
class TierContext(Multistreamable):
    """The tiers' part of a batch's context; TorchRec's own context comes next in the order of
    bases."""

    batch: RoutedBatch | None = None
    """Set in `input_dist`."""
    update: Update | None = None
    """Set when the batch is computed: what its backward will do to the replicas."""

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
    must call `state_dict`, as for a checkpoint, since the replicas then bring rows home.
    """

    tiers: Tiers

    def put_in_front(self, tiers: Tiers) -> None:
        """Bring the replicas' rows home whenever the state is asked for or loaded, and warn of
        reads at any other time."""
        self.tiers = tiers
        # Hooks get the module that is asked: a copy of this one has tiers of its own.
        self.register_state_dict_pre_hook(_flush)
        self.register_state_dict_post_hook(_report_reads)
        self.register_load_state_dict_pre_hook(_flush)
        for name, parameter in self.named_parameters():
            if (table := table_of(name)) in tiers.tables:
                report_reads(parameter, table, tiers.report_read)
                wrap_own_optimizers(parameter, tiers.flushing)
        if tiers.has_replicas:
            refuse_trackers(self, self.register_post_lookup_tracker_fn)

    @property
    def fused_optimizer(self) -> KeyedOptimizer:
        return self.tiers.optimizer

    def register_post_lookup_tracker_fn(self, record_fn: Any) -> None:
        """Refuse where rows have replicas: TorchRec records only the lookups that its kernels
        make."""
        if self.tiers.has_replicas:
            raise self.tiers.tracker_error()
        super().register_post_lookup_tracker_fn(record_fn)

    @outside_of_graphs
    def input_dist(
        self, ctx: Any, features: KeyedJaggedTensor | TensorDict
    ) -> KJTListSplitsAwaitable[Any]:
        """Route the ids; have TorchRec send those that miss, and ask the node for rows.

        In a hot batch no id misses on any rank, so TorchRec exchanges nothing.
        """
        with torch.no_grad():
            batch = ctx.batch = self.tiers.route(maybe_td_to_kjt(features))
            home = self._send_home(ctx, batch)
            requests = self.tiers.begin_requests(batch)
        return KJTListSplitsAwaitable([*home, *requests], ctx)

    def prefetch(
        self,
        dist_input: KJTList,
        forward_stream: torch.Stream | None = None,
        ctx: Any = None,
    ) -> None:
        """Have TorchRec's caches fetch the ids that TorchRec exchanged. The node's requests follow
        them in the input; in a hot batch the input holds nothing else."""
        if not ctx.is_hot:
            own = KJTList(dist_input.features[: len(ctx.sharding_contexts)])
            super().prefetch(own, forward_stream, ctx)

    def compute(self, ctx: Any, dist_input: KJTList) -> list[Any]:
        own = self._look_up(ctx, dist_input)
        found: list[Any] = [] if ctx.is_hot else super().compute(ctx, own)
        return found

    def output_dist(self, ctx: Any, output: list[Any]) -> LazyAwaitable[Any]:
        home = self._nothing_from_home() if ctx.is_hot else super().output_dist(ctx, output)
        return self._output(ctx, home)

    @outside_of_graphs
    def compute_and_output_dist(self, ctx: Any, input: KJTList) -> LazyAwaitable[Any]:
        """Look up in the replicas first: the node's rows travel while TorchRec looks up its own."""
        _check_autograd()
        own = self._look_up(ctx, input)
        if ctx.is_hot:
            return self._output(ctx, self._nothing_from_home())
        return self._output(ctx, super().compute_and_output_dist(ctx, own))

    def _send_home(self, ctx: Any, batch: RoutedBatch) -> Sequence[Any]:
        """Send home the ids that miss, and return what is to be awaited; nothing for a hot
        batch."""
        raise NotImplementedError

    def _exchange(self, ctx: Any, ids: KeyedJaggedTensor) -> KJTListSplitsAwaitable[Any]:
        """Have TorchRec exchange ids, and return what is to be awaited."""
        request: Any = super().input_dist(ctx, ids)
        return cast("KJTListSplitsAwaitable[Any]", request)

    def _look_up(self, ctx: Any, input: KJTList) -> KJTList:
        """Look the batch up in the replicas, and send the node the rows that it asked for. Returns
        the rest of the input: the ids that TorchRec exchanged, in the form that it takes."""
        count = len(ctx.sharding_contexts)
        ctx.update = self.tiers.look_up(ctx.batch, input.features[count:])
        return KJTList(input.features[:count])

    def _output(self, ctx: Any, home: LazyAwaitable[Any]) -> LazyAwaitable[Any]:
        # The exchanges of batches to come have had time while this one was looked up.
        self.tiers.advance_deferred()
        found = self._joined(ctx, home)
        if self.tiers.exchanges_back and not torch.is_grad_enabled():
            # In an evaluation a rank may never read its output, and TorchRec allows that.
            return LazyNoWait(found.wait())
        return found

    def _nothing_from_home(self) -> LazyAwaitable[Any]:
        """The output that TorchRec would yield for no ids: all rows of a hot batch are on this
        rank."""
        raise NotImplementedError

    def _joined(self, ctx: Any, home: LazyAwaitable[Any]) -> LazyAwaitable[Any]:
        """The output, joined from the rows that come from home and those that the tiers have."""
        raise NotImplementedError


def _flush(module: Any, *_: object) -> None:
    module.tiers.flush()


def _report_reads(module: Any, state: dict[str, Any], prefix: str, *_: object) -> None:
    """Report reads of the tables in a state dict, from the next batch on."""
    for name, _ in module.named_parameters():
        table = table_of(name)
        if table in module.tiers.tables:
            report_reads_of_shards(state[prefix + name], table, module.tiers.report_read)


def _check_autograd() -> None:
    """`CapabilityError` where torch would compile the backward, which sums what ranks hold."""
    if torch.is_grad_enabled() and autograd_is_compiled():
        raise CapabilityError(
            "tiers: torch compiles the backward (compiled autograd, as in TorchRec's "
            "TrainPipelineSparseDistCompAutograd), but tables with replicas or coalesced ids would "
            "train other weights by it. Take TrainPipelineSparseDist, or leave replicas and "
            "coalescing out of the registry."
        )

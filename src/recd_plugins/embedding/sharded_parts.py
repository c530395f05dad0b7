"""A sharded module made of parts, each a collection that TorchRec sharded.

To DistributedModelParallel, its planner and its pipelines it is one sharded module with the
names, states and collectives of the collection as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor, nn
from torchrec.distributed.embedding_sharding import KJTListSplitsAwaitable
from torchrec.distributed.embedding_types import KJTList
from torchrec.distributed.types import LazyAwaitable, ShardedModule, ShardedTensor
from torchrec.optim.fused import FusedOptimizerModule
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizer
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
from torchrec.streamable import Multistreamable

from recd_plugins.compat.made_of_parts import MadeOfParts, freed_early
from recd_plugins.compat.torchrec import table_of
from recd_plugins.compat.tracing import outside_of_graphs
from recd_plugins.errors import CapabilityError

__all__ = ["PartsContext", "ShardedParts"]


@dataclass
class PartsContext(Multistreamable):
    """The context of a batch between its exchanges, part by part."""

    parts: list[Any]
    """The context of each part."""
    sharding_contexts: list[Any] = field(default_factory=list)
    """One for each exchange of TorchRec's, those of all parts; TorchRec fills them in."""
    exchanges_beside: list[int] = field(default_factory=list)
    """The number of each part's exchanges beside TorchRec's: those within the node, of tiers."""
    early_releasable_inputs: list[KeyedJaggedTensor] = field(default_factory=list)
    """Input of the parts that TorchRec's pipeline frees once all ids are on their way."""

    def record_stream(self, stream: torch.Stream) -> None:
        for part in self.parts:
            part.record_stream(stream)


class _PartsOptimizer(CombinedOptimizer):
    """The optimizers of the parts; its state dict has the tables in the collection's order."""

    def __init__(self, optimizers: Iterable[KeyedOptimizer], order: Iterable[str]) -> None:
        every: list[KeyedOptimizer | tuple[str, KeyedOptimizer]] = []
        for optimizer in optimizers:
            # A combined optimizer takes some 50 calls a step to find the others.
            combines = type(optimizer) is CombinedOptimizer
            every += optimizer.optimizers if combines else [optimizer]
        super().__init__(every)
        self._order = {table: place for place, table in enumerate(order)}

    @property
    def params(self) -> Mapping[str, Tensor | ShardedTensor]:
        def place(key: str) -> int:
            return self._order.get(table_of(key), len(self._order))

        found = super().params
        return {key: found[key] for key in sorted(found, key=place)}

    @property
    def state(self) -> Mapping[Tensor, Any]:
        found = super().state
        return {weight: found[weight] for weight in self.params.values() if weight in found}


class ShardedParts(
    MadeOfParts, ShardedModule[KJTList, list[Any], Any, PartsContext], FusedOptimizerModule
):
    """Parts behind the names of one collection.

    The tables' modules are registered here under the collection's names, and the parts are not. So
    parameters, states and optimizer keys are those of the collection.
    """

    TABLES: str
    """The attribute that holds the tables, in the collection and here."""
    TABLES_OF_PART: str
    """The attribute that holds the tables of a part, unless `_attribute` says otherwise."""

    def __init__(
        self,
        parts: Iterable[Any],
        tables: Iterable[str],
        unsharded: type[nn.Module],
        order: Iterable[str] = (),
        **options: Any,
    ) -> None:
        """`tables` are the tables' names in the order of the collection, whose type is `unsharded`.

        Their optimizer has them in another `order`; by default, part by part.
        """
        super().__init__(**options)
        self.parts: Sequence[Any] = tuple(parts)
        self._unsharded = unsharded
        found = {
            name: table for part in self.parts for name, table in self._tables_of(part).items()
        }
        self.add_module(self.TABLES, nn.ModuleDict({name: found[name] for name in tables}))
        self._optimizer = _PartsOptimizer([part.fused_optimizer for part in self.parts], order)

    @property
    def fused_optimizer(self) -> KeyedOptimizer:
        return self._optimizer

    @property
    def unsharded_module_type(self) -> type[nn.Module]:
        return self._unsharded

    def create_context(self) -> PartsContext:
        return PartsContext([part.create_context() for part in self.parts])

    @outside_of_graphs
    def input_dist(self, ctx: PartsContext, features: Any) -> KJTListSplitsAwaitable[PartsContext]:
        """Send the ids to the ranks of their rows.

        First come TorchRec's exchanges of all parts, in step with their contexts.
        """
        torchrec: list[Any] = []
        beside: list[Any] = []
        with torch.no_grad():
            inputs = self._inputs(ctx, features)
            for part, context, rows in zip(self.parts, ctx.parts, inputs, strict=True):
                sent = part.input_dist(context, rows).awaitables
                count = len(context.sharding_contexts)
                torchrec += sent[:count]
                beside += sent[count:]
                ctx.sharding_contexts += context.sharding_contexts
                ctx.exchanges_beside.append(len(sent) - count)
                ctx.early_releasable_inputs += freed_early(context)
        return KJTListSplitsAwaitable([*torchrec, *beside], ctx)

    def compute(self, ctx: PartsContext, dist_input: KJTList) -> list[Any]:
        return [
            part.compute(context, self._to_look_up(part, context, rows))
            for part, context, rows in self._by_part(ctx, dist_input)
        ]

    def output_dist(self, ctx: PartsContext, output: list[Any]) -> LazyAwaitable[Any]:
        parts = zip(self.parts, ctx.parts, output, strict=True)
        return self._gathered(
            ctx, [part.output_dist(context, rows) for part, context, rows in parts]
        )

    @outside_of_graphs
    def compute_and_output_dist(self, ctx: PartsContext, input: KJTList) -> LazyAwaitable[Any]:
        """Look up, and send the embeddings back: a part's exchange runs while the next looks up."""
        return self._gathered(
            ctx,
            [
                part.compute_and_output_dist(context, self._to_look_up(part, context, rows))
                for part, context, rows in self._by_part(ctx, input)
            ],
        )

    def changed(
        self, ctx: PartsContext, input: KJTList, change: Callable[[Any, Any, KJTList], KJTList]
    ) -> KJTList:
        """What was sent here, after `change` was called with each part, its context and its share
        of it."""
        torchrec: list[Any] = []
        beside: list[Any] = []
        for part, context, rows in self._by_part(ctx, input):
            own, count = change(part, context, rows).features, len(context.sharding_contexts)
            torchrec += own[:count]
            beside += own[count:]
        return KJTList([*torchrec, *beside])

    def prefetch(
        self,
        dist_input: KJTList,
        forward_stream: torch.Stream | None = None,
        ctx: PartsContext | None = None,
    ) -> None:
        assert ctx is not None
        for part, context, rows in self._by_part(ctx, dist_input):
            part.prefetch(rows, forward_stream, context)

    def update_shards(self, *_: Any) -> None:
        """Refuse what TorchRec's sharder of bags asks for where tables are to move."""
        raise CapabilityError(
            "DistributedModelParallel.reshard moves tables of TorchRec's own collections, but this "
            "one looks up unique samples or coalesced rows. Shard the model again with another "
            "plan, and load its state dicts by torch.distributed.checkpoint."
        )

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        for part in self.parts:
            part.train(mode)
        return self

    def state_dict(
        self,
        *,
        destination: dict[str, Any] | None = None,
        prefix: str = "",
        keep_vars: bool = False,
    ) -> dict[str, Any]:
        """The states of the parts, which flush caches and make ShardedTensors, in the collection's
        order."""
        states = [part.state_dict(keep_vars=keep_vars) for part in self.parts]
        every: dict[str, Any] = super().state_dict(
            destination=destination, prefix=prefix, keep_vars=keep_vars
        )
        for state in states:
            every.update({prefix + self._renamed(name): one for name, one in state.items()})
        return every

    def reset_parameters(self) -> None:
        """Draw all tables anew, as TorchRec's own modules do."""
        for part in self.parts:
            part.reset_parameters()

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """The parts' hooks cut whole or sharded tables down to what this rank holds."""
        super()._load_from_state_dict(state_dict, prefix, *rest)
        for part in self.parts:
            attribute = self._attribute(part)
            tables = [f"{attribute}.{name}.weight" for name in self._tables_of(part)]
            given = [name for name in tables if prefix + self._renamed(name) in state_dict]
            # TorchRec's hook needs all tables: those that are not given stay as they are.
            own = {} if len(given) == len(tables) else dict(part.state_dict(prefix=prefix))
            own |= {prefix + name: state_dict[prefix + self._renamed(name)] for name in given}
            part._load_from_state_dict(own, prefix, *rest)
            for name in given:
                state_dict[prefix + self._renamed(name)] = own[prefix + name]

    def _tables_of(self, part: Any) -> nn.ModuleDict:
        tables: nn.ModuleDict = getattr(part, self._attribute(part))
        return tables

    def _attribute(self, part: Any) -> str:
        """The attribute that holds a part's tables."""
        return self.TABLES_OF_PART

    def _renamed(self, name: str) -> str:
        """A part's `embeddings.TABLE.weight` as the collection has it."""
        own = f"{self.TABLES_OF_PART}."
        return f"{self.TABLES}.{name.removeprefix(own)}" if name.startswith(own) else name

    def _by_part(self, ctx: PartsContext, input: KJTList) -> Iterator[tuple[Any, Any, KJTList]]:
        """Each part, its context, and what it was sent: by TorchRec's exchanges, then by others."""
        start, start_beside = 0, len(ctx.sharding_contexts)
        for part, context, beside in zip(self.parts, ctx.parts, ctx.exchanges_beside, strict=True):
            stop, stop_beside = start + len(context.sharding_contexts), start_beside + beside
            own = [*input.features[start:stop], *input.features[start_beside:stop_beside]]
            yield part, context, KJTList(own)
            start, start_beside = stop, stop_beside

    def _inputs(self, ctx: PartsContext, features: Any) -> Iterable[Any]:
        """The features that each part is given."""
        raise NotImplementedError

    def _to_look_up(self, part: Any, context: Any, received: KJTList) -> KJTList:
        """The ids that a part looks up of those that it was sent: all, as they came."""
        return received

    def _gathered(self, ctx: PartsContext, parts: list[Any]) -> LazyAwaitable[Any]:
        """The collection's output, from what the parts yield."""
        raise NotImplementedError

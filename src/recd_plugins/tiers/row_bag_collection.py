"""An EmbeddingBagCollection whose rows travel, each once, and are pooled on the rank that asks.

TorchRec's row-wise EmbeddingBagCollection sends each rank the sums of all its bags from every
other rank: W · B · D a feature, however few different rows the bags hold. Here the tables are
sharded as sequences, with tiers and coalescing as theirs, and nobody but the module knows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torchrec.distributed.embedding_sharding import KJTListSplitsAwaitable
from torchrec.distributed.embedding_types import KJTList
from torchrec.distributed.types import (
    LazyAwaitable,
    ParameterSharding,
    ShardedModule,
    ShardingEnv,
)
from torchrec.modules.embedding_configs import EmbeddingBagConfig, PoolingType
from torchrec.modules.embedding_modules import (
    EmbeddingBagCollection,
    EmbeddingCollection,
    get_embedding_names_by_table,
)
from torchrec.optim.fused import FusedOptimizerModule
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizer
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor, KeyedTensor
from torchrec.streamable import Multistreamable

from recd_plugins.compat.torchrec import OfParts, optimizer_of, sequences_of, sharding_types
from recd_plugins.tiers.bags import PooledRows, RowBagsAwaitable
from recd_plugins.tiers.collection import TierEmbeddingCollection, TierSequenceContext
from recd_plugins.tiers.tables import TableFeature

__all__ = ["RowBagContext", "TierRowBagCollection"]


@dataclass
class RowBagContext(Multistreamable):
    """A batch on its way: the context of each part."""

    parts: list[TierSequenceContext]
    sharding_contexts: list[Any] = field(default_factory=list)
    """All of theirs: TorchRec fills these in."""
    requests: list[int] = field(default_factory=list)
    """How many exchanges within the node each part has, beside TorchRec's."""

    def record_stream(self, stream: torch.Stream) -> None:
        for part in self.parts:
            part.record_stream(stream)


class _RowsOfDimension(TierEmbeddingCollection):
    """The tables of one dimension, whose rows come one by one, to be pooled."""

    def __init__(self, module: EmbeddingCollection, means: Sequence[str], **options: Any) -> None:
        """`means` are the tables that pool by the mean."""
        super().__init__(module, **options)
        self._divides = [feature.table in means for feature in self.tiers.features]
        for _, kernel in optimizer_of(self).optimizers:
            kernel.params = {_of_bags(key): weight for key, weight in kernel.params.items()}

    def _with_tiers(
        self, ctx: TierSequenceContext, home: LazyAwaitable[dict[str, JaggedTensor]]
    ) -> LazyAwaitable[Any]:
        assert ctx.update is not None
        self.tiers.advance_deferred()
        return PooledRows(self.tiers, ctx.update, home, self._divides)


class TierRowBagCollection(
    OfParts, ShardedModule[KJTList, list[Any], KeyedTensor, RowBagContext], FusedOptimizerModule
):
    """Parts by dimension, for TorchRec's sequences are of one; as a whole, TorchRec's module.

    Parameters, state dict and optimizer are named as an EmbeddingBagCollection's. Every rank
    must call `state_dict`, as for a checkpoint, for then the replicas bring rows home.
    """

    def __init__(
        self,
        module: EmbeddingBagCollection,
        parameters: Mapping[str, ParameterSharding],
        env: ShardingEnv,
        **options: Any,
    ) -> None:
        """`options` are those of `TierEmbeddingCollection`."""
        super().__init__(qcomm_codecs_registry=options.get("qcomm_codecs_registry"))
        configs = module.embedding_bag_configs()
        self.parts: tuple[_RowsOfDimension, ...] = tuple(
            _RowsOfDimension(
                sequences_of(module, tables),
                means=[config.name for config in configs if config.pooling is PoolingType.MEAN],
                parameters={name: parameters[name] for name in tables},
                env=env,
                **options,
            )
            for tables in _by_dimension(configs)
        )
        tables = {name: table for part in self.parts for name, table in part.embeddings.items()}
        self.embedding_bags = nn.ModuleDict(
            {config.name: tables[config.name] for config in configs}
        )
        self._optimizer = CombinedOptimizer([("", part.fused_optimizer) for part in self.parts])
        self._names = _names(
            configs, [feature for part in self.parts for feature in part.tiers.features]
        )
        self._sharding_types = [kind for part in self.parts for kind in sharding_types(part)]

    @property
    def fused_optimizer(self) -> KeyedOptimizer:
        return self._optimizer

    @property
    def unsharded_module_type(self) -> type[nn.Module]:
        unsharded: type[nn.Module] = EmbeddingBagCollection
        return unsharded

    def create_context(self) -> RowBagContext:
        return RowBagContext([part.create_context() for part in self.parts])

    def input_dist(
        self, ctx: RowBagContext, features: KeyedJaggedTensor
    ) -> KJTListSplitsAwaitable[RowBagContext]:
        """First TorchRec's exchanges of all parts, in step with their contexts."""
        canonical: list[Any] = []
        requests: list[Any] = []
        for part, context in zip(self.parts, ctx.parts, strict=True):
            sent = part.input_dist(context, features).awaitables
            count = len(context.sharding_contexts)
            canonical += sent[:count]
            requests += sent[count:]
            ctx.requests.append(len(sent) - count)
            ctx.sharding_contexts += context.sharding_contexts
        return KJTListSplitsAwaitable([*canonical, *requests], ctx)

    def compute(self, ctx: RowBagContext, dist_input: KJTList) -> list[Any]:
        return [
            part.compute(context, rows) for part, context, rows in self._by_part(ctx, dist_input)
        ]

    def output_dist(self, ctx: RowBagContext, output: list[Any]) -> LazyAwaitable[KeyedTensor]:
        parts = zip(self.parts, ctx.parts, output, strict=True)
        return self._pooled([part.output_dist(context, rows) for part, context, rows in parts])

    def compute_and_output_dist(
        self, ctx: RowBagContext, input: KJTList
    ) -> LazyAwaitable[KeyedTensor]:
        """A part's rows travel while the next looks up its own."""
        return self._pooled(
            [
                part.compute_and_output_dist(context, rows)
                for part, context, rows in self._by_part(ctx, input)
            ]
        )

    def prefetch(
        self,
        dist_input: KJTList,
        forward_stream: torch.Stream | None = None,
        ctx: RowBagContext | None = None,
    ) -> None:
        assert ctx is not None
        for part, context, rows in self._by_part(ctx, dist_input):
            part.prefetch(rows, forward_stream, context)

    def train(self, mode: bool = True) -> TierRowBagCollection:
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
        """The parts', which flush caches and make ShardedTensors, in the collection's order."""
        every: dict[str, Any] = super().state_dict(
            destination=destination, prefix=prefix, keep_vars=keep_vars
        )
        for part in self.parts:
            for name, value in part.state_dict(keep_vars=keep_vars).items():
                every[prefix + _of_bags(name)] = value
        return every

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """The parts' hooks cut whole or sharded tables down to what this rank holds."""
        for part in self.parts:
            tables = [f"embeddings.{table}.weight" for table in part.embeddings]
            given = [name for name in tables if prefix + _of_bags(name) in state_dict]
            # TorchRec's hook wants all tables: those that are not given stay as they are.
            own = {} if len(given) == len(tables) else dict(part.state_dict(prefix=prefix))
            own |= {prefix + name: state_dict[prefix + _of_bags(name)] for name in given}
            part._load_from_state_dict(own, prefix, *rest)
            for name in given:
                state_dict[prefix + _of_bags(name)] = own[prefix + name]

    def _by_part(
        self, ctx: RowBagContext, input: KJTList
    ) -> Iterator[tuple[_RowsOfDimension, TierSequenceContext, KJTList]]:
        canonical, request = 0, len(ctx.sharding_contexts)
        for part, context, requests in zip(self.parts, ctx.parts, ctx.requests, strict=True):
            count = len(context.sharding_contexts)
            own = input.features[canonical : canonical + count]
            answers = input.features[request : request + requests]
            yield part, context, KJTList([*own, *answers])
            canonical, request = canonical + count, request + requests

    def _pooled(self, parts: Sequence[Any]) -> RowBagsAwaitable:
        return RowBagsAwaitable(parts, self._names)


def _by_dimension(configs: Sequence[EmbeddingBagConfig]) -> list[list[str]]:
    tables: dict[int, list[str]] = {}
    for config in configs:
        tables.setdefault(config.embedding_dim, []).append(config.name)
    return list(tables.values())


def _names(
    configs: Sequence[EmbeddingBagConfig], features: Sequence[TableFeature]
) -> dict[TableFeature, str]:
    """The key of each feature of each table, in the order of the unsharded module's."""
    found = {(one.table, one.feature): one for one in features}
    return {
        found[config.name, feature]: name
        for config, names in zip(configs, get_embedding_names_by_table([*configs]), strict=True)
        for feature, name in zip(config.feature_names, names, strict=True)
    }


def _of_bags(name: str) -> str:
    """`embeddings.NAME.weight` as an EmbeddingBagCollection has it."""
    return "embedding_bags." + name.removeprefix("embeddings.")

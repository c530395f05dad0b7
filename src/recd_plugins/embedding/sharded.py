"""Sharded collections of unique samples: parts that TorchRec sharded, behind one module
(`sharded_parts`). The sharder wraps any sharder of such collections."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from tensordict import TensorDict
from torch import Tensor, nn
from torchrec.distributed.embedding_types import EmbeddingComputeKernel, KJTList
from torchrec.distributed.types import (
    LazyAwaitable,
    LazyGetItemMixin,
    ModuleSharder,
    ParameterSharding,
    ShardingEnv,
    ShardingType,
)
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor, KeyedTensor

from recd_plugins.compat.made_of_parts import ShardedOrder, bags_of
from recd_plugins.compat.outputs import HasOwnExchange
from recd_plugins.compat.torchrec import own_fused_params, sharding_types
from recd_plugins.embedding.dedup import DedupEmbeddingBagCollection, DedupEmbeddingCollection
from recd_plugins.embedding.input_check import InputCheck
from recd_plugins.embedding.lookup import BatchSamples, pooled, rows_of, sequences, vbe_rows_of
from recd_plugins.embedding.sharded_parts import PartsContext, ShardedParts
from recd_plugins.embedding.tied import tied_columns
from recd_plugins.embedding.wrapped_sharder import WrappedSharder
from recd_plugins.errors import CapabilityError, listed
from recd_plugins.sparse.features import SparseFeatures
from recd_plugins.sparse.groups import Groups
from recd_plugins.sparse.rows.memory import numbers_on

__all__ = [
    "DedupContext",
    "DedupSharder",
    "ShardedDedupEmbeddingBagCollection",
    "ShardedDedupEmbeddingCollection",
    "evened",
    "handed_all_samples",
    "with_dedup",
]


@dataclass
class DedupContext(PartsContext):
    """The parts' contexts, and which sample has which unique sample."""

    samples: BatchSamples | None = None

    def record_stream(self, stream: torch.Stream) -> None:
        super().record_stream(stream)
        if self.samples is not None:
            self.samples.record_stream(stream)


class _ShardedDedup(ShardedParts):
    """Parts of one collection, each sharded by the sharder that would have sharded the whole."""

    SEQUENCES: bool
    """Whether embeddings come one by one."""
    took_unique: bool | None = None
    """Whether it was ever handed unique samples; None before its first input."""

    def __init__(
        self,
        module: DedupEmbeddingCollection | DedupEmbeddingBagCollection,
        parts: Sequence[Any],
        order: Sequence[str] = (),
    ) -> None:
        """`order` is that of the tables in their optimizer; by default, part by part."""
        super().__init__(parts, getattr(module, self.TABLES), type(module), order)
        self.table_parts = module.parts
        """The tables and features of each part."""
        self._key_of = dict(module.key_of)
        self._route = module.route

    def create_context(self) -> DedupContext:
        return DedupContext([part.create_context() for part in self.parts])

    def _inputs(
        self, ctx: PartsContext, features: SparseFeatures | KeyedJaggedTensor | TensorDict
    ) -> Iterator[KeyedJaggedTensor]:
        assert isinstance(ctx, DedupContext)
        features = SparseFeatures.of(features)
        self.took_unique = bool(self.took_unique) or features.dedup is not None
        ctx.samples = BatchSamples(features, sequences=self.SEQUENCES)
        rows = vbe_rows_of if self._route == "vbe" else rows_of
        return (rows(features, part.keys) for part in self.table_parts)

    def _gathered(self, ctx: PartsContext, parts: list[Any]) -> LazyAwaitable[Any]:
        assert isinstance(ctx, DedupContext)
        if self._route == "vbe":
            (expanded,) = parts
            return cast("LazyAwaitable[Any]", expanded)
        assert ctx.samples is not None
        return self._unexpanded(parts, ctx.samples)

    def _unexpanded(self, parts: list[Any], samples: BatchSamples) -> LazyAwaitable[Any]:
        """The output on unique samples."""
        raise NotImplementedError


class ShardedDedupEmbeddingCollection(_ShardedDedup):
    """A sharded `DedupEmbeddingCollection`."""

    TABLES = TABLES_OF_PART = "embeddings"
    SEQUENCES = True

    def _unexpanded(self, parts: list[Any], samples: BatchSamples) -> LazyAwaitable[Any]:
        (embedded,) = parts
        return _Sequences(embedded, self._key_of, samples)


class ShardedDedupEmbeddingBagCollection(_ShardedDedup):
    """A sharded `DedupEmbeddingBagCollection`."""

    TABLES = TABLES_OF_PART = "embedding_bags"
    SEQUENCES = False

    def __init__(
        self, module: DedupEmbeddingBagCollection, parts: Sequence[Any], order: ShardedOrder
    ) -> None:
        """`order` is TorchRec's for the module as a whole."""
        super().__init__(module, parts, order.tables)
        self._key_of = {name: self._key_of[name] for name in order.columns}
        self._check = InputCheck(module.embedding_bag_configs())

    def _inputs(
        self, ctx: PartsContext, features: SparseFeatures | KeyedJaggedTensor | TensorDict
    ) -> Iterator[KeyedJaggedTensor]:
        features = SparseFeatures.of(features)
        self._check.first(features.plain)
        return super()._inputs(ctx, features)

    def _to_look_up(self, part: Any, context: Any, received: KJTList) -> KJTList:
        if isinstance(part, ShardedParts):  # as where rows of some of its tables travel
            return part.changed(context, received, self._to_look_up)
        return evened(received, context, sharding_types(part))

    def _unexpanded(self, parts: list[Any], samples: BatchSamples) -> LazyAwaitable[Any]:
        names = [part.embeddings for part in self.table_parts]
        return _Pooled(parts, names, self._key_of, samples)


class _Sequences(HasOwnExchange, LazyAwaitable[dict[str, JaggedTensor]]):
    def __init__(
        self,
        embedded: LazyAwaitable[dict[str, JaggedTensor]],
        key_of: Mapping[str, str],
        samples: BatchSamples,
    ) -> None:
        super().__init__()
        self._embedded, self._key_of, self._samples = embedded, key_of, samples

    def _wait_impl(self) -> dict[str, JaggedTensor]:
        return sequences(self._embedded.wait(), self._key_of, self._samples)


class _Pooled(HasOwnExchange, LazyGetItemMixin[str, Tensor], LazyAwaitable[KeyedTensor]):
    def __init__(
        self,
        parts: Sequence[LazyAwaitable[KeyedTensor]],
        names: Sequence[Mapping[str, str]],
        key_of: Mapping[str, str],
        samples: BatchSamples,
    ) -> None:
        super().__init__()
        self._parts, self._names = parts, names
        self._key_of, self._samples = key_of, samples

    def _wait_impl(self) -> KeyedTensor:
        parts = tied_columns([part.wait() for part in self._parts])
        found = {
            names[name]: tensor
            for part, names in zip(parts, self._names, strict=True)
            for name, tensor in part.items()
        }
        return pooled(found, self._key_of, self._samples)


ADAPTED: dict[type[nn.Module], type[nn.Module]] = {
    EmbeddingCollection: DedupEmbeddingCollection,
    EmbeddingBagCollection: DedupEmbeddingBagCollection,
}


class DedupSharder(WrappedSharder):
    """Offers what `inner` offers for a collection, and has it shard each part."""

    @property
    def module_type(self) -> type[nn.Module]:
        return ADAPTED[self._inner.module_type]

    def shard(
        self,
        module: DedupEmbeddingCollection | DedupEmbeddingBagCollection,
        params: dict[str, ParameterSharding],
        env: ShardingEnv,
        device: torch.device | None = None,
        module_fqn: str | None = None,
    ) -> ShardedDedupEmbeddingCollection | ShardedDedupEmbeddingBagCollection:
        if module.route == "vbe" and (device is None or device.type == "cpu"):
            raise CapabilityError(
                "adapt: the route 'vbe' needs a GPU. On the CPU, fbgemm looks up bags only with "
                "the same number of samples for each feature, and TorchRec drops the gradient of "
                "sequences. Take the route 'padded'."
            )
        _check_clipping(module, params, self.fused_params or {})

        def sharded(part: nn.Module) -> Any:
            return self._inner.shard(part, params, env, device, module_fqn)

        if isinstance(module, DedupEmbeddingCollection):
            return ShardedDedupEmbeddingCollection(module, [sharded(module)])
        return ShardedDedupEmbeddingBagCollection(
            module,
            [sharded(bags_of(module, part.tables)) for part in module.parts],
            ShardedOrder.of(module, params, env, self.fused_params, device),
        )


def _check_clipping(
    module: DedupEmbeddingCollection | DedupEmbeddingBagCollection,
    params: Mapping[str, ParameterSharding],
    fused: Mapping[str, Any],
) -> None:
    """Refuse tables whose kernels clip the gradients of their outputs. They clip each sample's by
    itself, and no kernel sees these where they come summed."""
    bags = isinstance(module, DedupEmbeddingBagCollection)
    configs = module.embedding_bag_configs() if bags else module.embedding_configs()
    weights = getattr(module, "embedding_bags" if bags else "embeddings")
    for config in configs:
        unique = [key for key in config.feature_names if key in module.unique_keys]
        dense = params[config.name].compute_kernel == EmbeddingComputeKernel.DENSE.value
        own = {**fused, **own_fused_params(weights[config.name].weight)}
        if unique and not dense and own.get("gradient_clipping"):
            raise CapabilityError(
                f"dedup: table {config.name!r} clips the gradient of each sample "
                "(gradient_clipping), but a unique sample has the sum of its samples' gradients, "
                "and that sum would be clipped instead. Name dedup.groups without "
                f"{listed(unique)}, or take gradient_clipping out of the table's optimizer."
            )


def with_dedup(sharders: Iterable[ModuleSharder[Any]]) -> list[ModuleSharder[Any]]:
    """The sharders, and those of the adapted collections around them."""
    given = list(sharders)
    types = {sharder.module_type for sharder in given}
    return given + [
        DedupSharder(sharder)
        for sharder in given
        if sharder.module_type in ADAPTED and ADAPTED[sharder.module_type] not in types
    ]


def handed_all_samples(model: nn.Module, groups: Groups) -> list[str]:
    """The features of `groups` whose collections had input, but never unique samples."""
    unique = {key for group in groups for key in group}
    return [
        key
        for module in model.modules()
        if isinstance(module, _ShardedDedup) and module.took_unique is False
        for part in module.table_parts
        for key in part.keys
        if key in unique
    ]


def evened(received: KJTList, context: Any, sharding_types: Sequence[str]) -> KJTList:
    """The rows that a rank received, filled up to as many from each rank; the context is changed to
    match.

    Ranks differ in their number of unique samples, and row-wise tables scatter the sums of all
    ranks: gloo refuses parts of unequal size, and NCCL reduces them root by root. After the
    exchange of splits every rank knows how many rows each other has, so rows of length 0 even them
    out without a further exchange, and add no id. The pooled output then has as many rows as the
    largest rank sent.

    The input is returned as it is where no table is row-wise, where all ranks sent as many, or
    where none sent any (a hot batch, behind tiers).
    """
    exchanges = context.sharding_contexts
    if not exchanges:
        return received
    by_rank = [
        exchange.batch_size_per_rank
        for exchange, kind in zip(exchanges, sharding_types, strict=True)
        if kind == ShardingType.ROW_WISE.value
    ]
    if not by_rank or len(set(by_rank[0])) <= 1:  # of no stride at all by the route `vbe`
        return received
    longest = max(by_rank[0])
    even = list(received)  # what another sharder exchanges beside TorchRec's stays as it is
    for index, exchange in enumerate(exchanges):
        # Data-parallel tables exchange nothing: all rows are this rank's own.
        strides = exchange.batch_size_per_rank or [even[index].stride()]
        even[index] = _with_as_many_rows(even[index], strides, longest)
        exchange.batch_size_per_rank = [longest] * len(exchange.batch_size_per_rank)
    if context.divisor is not None:  # of a mean, which row-wise tables take after their sum
        spare = longest - context.divisor.shape[0]
        context.divisor = F.pad(context.divisor, (0, 0, 0, spare), value=1.0)
    return KJTList(even)


def _with_as_many_rows(
    kjt: KeyedJaggedTensor, strides: Sequence[int], longest: int
) -> KeyedJaggedTensor:
    keys = kjt.keys()
    given = sum(strides)
    # Where each row comes from: behind a rank's rows, from a column of zeros at the end.
    source = np.full((len(strides), longest), given)
    for rank, (end, stride) in enumerate(zip(np.cumsum(strides), strides, strict=True)):
        source[rank, :stride] = np.arange(end - stride, end)
    index = numbers_on(kjt.device(), source.ravel())
    lengths = F.pad(kjt.lengths().view(len(keys), given), (0, 1)).index_select(1, index)
    return KeyedJaggedTensor(
        keys=keys,
        values=kjt.values(),
        weights=kjt.weights_or_none(),
        lengths=lengths.view(-1),
        stride=len(strides) * longest,
    )

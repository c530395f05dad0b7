"""The collections that TorchRec sharded, with tiers in front of their tables.

`TieredModule` is what they do alike. An EmbeddingCollection yields the rows of its ids, an
EmbeddingBagCollection their sums. TorchRec sums the rows that miss at home and sends each rank the
sums of all its bags from every other rank: U · B · D a feature, however few different rows the
bags hold. Where the tier plan coalesces a pooled table, its rows travel instead, each once, and are
pooled on the rank that asks (`TierRowBagCollection`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from tensordict import TensorDict
from torchrec.distributed.embedding import EmbeddingCollectionContext, ShardedEmbeddingCollection
from torchrec.distributed.embedding_sharding import KJTListSplitsAwaitable
from torchrec.distributed.embedding_types import KJTList
from torchrec.distributed.embeddingbag import (
    EmbeddingBagCollectionContext,
    ShardedEmbeddingBagCollection,
)
from torchrec.distributed.sharding.sequence_sharding import SequenceShardingContext
from torchrec.distributed.types import (
    LazyAwaitable,
    LazyNoWait,
    ParameterSharding,
    ShardedModule,
    ShardingEnv,
)
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import (
    EmbeddingBagCollection,
    EmbeddingCollection,
    get_embedding_names_by_table,
)
from torchrec.optim.keyed import KeyedOptimizer
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor, KeyedTensor
from torchrec.sparse.tensor_dict import maybe_td_to_kjt
from torchrec.streamable import Multistreamable

from recd_plugins.compat.torchrec import (
    SUMMED_IN_PARTS,
    ShardedOrder,
    bags_of,
    divide_as_whole,
    exchanges_of,
    leave_means,
    optimizer_of,
    pooled_columns,
    refuse_trackers,
    sequences_of,
    yields_ids,
)
from recd_plugins.embedding.input_check import InputCheck
from recd_plugins.embedding.sharded_parts import PartsContext, ShardedParts
from recd_plugins.errors import CapabilityError, RegistryError
from recd_plugins.planning.tier_plan import CHUNK_ROWS, TierPlan
from recd_plugins.sparse.rows.memory import numbers_on
from recd_plugins.tiers.bags import (
    Divisor,
    PackedBags,
    PooledRows,
    RowBagsAwaitable,
    SumsAwaitable,
    divisors_of,
)
from recd_plugins.tiers.collectives import Nodes
from recd_plugins.tiers.exchange import DeferredExchange, DeferredSplits
from recd_plugins.tiers.routed_batch import RoutedBatch
from recd_plugins.tiers.rows import SequencesAwaitable
from recd_plugins.tiers.tiers import Tiers
from recd_plugins.tiers.update import Update

__all__ = [
    "TierBagContext",
    "TierContext",
    "TierEmbeddingBagCollection",
    "TierEmbeddingCollection",
    "TierRowBagCollection",
    "TierSequenceContext",
    "TieredModule",
    "is_coalesced",
]


@dataclass
class TierContext(Multistreamable):
    """The context of a batch beside TorchRec's own, which comes next in the order of bases."""

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
        if tiers.has_replicas:
            refuse_trackers(self, self.register_post_lookup_tracker_fn)

    @property
    def fused_optimizer(self) -> KeyedOptimizer:
        return self.tiers.optimizer

    def register_post_lookup_tracker_fn(self, record_fn: Any) -> None:
        """Refused where rows have replicas: TorchRec records the lookups that its kernels make."""
        if not self.tiers.has_replicas:
            super().register_post_lookup_tracker_fn(record_fn)
            return
        tables = ", ".join(sorted(self.tiers.tables))
        raise CapabilityError(
            f"tiers: TorchRec's delta tracker would miss the rows of {tables} that have replicas. "
            "Leave these tables to TorchRec (`tables` of the planner in registry.yaml names those "
            "that may have any), or the tracker out."
        )

    def input_dist(
        self, ctx: Any, features: KeyedJaggedTensor | TensorDict
    ) -> KJTListSplitsAwaitable[Any]:
        """Route the ids, send those that miss on TorchRec's way, and ask the node for others.

        A hot batch has none that miss, on no rank: TorchRec exchanges nothing.
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
        """Have TorchRec's caches take in the ids that are its own; those that this rank is asked
        for by its node come behind them, and alone in a hot batch."""
        if not ctx.is_hot:
            own = KJTList(dist_input.features[: len(ctx.sharding_contexts)])
            super().prefetch(own, forward_stream, ctx)

    def compute(self, ctx: Any, dist_input: KJTList) -> list[Any]:
        own = self._answer_node(ctx, dist_input)
        found: list[Any] = [] if ctx.is_hot else super().compute(ctx, own)
        return found

    def output_dist(self, ctx: Any, output: list[Any]) -> LazyAwaitable[Any]:
        home = self._nothing_from_home() if ctx.is_hot else super().output_dist(ctx, output)
        return self._output(ctx, home)

    def compute_and_output_dist(self, ctx: Any, input: KJTList) -> LazyAwaitable[Any]:
        """Answer the node first: its rows travel while TorchRec looks up its own."""
        own = self._answer_node(ctx, input)
        if ctx.is_hot:
            return self._output(ctx, self._nothing_from_home())
        return self._output(ctx, super().compute_and_output_dist(ctx, own))

    def _send_home(self, ctx: Any, batch: RoutedBatch) -> Sequence[Any]:
        """Send the ids that miss home, and yield the splits of it; a hot batch has none."""
        raise NotImplementedError

    def _exchange(self, ctx: Any, ids: KeyedJaggedTensor) -> KJTListSplitsAwaitable[Any]:
        """Have TorchRec exchange ids, and yield the splits of it."""
        request: Any = super().input_dist(ctx, ids)
        return cast("KJTListSplitsAwaitable[Any]", request)

    def _answer_node(self, ctx: Any, input: KJTList) -> KJTList:
        """Send the node the rows that it asked for. What is left of the input are the ids that
        TorchRec exchanged, as it takes them."""
        count = len(ctx.sharding_contexts)
        ctx.update = self.tiers.answer_node(ctx.batch, input.features[count:])
        return KJTList(input.features[:count])

    def _output(self, ctx: Any, home: LazyAwaitable[Any]) -> LazyAwaitable[Any]:
        # The exchanges of batches to come have had time while this one was looked up.
        self.tiers.advance_deferred()
        return self._joined(ctx, home)

    def _nothing_from_home(self) -> LazyAwaitable[Any]:
        """The output that TorchRec would yield if it were given no id: the whole of a hot batch is
        here."""
        raise NotImplementedError

    def _joined(self, ctx: Any, home: LazyAwaitable[Any]) -> LazyAwaitable[Any]:
        """The output, joined of what comes from home and what the tiers have."""
        raise NotImplementedError


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

    def _send_home(self, ctx: TierSequenceContext, batch: RoutedBatch) -> Sequence[Any]:
        if not batch.knows_home_ids:
            return self._defer(ctx, batch)
        return [] if batch.hot else self._send(ctx, batch).awaitables

    def _defer(self, ctx: TierSequenceContext, batch: RoutedBatch) -> list[DeferredSplits]:
        """The splits that `_send` will exchange, once the node has agreed which ids it sends home.

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
        home_ids = [group.home_ids for group in batch.groups]
        exchange = DeferredExchange(home_ids, send, batch.ids.device)
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
        divisors: Mapping[str, Divisor] | None = None,
        **options: Any,
    ) -> None:
        """`options` are those of TorchRec's module. `divisors` of tables' sums are by default those
        that they have where these tables are all of their collection."""
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
        if divisors is None:
            divisors = divisors_of(configs, _row_wise(shardings))
        self._divisors = [divisors.get(feature.table) for feature in self.tiers.features]
        leave_means(self)

    def create_context(self) -> TierBagContext:
        return TierBagContext()

    def input_dist(
        self, ctx: TierBagContext, features: KeyedJaggedTensor | TensorDict
    ) -> KJTListSplitsAwaitable[TierBagContext]:
        features = maybe_td_to_kjt(features)
        self._check.first(features)
        return super().input_dist(ctx, features)

    def _send_home(self, ctx: TierBagContext, batch: RoutedBatch) -> Sequence[Any]:
        if batch.hot:
            ctx.packed = PackedBags.none(batch.lengths)
            return []
        packed = ctx.packed = PackedBags.of(batch.missed_lengths(), self.tiers.nodes.world)
        return [*self._exchange(ctx, self._missed(batch, packed)).awaitables]

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

    def _joined(
        self, ctx: TierBagContext, home: LazyAwaitable[KeyedTensor]
    ) -> LazyAwaitable[KeyedTensor]:
        assert ctx.update is not None
        assert ctx.packed is not None
        return SumsAwaitable(self.tiers, ctx.update, ctx.packed, home, self._divisors)


class _RowsOfDimension(TierEmbeddingCollection):
    """The tables of one dimension, whose rows come one by one, to be pooled."""

    def __init__(
        self, module: EmbeddingCollection, divisors: Mapping[str, Divisor], **options: Any
    ) -> None:
        """`divisors` are those of tables' sums."""
        super().__init__(module, **options)
        self._divisors = [divisors.get(feature.table) for feature in self.tiers.features]
        for _, kernel in optimizer_of(self).optimizers:
            kernel.params = {_of_bags(key): weight for key, weight in kernel.params.items()}

    def _joined(
        self, ctx: TierSequenceContext, home: LazyAwaitable[dict[str, JaggedTensor]]
    ) -> LazyAwaitable[Any]:
        assert ctx.update is not None
        return PooledRows(self.tiers, ctx.update, home, self._divisors)


class TierRowBagCollection(ShardedParts):
    """Parts by dimension, for TorchRec's sequences are of one; as a whole, TorchRec's module.

    Tables that the plan does not coalesce are one part more, which TorchRec sums wherever its plan
    has them. Parameters, state dict and optimizer are named as an EmbeddingBagCollection's. Every
    rank must call `state_dict`, as for a checkpoint, for then the replicas bring rows home.
    """

    TABLES, TABLES_OF_PART = "embedding_bags", "embeddings"

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
        """`options` are those of TorchRec's modules."""
        configs = module.embedding_bag_configs()
        fused, device = options.get("fused_params"), options.get("device")
        # Asked first, for on the meta device it has the shards placed there, as for TorchRec's own.
        order = ShardedOrder.of(module, parameters, env, fused, device)
        tiers: dict[str, Any] = {"plan": plan, "nodes": nodes, "chunk_rows": chunk_rows}
        travelling = [config for config in configs if is_coalesced(plan, config.name)]
        row_wise = _row_wise(parameters) | {config.name for config in travelling}
        divisors = divisors_of(configs, row_wise)
        rows = [
            _RowsOfDimension(
                sequences_of(module, tables),
                divisors=divisors,
                parameters={name: parameters[name] for name in tables},
                env=env,
                **tiers,
                **options,
            )
            for tables in _by_dimension(travelling)
        ]
        keys = dict(zip((c.name for c in configs), _keys(configs), strict=True))
        self._names: list[Mapping[Any, str]] = [
            {one: keys[one.table][one.feature] for one in part.tiers.features} for part in rows
        ]
        parts: list[Any] = [*rows]
        if summed := [config for config in configs if config not in travelling]:
            of_part = bags_of(module, [config.name for config in summed])
            own = {config.name: parameters[config.name] for config in summed}
            if any(config.name in plan.tables for config in summed):
                parts.append(
                    TierEmbeddingBagCollection(
                        of_part, own, env, divisors=divisors, **tiers, **options
                    )
                )
            else:
                parts.append(ShardedEmbeddingBagCollection(of_part, own, env, **options))
                divide_as_whole(parts[-1], means="size" in divisors.values())
            # Beside the tables that are left out here, a feature may have another name.
            self._names.append(
                {
                    name: keys[config.name][feature]
                    for config, names in zip(summed, _keys(summed), strict=True)
                    for feature, name in names.items()
                }
            )
        super().__init__(
            parts,
            [config.name for config in configs],
            EmbeddingBagCollection,
            order.tables,
            qcomm_codecs_registry=options.get("qcomm_codecs_registry"),
        )
        self._keys = order.columns
        self._check = InputCheck(configs)

    @property
    def tiered(self) -> list[Tiers]:
        """The tiers of those parts that have any."""
        return [part.tiers for part in self.parts if isinstance(part, TieredModule)]

    def _attribute(self, part: Any) -> str:
        return self.TABLES_OF_PART if isinstance(part, _RowsOfDimension) else self.TABLES

    def _inputs(
        self, ctx: PartsContext, features: KeyedJaggedTensor | TensorDict
    ) -> list[KeyedJaggedTensor]:
        features = maybe_td_to_kjt(features)
        self._check.first(features)
        return [features] * len(self.parts)

    def _gathered(self, ctx: PartsContext, parts: list[Any]) -> LazyAwaitable[KeyedTensor]:
        return RowBagsAwaitable(parts, self._names, self._keys)


def _row_wise(shardings: Mapping[str, ParameterSharding]) -> set[str]:
    """The tables whose bags are summed on several ranks, in parts; those of grids are too."""
    return {name for name, one in shardings.items() if one.sharding_type in SUMMED_IN_PARTS}


def is_coalesced(plan: TierPlan, table: str) -> bool:
    return table in plan.tables and plan.tables[table].coalesce != "none"


def _by_dimension(configs: Sequence[EmbeddingBagConfig]) -> list[list[str]]:
    tables: dict[int, list[str]] = {}
    for config in configs:
        tables.setdefault(config.embedding_dim, []).append(config.name)
    return list(tables.values())


def _keys(configs: Sequence[EmbeddingBagConfig]) -> list[dict[str, str]]:
    """The keys of each table's features in what a collection of these yields."""
    return [
        dict(zip(config.feature_names, names, strict=True))
        for config, names in zip(configs, get_embedding_names_by_table([*configs]), strict=True)
    ]


def _of_bags(name: str) -> str:
    """`embeddings.NAME.weight` as an EmbeddingBagCollection has it."""
    return "embedding_bags." + name.removeprefix("embeddings.")

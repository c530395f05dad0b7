"""An EmbeddingBagCollection whose rows travel, each once, and are pooled on the rank that asks.

TorchRec's row-wise EmbeddingBagCollection sends each rank the sums of all its bags from every
other rank: W · B · D a feature, however few different rows the bags hold. Here the tables are
sharded as sequences, with tiers and coalescing as theirs, and nobody but the module knows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tensordict import TensorDict
from torchrec.distributed.embeddingbag import ShardedEmbeddingBagCollection
from torchrec.distributed.types import (
    LazyAwaitable,
    ParameterSharding,
    ShardingEnv,
)
from torchrec.modules.embedding_configs import EmbeddingBagConfig, PoolingType
from torchrec.modules.embedding_modules import (
    EmbeddingBagCollection,
    EmbeddingCollection,
    get_embedding_names_by_table,
)
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor, KeyedTensor
from torchrec.sparse.tensor_dict import maybe_td_to_kjt

from recd_plugins.compat.torchrec import ShardedOrder, bags_of, optimizer_of, sequences_of
from recd_plugins.embedding.input_check import InputCheck
from recd_plugins.embedding.sharded_parts import PartsContext, ShardedParts
from recd_plugins.planning.tier_plan import TierPlan
from recd_plugins.tiers.bag_collection import TierEmbeddingBagCollection
from recd_plugins.tiers.bags import PooledRows, RowBagsAwaitable
from recd_plugins.tiers.collection import TierEmbeddingCollection, TierSequenceContext
from recd_plugins.tiers.places import Nodes
from recd_plugins.tiers.tiered_module import TieredModule
from recd_plugins.tiers.tiers import CHUNK_ROWS, Tiers

__all__ = ["TierRowBagCollection", "is_coalesced"]


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
        return PooledRows(self.tiers, ctx.update, home, self._divides)


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
        rows = [
            _RowsOfDimension(
                sequences_of(module, tables),
                means=[config.name for config in configs if config.pooling is PoolingType.MEAN],
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
                parts.append(TierEmbeddingBagCollection(of_part, own, env, **tiers, **options))
            else:
                parts.append(ShardedEmbeddingBagCollection(of_part, own, env, **options))
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


def is_coalesced(plan: TierPlan, table: str) -> bool:
    return table in plan.tables and plan.tables[table].coalesce != "none"


def _by_dimension(configs: Sequence[EmbeddingBagConfig]) -> list[list[str]]:
    tables: dict[int, list[str]] = {}
    for config in configs:
        tables.setdefault(config.embedding_dim, []).append(config.name)
    return list(tables.values())


def _keys(configs: Sequence[EmbeddingBagConfig]) -> list[dict[str, str]]:
    """For each table, the key of each of its features in what a collection of these yields."""
    return [
        dict(zip(config.feature_names, names, strict=True))
        for config, names in zip(configs, get_embedding_names_by_table([*configs]), strict=True)
    ]


def _of_bags(name: str) -> str:
    """`embeddings.NAME.weight` as an EmbeddingBagCollection has it."""
    return "embedding_bags." + name.removeprefix("embeddings.")

"""An EmbeddingBagCollection with tiers whose rows travel, not their sums.

Where the tier plan coalesces a pooled table, each row that misses travels once, and is pooled on
the rank that asks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tensordict import TensorDict
from torchrec.distributed.embeddingbag import ShardedEmbeddingBagCollection
from torchrec.distributed.types import LazyAwaitable, ParameterSharding, ShardingEnv
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import (
    EmbeddingBagCollection,
    EmbeddingCollection,
    get_embedding_names_by_table,
)
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor, KeyedTensor
from torchrec.sparse.tensor_dict import maybe_td_to_kjt

from recd_plugins.compat.made_of_parts import ShardedOrder, bags_of, sequences_of
from recd_plugins.compat.mean_division import divide_as_whole
from recd_plugins.compat.torchrec import optimizer_of
from recd_plugins.embedding.input_check import InputCheck
from recd_plugins.embedding.sharded_parts import PartsContext, ShardedParts
from recd_plugins.planning.tier_plans.tier_plan import CHUNK_ROWS, TierPlan
from recd_plugins.tiers.collections.bag_sums import TierEmbeddingBagCollection, summed_in_parts
from recd_plugins.tiers.collections.group_bags import Divisor, divisors_of
from recd_plugins.tiers.collections.row_bags_output import PooledRows, RowBagsAwaitable
from recd_plugins.tiers.collections.sequences import TierEmbeddingCollection, TierSequenceContext
from recd_plugins.tiers.collections.tiered_module import TieredModule
from recd_plugins.tiers.peers import Nodes
from recd_plugins.tiers.tables import is_coalesced
from recd_plugins.tiers.tiers import Tiers

__all__ = ["TierRowBagCollection"]


class TierRowBagCollection(ShardedParts):
    """A part for each dimension, since TorchRec's sequences have one; as a whole it looks like
    TorchRec's module.

    Tables that the plan does not coalesce are one more part, which TorchRec sums wherever its plan
    has them. Parameters, state dict and optimizer are named as an EmbeddingBagCollection's. Every
    rank must call `state_dict`, as for a checkpoint, since the replicas then bring rows home.
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
        travelling = [config for config in configs if is_coalesced(plan, config.name)]
        summed = [config for config in configs if config not in travelling]
        row_wise = summed_in_parts(parameters) | {config.name for config in travelling}
        divisors = divisors_of(configs, row_wise)
        of_tiers: dict[str, Any] = {
            "plan": plan,
            "nodes": nodes,
            "chunk_rows": chunk_rows,
            "divisors": divisors,
        }
        rows = [
            _RowsOfDimension(
                sequences_of(module, tables),
                parameters={name: parameters[name] for name in tables},
                env=env,
                **of_tiers,
                **options,
            )
            for tables in _by_dimension(travelling)
        ]
        keys = dict(zip((c.name for c in configs), _keys(configs), strict=True))
        parts: list[Any] = [*rows]
        self._names: list[Mapping[Any, str]] = [
            {one: keys[one.table][one.feature] for one in part.tiers.features} for part in rows
        ]
        """For each part, the key of the whole output for each of its own."""
        if summed:
            parts.append(_sums_of(module, summed, parameters, env, of_tiers, options))
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


def _sums_of(
    module: EmbeddingBagCollection,
    configs: Sequence[EmbeddingBagConfig],
    parameters: Mapping[str, ParameterSharding],
    env: ShardingEnv,
    of_tiers: Mapping[str, Any],
    options: Mapping[str, Any],
) -> TierEmbeddingBagCollection | ShardedEmbeddingBagCollection:
    """The part of the tables whose bags are summed at home: with tiers in front, if the plan has
    any of these tables. `options` are those of TorchRec's module, `of_tiers` what a tiered one
    takes beside."""
    names = [config.name for config in configs]
    of_part, own = bags_of(module, names), {name: parameters[name] for name in names}
    plan: TierPlan = of_tiers["plan"]
    if not plan.tables.keys().isdisjoint(names):
        return TierEmbeddingBagCollection(of_part, own, env, **of_tiers, **options)
    part = ShardedEmbeddingBagCollection(of_part, own, env, **options)
    divide_as_whole(part, means="size" in of_tiers["divisors"].values())
    return part


def _by_dimension(configs: Sequence[EmbeddingBagConfig]) -> list[list[str]]:
    tables: dict[int, list[str]] = {}
    for config in configs:
        tables.setdefault(config.embedding_dim, []).append(config.name)
    return list(tables.values())


def _of_bags(name: str) -> str:
    """`embeddings.NAME.weight` as an EmbeddingBagCollection has it."""
    return "embedding_bags." + name.removeprefix("embeddings.")


def _keys(configs: Sequence[EmbeddingBagConfig]) -> list[dict[str, str]]:
    """The keys of each table's features in the output of a collection of these tables."""
    return [
        dict(zip(config.feature_names, names, strict=True))
        for config, names in zip(configs, get_embedding_names_by_table([*configs]), strict=True)
    ]

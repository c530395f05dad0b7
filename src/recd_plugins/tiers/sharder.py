"""Sharders that put tiers in front of the tables that a tier plan names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar
from weakref import WeakSet

import torch
from torch import nn
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.types import (
    ModuleSharder,
    ParameterSharding,
    ShardingEnv,
    ShardingEnv2D,
)
from torchrec.modules.embedding_configs import BaseEmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection

from recd_plugins.compat.last_tables import end_in_a_row
from recd_plugins.compat.torchrec import module_options
from recd_plugins.embedding.wrapped_sharder import WrappedSharder
from recd_plugins.errors import CapabilityError, RegistryError, so_many
from recd_plugins.planning.tier_plans.tier_plan import CHUNK_ROWS, TierPlan
from recd_plugins.tiers.collections.bag_sums import TierEmbeddingBagCollection
from recd_plugins.tiers.collections.row_bags import TierRowBagCollection
from recd_plugins.tiers.collections.sequences import TierEmbeddingCollection
from recd_plugins.tiers.collections.tiered_module import TieredModule
from recd_plugins.tiers.peers import Nodes
from recd_plugins.tiers.tables import is_coalesced
from recd_plugins.tiers.tiers import Tiers

__all__ = ["ShardedTiers", "TierSharder", "tier_sharders", "why_no_tiers"]

M = TypeVar("M", TierEmbeddingCollection, TierEmbeddingBagCollection, TierRowBagCollection)


def tier_sharders(
    sharded: ShardedTiers, sharders: Iterable[ModuleSharder[Any]]
) -> list[ModuleSharder[nn.Module]]:
    """The sharders; those of TorchRec's collections put tiers in front of their tables."""
    collections = (EmbeddingCollection, EmbeddingBagCollection)
    return [
        TierSharder(sharder, sharded) if issubclass(sharder.module_type, collections) else sharder
        for sharder in sharders
    ]


class TierSharder(WrappedSharder):
    """Puts tiers in front of collections that have planned tables; the trainer's sharder shards all
    others.

    A module sharded with tiers has the trainer's fused params and codecs. Where the plan coalesces
    tables of an EmbeddingBagCollection, their rows travel instead of sums: `TierRowBagCollection`.
    """

    def __init__(self, inner: ModuleSharder[Any], sharded: ShardedTiers) -> None:
        super().__init__(inner)
        self._sharded = sharded

    def shard(
        self,
        module: EmbeddingCollection | EmbeddingBagCollection,
        params: dict[str, ParameterSharding],
        env: ShardingEnv,
        device: torch.device | None = None,
        module_fqn: str | None = None,
    ) -> Any:
        bags = isinstance(module, EmbeddingBagCollection)
        configs: Sequence[BaseEmbeddingConfig] = (
            module.embedding_bag_configs() if bags else module.embedding_configs()
        )
        if not self._sharded.plans_any(configs):
            return self._inner.shard(module, params, env, device, module_fqn)
        if why := why_no_tiers(self._inner):
            tables = [config.name for config in configs if config.name in self._sharded.plan.tables]
            raise CapabilityError(
                f"tier plan: tables {', '.join(tables)} have replicas, but {why}. Leave them out "
                "of the tier plan, or shard them by TorchRec's own."
            )
        options: dict[str, Any] = {"device": device, "module_fqn": module_fqn}
        kind: Any = TierEmbeddingBagCollection if bags else TierEmbeddingCollection
        if bags and self._sharded.coalesces(configs):
            kind = TierRowBagCollection
        else:
            options |= module_options(self._inner)
        return self._sharded.shard(kind, self, module, params, env, **options)

    def reshard(self, sharded_module: Any, *rest: Any, **options: Any) -> Any:
        """Refuse collections with replicas, which know where rows are at home; the trainer's
        sharder reshards others."""
        if isinstance(sharded_module, TieredModule | TierRowBagCollection):
            raise CapabilityError(
                "tiers: a collection with replicas cannot be resharded. Leave its tables out of "
                "the tier plan, or shard the model again."
            )
        return self._inner.reshard(sharded_module, *rest, **options)


class ShardedTiers:
    """A tier plan on the ranks of a job, and the tiers of every collection that was sharded by it.
    All sharders of a plan share one, so that `retier` reaches all their collections at once."""

    def __init__(self, plan: TierPlan, *, chunk_rows: int = CHUNK_ROWS) -> None:
        self.made_of = self.plan = plan
        """The plan that it was made of, and the plan of the replicas now."""
        self.chunk_rows = chunk_rows
        self._nodes: Nodes | None = None
        self._tiers: WeakSet[Tiers] = WeakSet()

    @property
    def tables(self) -> set[str]:
        """The tables that have its tiers in front of them."""
        return {name for one in self._tiers for name in one.tables}

    @property
    def never_hot(self) -> set[str]:
        """Those in collections that were never handed a hot batch."""
        return {name for one in self._tiers if not one.met_hot for name in one.tables}

    def nodes(self, env: ShardingEnv) -> Nodes:
        """The groups of the world's ranks, made once; every rank must call it."""
        if isinstance(env, ShardingEnv2D) or env.process_group is None:
            raise CapabilityError(
                "tiers need one process group over all ranks: 2D parallelism has none. Leave "
                "tier plans out, or shard over all ranks."
            )
        if env.world_size != self.plan.world_size:
            raise RegistryError(
                f"the tier plan is for {so_many(self.plan.n_nodes, 'node')} of "
                f"{so_many(self.plan.ranks_per_node, 'rank')}, and the job has "
                f"{so_many(env.world_size, 'rank')}: plan anew."
            )
        if self._nodes is None:
            self._nodes = Nodes(env.process_group, self.plan.ranks_per_node)
        return self._nodes

    def plans_any(self, configs: Sequence[BaseEmbeddingConfig]) -> bool:
        return any(config.name in self.plan.tables for config in configs)

    def coalesces(self, configs: Sequence[BaseEmbeddingConfig]) -> bool:
        """Whether the ids of any of a collection's tables are coalesced."""
        return any(is_coalesced(self.plan, config.name) for config in configs)

    def shard(
        self,
        kind: type[M],
        sharder: ModuleSharder[Any],
        module: nn.Module,
        params: Mapping[str, ParameterSharding],
        env: ShardingEnv,
        **options: Any,
    ) -> M:
        """The module, sharded with tiers in front of its tables; `retier` reaches them from now on.

        `options` are those of TorchRec's module which a sharder is handed.
        """
        make: Any = kind
        sharded: M = make(
            module,
            params,
            env,
            plan=self.plan,
            nodes=self.nodes(env),
            chunk_rows=self.chunk_rows,
            # Sharding mutates the mapping that it is given.
            fused_params=dict(sharder.fused_params or {}),
            qcomm_codecs_registry=sharder.qcomm_codecs_registry,
            **options,
        )
        end_in_a_row(sharded)
        of_parts = isinstance(sharded, TierRowBagCollection)
        self._tiers.update(sharded.tiered if of_parts else [sharded.tiers])
        return sharded

    def retier(self, plan: TierPlan) -> None:
        """`Tiers.retier` of all collections; every rank calls it between the same batches.

        All of them check the plan first: one that some collection cannot take changes none.
        """
        if (plan.n_nodes, plan.ranks_per_node) != (self.plan.n_nodes, self.plan.ranks_per_node):
            raise RegistryError(
                f"the new tier plan is for {so_many(plan.n_nodes, 'node')} of "
                f"{so_many(plan.ranks_per_node, 'rank')}, the job runs on {self.plan.n_nodes} of "
                f"{self.plan.ranks_per_node}: plan anew."
            )
        known = set(self.plan.tables).union(*(tiers.tables for tiers in self._tiers))
        if others := sorted(set(plan.tables) - known):
            raise RegistryError(
                f"the new tier plan names {', '.join(others)}, for which the model was sharded "
                "without tiers. Name only tables of the first plan, or shard the model again."
            )
        for tiers in self._tiers:
            tiers.check(plan)
        for tiers in self._tiers:
            tiers.retier(plan)
        self.plan = plan


COLLECTIONS: dict[type[ModuleSharder[Any]], type[nn.Module]] = {
    EmbeddingCollectionSharder: EmbeddingCollection,
    EmbeddingBagCollectionSharder: EmbeddingBagCollection,
}


def why_no_tiers(sharder: ModuleSharder[Any]) -> str:
    """Why no tiers can stand in front of what a sharder shards; "" where they can.

    TorchRec's own sharders can have them, and so can subclasses that do not override `shard`: what
    another `shard` makes is not known, whatever it inherits from.
    """
    kind, shards = type(sharder), sharder.module_type.__name__
    what = f"{kind.__name__} shards {'an' if shards[0] in 'AEIOU' else 'a'} {shards}"
    for own, collection in COLLECTIONS.items():
        if isinstance(sharder, own) and issubclass(sharder.module_type, collection):
            return "" if kind.shard is own.shard else f"{what} in a way of its own"
    if kind.shard.__module__.partition(".")[0] != "torchrec":
        return f"{what} in a way of its own"
    return f"{what}, of which only the ranks that have its rows know what is looked up"

"""An EmbeddingBagCollection whose rows travel, each once, and are pooled on the rank that asks.

TorchRec's row-wise EmbeddingBagCollection sends each rank the sums of all its bags from every
other rank: W · B · D a feature, however few different rows the bags hold. Here the tables are
sharded as sequences, with tiers and coalescing as theirs, and nobody but the module knows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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

from recd_plugins.compat.torchrec import optimizer_of, sequences_of
from recd_plugins.embedding.sharded_parts import PartsContext, ShardedParts
from recd_plugins.tiers.bags import PooledRows, RowBagsAwaitable
from recd_plugins.tiers.collection import TierEmbeddingCollection, TierSequenceContext
from recd_plugins.tiers.tables import TableFeature

__all__ = ["TierRowBagCollection"]


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

    Parameters, state dict and optimizer are named as an EmbeddingBagCollection's. Every rank
    must call `state_dict`, as for a checkpoint, for then the replicas bring rows home.
    """

    TABLES, TABLES_OF_PART = "embedding_bags", "embeddings"

    def __init__(
        self,
        module: EmbeddingBagCollection,
        parameters: Mapping[str, ParameterSharding],
        env: ShardingEnv,
        **options: Any,
    ) -> None:
        """`options` are those of `TierEmbeddingCollection`."""
        configs = module.embedding_bag_configs()
        parts = [
            _RowsOfDimension(
                sequences_of(module, tables),
                means=[config.name for config in configs if config.pooling is PoolingType.MEAN],
                parameters={name: parameters[name] for name in tables},
                env=env,
                **options,
            )
            for tables in _by_dimension(configs)
        ]
        super().__init__(
            parts,
            [config.name for config in configs],
            EmbeddingBagCollection,
            qcomm_codecs_registry=options.get("qcomm_codecs_registry"),
        )
        self._names = _names(
            configs, [feature for part in parts for feature in part.tiers.features]
        )

    def _inputs(self, ctx: PartsContext, features: KeyedJaggedTensor) -> list[KeyedJaggedTensor]:
        return [features] * len(self.parts)

    def _gathered(self, ctx: PartsContext, parts: list[Any]) -> LazyAwaitable[KeyedTensor]:
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

"""Means of bags: what TorchRec divides by the sizes of bags, and how its wrong divisions are
corrected.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torchrec.distributed.embeddingbag import ShardedEmbeddingBagCollection
from torchrec.distributed.types import ShardedModule
from torchrec.modules.embedding_configs import PoolingType
from torchrec.modules.embedding_modules import get_embedding_names_by_table
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.compat.made_of_parts import every_module
from recd_plugins.compat.torchrec import table_feature_names

__all__ = [
    "SUMMED_IN_PARTS",
    "divide_as_whole",
    "divide_means_alone",
    "divided_wrongly",
    "leave_means",
]

SUMMED_IN_PARTS = ("row_wise", "table_row_wise", "grid_shard")
"""The sharding types that have the rows of a bag on several ranks."""
LEFT_MEANS = "_recd_left_means"
"""The attribute of collections whose means someone else divides."""


def leave_means(sharded: ShardedModule[Any, Any, Any, Any]) -> None:
    """Have an EmbeddingBagCollection yield sums where tables pool by the mean.

    Otherwise it would divide the sums of row-wise and table-row-wise tables by the lengths of the
    bags that it is given. For other tables its kernels compute the mean.
    """
    module: Any = sharded
    module._has_mean_pooling_callback = False
    setattr(module, LEFT_MEANS, True)


def divide_as_whole(part: ShardedEmbeddingBagCollection, *, means: bool) -> None:
    """Have a part of an EmbeddingBagCollection divide as the whole one does.

    `means` says whether the whole one has row-wise means: if so, it divides sums of row-wise tables
    by 1 + 1e-6.
    """
    part._has_mean_pooling_callback = means
    divide_means_alone(part)


def divided_wrongly(sharded: nn.Module) -> list[str]:
    """The tables of EmbeddingBagCollections in a sharded module that TorchRec treats wrongly: it
    divides their bags by their sizes, or does not, where it should do the opposite. See
    `divide_means_alone`."""
    return [table for one in _collections_of_bags(sharded) for table in _divided_wrongly(one)]


def divide_means_alone(sharded: nn.Module) -> None:
    """Have the EmbeddingBagCollections in a sharded module divide only sums in parts for a mean by
    the sizes of their bags.

    Where row-wise tables pool by the mean, TorchRec sums their rows and then divides all columns of
    its output, except for features of row-wise sums if these come first. So sums of tables with
    another sharding become means, means that kernels computed are divided twice, and if two tables
    look up the same feature, one may be mistaken for the other. If keys differ in batch size (VBE)
    and come in another order than the tables, the sizes are those of other bags. If the only means
    are those of a grid, they are not divided at all.
    """
    for collection in _collections_of_bags(sharded):
        if type(collection) is ShardedEmbeddingBagCollection and (
            collection._has_mean_pooling_callback
            or any(table.is_summed_for_mean for table in _tables_of_bags(collection))
        ):
            collection.__class__ = _DividesMeansAlone
            collection._has_mean_pooling_callback = True
            collection._pooling_type_to_rs_features[PoolingType.SUM.value] = []


class _DividesMeansAlone(ShardedEmbeddingBagCollection):
    """Lets TorchRec make the divisor as if all columns were means, and corrects it.

    It does so when the output is made, because ManagedCollisionEmbeddingBagCollections make the
    divisor of their input without calling their collection.
    """

    _corrections: tuple[Tensor, Tensor] | None = None
    """[C] bool: the columns of the output that are sums for a mean; and [C] float32: the divisors
    of all other columns. None before the first output."""

    def input_dist(self, ctx: Any, features: Any) -> Any:
        if isinstance(features, KeyedJaggedTensor):
            if features.variable_stride_per_key():
                features = _expanded_in_order(features, table_feature_names(self)[0])
            elif not features.stride():
                return self._of_no_sample(ctx, features)
        return super().input_dist(ctx, features)

    def _of_no_sample(self, ctx: Any, features: KeyedJaggedTensor) -> Any:
        """The exchange of a batch without samples, for which TorchRec cannot make a divisor."""
        first = self._has_uninitialized_input_dist
        self._has_mean_pooling_callback = False
        try:
            sent = super().input_dist(ctx, features)
        finally:
            self._has_mean_pooling_callback = True
        if first:
            self._init_mean_pooling_callback(features.keys(), None)
        ctx.divisor = torch.ones(0, sum(self._embedding_dims), device=features.device())
        return sent

    def output_dist(self, ctx: Any, output: Any) -> Any:
        ctx.divisor = self._corrected(ctx.divisor)
        return super().output_dist(ctx, output)

    def compute_and_output_dist(self, ctx: Any, input: Any) -> Any:
        ctx.divisor = self._corrected(ctx.divisor)
        return super().compute_and_output_dist(ctx, input)

    def update_shards(self, *changed: Any, **options: Any) -> None:
        # TorchRec leaves the first three as they were before tables moved.
        self._kjt_key_indices.clear()
        self._has_features_permute = True
        super().update_shards(*changed, **options)
        self._dim_per_key = torch.tensor(self._embedding_dims, device=self._device)
        self._corrections = None

    def _corrected(self, divisor: Tensor) -> Tensor:
        if self._corrections is None:
            table_of = {key: table for table in _tables_of_bags(self) for key in table.keys}
            tables = [table_of[key] for key in self._embedding_names]
            device = divisor.device
            widths = torch.tensor(self._embedding_dims, device=device)
            # This is how TorchRec divides row-wise sums beside means, where it recognises them.
            others = [1 + 1e-6 if table.is_summed_in_parts else 1.0 for table in tables]
            means = [table.is_summed_for_mean for table in tables]
            self._corrections = (
                torch.tensor(means, device=device).repeat_interleave(widths),
                torch.tensor(others, device=device).repeat_interleave(widths),
            )
        are_means, by = self._corrections
        return torch.where(are_means, divisor, by)


def _expanded_in_order(features: KeyedJaggedTensor, names: Sequence[str]) -> KeyedJaggedTensor:
    """The same, with its inverse indices in the order of these names, which may repeat."""
    keys, inverse = features.inverse_indices()
    found = copy.copy(features)
    found._inverse_indices = [*names], torch.stack([inverse[keys.index(name)] for name in names])
    return found


class _TableOfBags(NamedTuple):
    name: str
    keys: list[str]
    """The keys of its features' bags in a KeyedTensor."""
    pooling: PoolingType
    is_summed_in_parts: bool

    @property
    def is_summed_for_mean(self) -> bool:
        return self.is_summed_in_parts and self.pooling is PoolingType.MEAN


def _tables_of_bags(collection: ShardedEmbeddingBagCollection) -> list[_TableOfBags]:
    configs, shardings = collection._embedding_bag_configs, collection.module_sharding_plan
    return [
        _TableOfBags(
            config.name,
            keys,
            config.pooling,
            shardings[config.name].sharding_type in SUMMED_IN_PARTS,
        )
        for config, keys in zip(configs, get_embedding_names_by_table(configs), strict=True)
    ]


def _divided_wrongly(collection: ShardedEmbeddingBagCollection) -> list[str]:
    if isinstance(collection, _DividesMeansAlone) or hasattr(collection, LEFT_MEANS):
        return []
    divided = _divided_keys(collection)
    return [
        table.name
        for table in _tables_of_bags(collection)
        if any((key in divided) != table.is_summed_for_mean for key in table.keys)
    ]


def _divided_keys(collection: ShardedEmbeddingBagCollection) -> set[str]:
    """The keys of the output that TorchRec divides by the sizes of their bags."""
    if not collection._has_mean_pooling_callback:
        return set()
    features, _ = table_feature_names(collection)
    sums = collection._pooling_type_to_rs_features.get(PoolingType.SUM.value, [])
    undivided = {features.index(name) for name in sums}
    keys = collection._embedding_names
    # A column-wise table has its features once per shard, and its keys once.
    places = (
        [features.index(key.split("@")[0]) for key in keys]
        if len(keys) != len(features)
        else range(len(features))
    )
    return {key for key, place in zip(keys, places, strict=True) if place not in undivided}


def _collections_of_bags(sharded: nn.Module) -> Iterator[ShardedEmbeddingBagCollection]:
    for module in every_module(sharded):
        if isinstance(module, ShardedEmbeddingBagCollection):
            yield module

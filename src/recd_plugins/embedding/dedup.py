"""TorchRec's collections, looked up with unique samples: same tables, same parameter names.

A collection is looked up in parts, each by one KJT; pooled tables are parted by how many
unique samples their features have, so that a small feature group is not padded to a large one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from torchrec.modules.embedding_configs import BaseEmbeddingConfig
from torchrec.modules.embedding_modules import (
    EmbeddingBagCollection,
    EmbeddingCollection,
    get_embedding_names_by_table,
)
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor, KeyedTensor

from recd_plugins.embedding.lookup import BatchSamples, pooled, rows_of, sequences
from recd_plugins.embedding.tied import tied_columns
from recd_plugins.errors import so_many
from recd_plugins.sparse.features import SparseFeatures
from recd_plugins.sparse.groups import Groups

__all__ = [
    "DedupEmbeddingBagCollection",
    "DedupEmbeddingCollection",
    "Route",
    "TablePart",
    "bag_parts",
    "deduplicated",
    "for_all_samples",
    "in_one_part",
]


class DedupEmbeddingCollection(EmbeddingCollection):
    """An EmbeddingCollection that takes `SparseFeatures` too, or as before a KJT.

    The values and lengths of deduplicated features come as `Unexpanded`.
    """

    ADAPTED_FROM = EmbeddingCollection
    """The class by which planners and DistributedModelParallel know it: `sharded_modules`."""
    parts: tuple[TablePart, ...]
    key_of: Mapping[str, str]
    """Embedding name to feature."""
    unique_keys: frozenset[str]
    """The features that come as unique samples, those of other collections among them."""
    unique_shares: Mapping[str, float]
    """Feature to its unique samples over the samples of a batch, as expected: for planners."""
    route: Route

    def forward(self, features: SparseFeatures | KeyedJaggedTensor) -> dict[str, JaggedTensor]:
        """Whole tables, as they are before sharding."""
        (part,) = self.parts
        embedded = super().forward(rows_of(features, part.keys))
        return sequences(embedded, self.key_of, BatchSamples(features, sequences=True))


class DedupEmbeddingBagCollection(EmbeddingBagCollection):
    """An EmbeddingBagCollection that takes `SparseFeatures` too, or as before a KJT.

    Under the key of a deduplicated feature, the KeyedTensor holds an `Unexpanded` tensor.
    """

    ADAPTED_FROM = EmbeddingBagCollection
    """The class by which planners and DistributedModelParallel know it: `sharded_modules`."""
    parts: tuple[TablePart, ...]
    key_of: Mapping[str, str]
    """Embedding name to feature."""
    unique_keys: frozenset[str]
    """The features that come as unique samples, those of other collections among them."""
    unique_shares: Mapping[str, float]
    """Feature to its unique samples over the samples of a batch, as expected: for planners."""
    route: Route

    def forward(self, features: SparseFeatures | KeyedJaggedTensor) -> KeyedTensor:
        """Whole tables, as they are before sharding."""
        keys = [key for part in self.parts for key in part.keys]
        summed = super().forward(rows_of(features, list(dict.fromkeys(keys))))
        (found,) = tied_columns([summed])
        return pooled(found, self.key_of, BatchSamples(features))


def deduplicated(
    module: EmbeddingCollection | EmbeddingBagCollection,
    groups: Groups,
    unique_shares: Sequence[float] | None = None,
    route: Route = "padded",
) -> DedupEmbeddingCollection | DedupEmbeddingBagCollection:
    """The module itself, from now on one that takes unique samples of `groups`.

    Its class changes and nothing else: parameters, hooks and whoever holds it stay.
    """
    if isinstance(module, EmbeddingBagCollection):
        tables: Sequence[BaseEmbeddingConfig] = module.embedding_bag_configs()
        module.__class__ = DedupEmbeddingBagCollection
        vbe = route == "vbe"
        module.parts = (
            (in_one_part(tables, groups),) if vbe else bag_parts(tables, groups, unique_shares)
        )
    else:
        tables = module.embedding_configs()
        module.__class__ = DedupEmbeddingCollection
        module.parts = (in_one_part(tables, groups),)
    made: DedupEmbeddingCollection | DedupEmbeddingBagCollection = module
    made.route = route
    made.unique_keys = frozenset(key for group in groups for key in group)
    made.unique_shares = {
        key: share
        for group, share in zip(groups, unique_shares or (), strict=bool(unique_shares))
        for key in group
    }
    made.key_of = {
        name: key
        for table, names in zip(tables, get_embedding_names_by_table(tables), strict=True)
        for key, name in zip(table.feature_names, names, strict=True)
    }
    return made


Route = Literal["padded", "vbe"]
"""How unique samples reach TorchRec: groups padded with rows of length 0, or as its variable-batch
form, which it expands itself: nothing is left to be pooled once."""

MOST_CLASSES = 3
LEAST_GAIN = 0.05
"""A further size class must spare this share of what all samples would take, since it costs
exchanges of its own."""


@dataclass(frozen=True, kw_only=True)
class TablePart:
    """Tables that one sharded module of TorchRec holds, and serves by one KJT."""

    tables: tuple[str, ...]
    keys: tuple[str, ...]
    """The tables' features, in the order of the tables."""
    embeddings: Mapping[str, str]
    """The name of an embedding in the part alone, to its name in the collection."""
    why: str
    share: float | None
    """The rows that each of its features yields, over the samples of a batch, where all yield as
    many: the unique samples of the largest group, to which the others are padded."""


def in_one_part(tables: Sequence[BaseEmbeddingConfig], groups: Groups) -> TablePart:
    """All tables in one part: embeddings one by one cost nothing for rows that only pad."""
    keys = _keys(tables)
    unique = {key for group in groups for key in group}
    count = sum(key in unique for key in keys)
    return _part(tables, tables, f"{count} of {so_many(len(keys), 'feature')} on unique samples")


def for_all_samples(tables: Sequence[BaseEmbeddingConfig], why: str) -> TablePart:
    """All tables in one part, which reads unique samples expanded."""
    return _part(tables, tables, f"all samples; {why}", 1.0)


def bag_parts(
    tables: Sequence[BaseEmbeddingConfig],
    groups: Groups,
    unique_shares: Sequence[float] | None,
) -> tuple[TablePart, ...]:
    """The tables whose features are all deduplicated, in one to three size classes; then the
    others.

    A pooled table yields as many rows as the largest of the groups that it is looked up with.
    Features that share a table stay in one part, so that each table exists once.
    """
    group_of = {key: group for group in groups for key in group}
    unique = [t for t in tables if all(key in group_of for key in t.feature_names)]
    plain = [t for t in tables if t not in unique]
    parts = []
    if unique and unique_shares is None:
        parts.append(_part(unique, tables, "unique samples, of how many is not known"))
    elif unique:
        assert unique_shares is not None
        share_of = dict(zip(groups, unique_shares, strict=True))
        shares = {t.name: max(share_of[group_of[key]] for key in t.feature_names) for t in unique}
        for size_class in size_classes(unique, shares):
            share = max(shares[t.name] for t in size_class)
            why = f"unique samples, up to {share:.0%} of the batch"
            parts.append(_part(size_class, tables, why, share))
    if plain:
        mixed = [key for t in plain for key in t.feature_names if key in group_of]
        why = "all samples"
        if mixed:
            why += f"; {', '.join(mixed)} share tables with features that are not deduplicated"
        parts.append(_part(plain, tables, why, 1.0))
    return tuple(parts)


def size_classes(
    tables: Sequence[BaseEmbeddingConfig], shares: Mapping[str, float]
) -> list[list[BaseEmbeddingConfig]]:
    """Tables by like shares, in the fewest classes that leave little to spare.

    A class costs its largest share times the columns that it pools. Classes are bands of the tables
    by falling share; the best cuts are found by trying all.
    """
    order = sorted(tables, key=lambda t: -shares[t.name])
    widths = (t.embedding_dim * len(t.feature_names) for t in order)
    columns = list(accumulate(widths, initial=0))

    def cost(start: int, stop: int) -> float:
        return float(shares[order[start].name] * (columns[stop] - columns[start]))

    best: dict[tuple[int, int], tuple[float, tuple[int, ...]]] = {}
    for stop in range(1, len(order) + 1):
        best[1, stop] = cost(0, stop), (0,)
        for classes in range(2, min(MOST_CLASSES, stop) + 1):
            best[classes, stop] = min(
                (best[classes - 1, cut][0] + cost(cut, stop), (*best[classes - 1, cut][1], cut))
                for cut in range(classes - 1, stop)
            )
    count = len(order)
    chosen, cuts = best[1, count]
    for number in range(2, min(MOST_CLASSES, count) + 1):
        spent, further = best[number, count]
        if chosen - spent > LEAST_GAIN * columns[-1]:
            chosen, cuts = spent, further
    found = [order[a:b] for a, b in zip(cuts, (*cuts[1:], count), strict=True)]
    return [[table for table in tables if table in size_class] for size_class in found]


def _part(
    chosen: Sequence[BaseEmbeddingConfig],
    every: Sequence[BaseEmbeddingConfig],
    why: str,
    share: float | None = None,
) -> TablePart:
    # TorchRec names an embedding by its feature, and by its table too if the feature has several.
    names = dict(zip((t.name for t in every), get_embedding_names_by_table([*every]), strict=True))
    alone = get_embedding_names_by_table([*chosen])
    return TablePart(
        tables=tuple(table.name for table in chosen),
        keys=_keys(chosen),
        embeddings={
            mine: whole
            for table, names_alone in zip(chosen, alone, strict=True)
            for mine, whole in zip(names_alone, names[table.name], strict=True)
        },
        why=why,
        share=share,
    )


def _keys(tables: Sequence[BaseEmbeddingConfig]) -> tuple[str, ...]:
    """Each feature once, in the order of the tables."""
    return tuple(dict.fromkeys(key for table in tables for key in table.feature_names))

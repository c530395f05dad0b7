"""DLRM over sequences, each with a chosen pooling in place of a bag's sum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from recd_dlrm.models.click_model import click_model
from recd_dlrm.models.dlrm import (
    DlrmConfig,
    bag_tables,
    dense_width,
    sequence_tables,
    taken_schema,
    top_layers,
)
from recd_dlrm.poolings.reduce import Reduce
from recd_plugins.api import (
    Context,
    PoolingFactory,
    RegistryError,
    Unused,
    check_patterns,
    matching,
    nearest,
)
from recd_plugins.api.data import Schema, SparseFeature

if TYPE_CHECKING:
    from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
    from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor, KeyedTensor

__all__ = ["Pooled", "SequenceDlrm", "SequenceDlrmConfig", "SequenceVectors", "build_sequence_dlrm"]


@dataclass(frozen=True, kw_only=True)
class SequenceDlrmConfig(DlrmConfig):
    """DLRM's options, which features are sequences and what each is asked about."""

    sequences: tuple[str, ...] = ()
    """Features that the model takes as sequences, beside those that the schema calls so."""
    query: Mapping[str, str] = field(default_factory=dict)
    """For a sequence, the feature whose vector is its pooling's query. By default it is the first
    feature that shares the sequence's table and is no sequence, such as the item of a history."""


class Pooled(NamedTuple):
    """A feature whose embeddings come one by one, and the pooling that turns them into a vector."""

    feature: str
    pooling: nn.Module
    query: str | None = None
    scored: bool = False
    """Whether each embedding is weighted by the weight of its id."""


class SequenceVectors(nn.Module):
    """[B, F, D]: one vector for each feature, in the order of `names`.

    Everything that depends on the data happens in this module: TorchRec's pipeline traces the
    model, but does not look into a module that contains no sharded one. A query comes before the
    feature that uses it.
    """

    def __init__(self, names: Sequence[str], pooled: Sequence[Pooled]) -> None:
        super().__init__()
        self.names = tuple(names)
        self.features = tuple(each.feature for each in pooled)
        self.queries = tuple(each.query for each in pooled)
        self.poolings = nn.ModuleList(each.pooling for each in pooled)
        self.scored = frozenset(each.feature for each in pooled if each.scored)

    def forward(
        self,
        embedded: dict[str, JaggedTensor],
        summed: KeyedTensor | None,
        features: KeyedJaggedTensor | None = None,
    ) -> Tensor:
        """The vectors, from jagged [N, D] for each feature to pool and [B, D] for each other one;
        `features` has the weights of scored ids.

        Sums are still on their way from other ranks until they are touched, which is as late as
        possible: poolings run meanwhile. So in backward the sums' gradients leave before poolings
        run.
        """
        from recd_plugins.api.embedding import weighed

        vectors: dict[str, Tensor] = {}
        for name, query, pooling in zip(self.features, self.queries, self.poolings, strict=True):
            jagged = embedded[name]
            if summed is not None and query is not None and query not in vectors:
                vectors |= summed.to_dict()
                summed = None
            by = None if query is None else vectors[query]
            values = jagged.values()
            if name in self.scored:
                values = weighed(jagged, features, name)
            vectors[name] = pooling(values, jagged.lengths(), by)
        if summed is not None:
            vectors |= summed.to_dict()
        return torch.stack([vectors[name] for name in self.names], dim=1)


class SequenceDlrm(nn.Module):
    """logit = top(interaction(bottom(dense), one vector for each sparse feature)).

    `sequences` has the tables that sequences use, with all their features, and `bags` has the other
    tables. So each table exists once, and an item is in the same space as its history.
    """

    def __init__(
        self,
        *,
        sequences: EmbeddingCollection,
        bags: EmbeddingBagCollection | None,
        vectors: SequenceVectors,
        dense_features: int,
        bottom: list[int],
        top: list[int],
    ) -> None:
        from torchrec.models.dlrm import DenseArch, InteractionArch, OverArch

        super().__init__()
        self.sequences = sequences
        self.bags = bags
        self.vectors = vectors
        self.bottom = DenseArch(dense_features, bottom)
        count = len(vectors.names)
        self.interaction = InteractionArch(count)
        self.top = OverArch(bottom[-1] + count + count * (count - 1) // 2, top)

    def forward(self, dense: Tensor, features: KeyedJaggedTensor) -> Tensor:
        """Outputs [B, T], one for each label, of dense [B, n_dense] and features of B rows each."""
        embedded = self.sequences(features)
        summed = None if self.bags is None else self.bags(features)
        bottom = self.bottom(dense)  # during the exchange of both
        weights = features if self.vectors.scored else None
        vectors = self.vectors(embedded, summed, weights)
        logits: Tensor = self.top(self.interaction(bottom, vectors))
        return logits


class Roles(NamedTuple):
    """The role that each feature of a schema has in the model."""

    sequences: tuple[SparseFeature, ...]
    items: tuple[SparseFeature, ...]
    """Features that are not sequences, but share a table with one."""
    others: tuple[SparseFeature, ...]

    @classmethod
    def of(cls, schema: Schema, named: Sequence[str]) -> Roles:
        for name in named:
            if name not in schema.sparse_names:
                raise RegistryError(
                    f"no sparse feature {name!r}; {nearest(name, schema.sparse_names)}",
                    where="model.sequences",
                )
        sequences = tuple(f for f in schema.sparse if f.sequence or f.name in named)
        if not sequences:
            raise RegistryError(
                "sequence_dlrm needs a sequence, but the schema marks no feature as one. "
                "Name some here, or use dlrm.",
                where="model.sequences",
            )
        tables = {feature.table_name for feature in sequences}
        rest = [f for f in schema.sparse if f not in sequences]
        return cls(
            sequences,
            items=tuple(f for f in rest if f.table_name in tables),
            others=tuple(f for f in rest if f.table_name not in tables),
        )

    def queries(self, named: Mapping[str, str]) -> dict[str, str]:
        """The query feature of each sequence that has one."""
        names = [feature.name for feature in self.sequences]
        known = [feature.name for feature in (*self.items, *self.others)]
        for sequence, query in named.items():
            if sequence not in names:
                raise RegistryError(
                    f"{sequence!r} is no sequence; {nearest(sequence, names)}",
                    where="model.query",
                )
            if query not in known:
                raise RegistryError(
                    f"{query!r} is none of the features beside the sequences; "
                    f"{nearest(query, known)}",
                    where=f"model.query.{sequence}",
                )
        first: dict[str, str] = {}
        for item in self.items:
            first.setdefault(item.table_name, item.name)
        default = {f.name: first[f.table_name] for f in self.sequences if f.table_name in first}
        return {**default, **named}


def choose_poolings(
    slot: Mapping[str, PoolingFactory], sequences: Sequence[str]
) -> dict[str, PoolingFactory]:
    """Each sequence's pooling: the one of its name, or of the first glob that matches, or else the
    sum."""
    chosen: dict[str, PoolingFactory] = {}
    for pattern, factory in slot.items():
        check_patterns(
            [pattern],
            sequences,
            kind="sequence of the model",
            where=f"pooling.{pattern}",
            fix="Other features become sequences under model.sequences.",
        )
        for name in matching([pattern], sequences):
            chosen.setdefault(name, factory)
    exact = {name: slot[name] for name in sequences if name in slot}
    return {name: lambda dim: Reduce("sum") for name in sequences} | chosen | exact


def build_sequence_dlrm(config: SequenceDlrmConfig, context: Context) -> nn.Module:
    schema = taken_schema("sequence_dlrm", config, context)
    dim = config.embedding_dim
    roles = Roles.of(schema, config.sequences)
    queries = roles.queries(config.query)
    poolings = choose_poolings(
        context.neighbours.get("pooling", {}), [feature.name for feature in roles.sequences]
    )
    pooled = [Pooled(item.name, Reduce("sum"), scored=item.scored) for item in roles.items]
    for feature in roles.sequences:
        pooling: Any = poolings[feature.name](dim)
        pooling.of_features = (*getattr(pooling, "of_features", ()), feature.name)
        query = queries.get(feature.name)
        if query is None and getattr(pooling, "needs_query", False):
            raise RegistryError(
                f"needs a query, but no other feature shares the table {feature.table_name!r}. "
                f"Name one under model.query.{feature.name}.",
                where=f"pooling.{feature.name}",
            )
        if feature.scored and not getattr(pooling, "takes_weights", False):
            raise RegistryError(
                f"this pooling does not weigh the ids of {feature.name!r}, which are scored. "
                "Choose `sum` or `mean`, which take weighted embeddings, or take the weights away: "
                "they come from `scored` in its entry of the schema, or from a step of "
                "`preprocess` such as compute_score.",
                where=f"pooling.{feature.name}",
            )
        pooled.append(Pooled(feature.name, pooling, query, feature.scored))
    net = SequenceDlrm(
        sequences=sequence_tables(schema, (*roles.sequences, *roles.items), dim),
        bags=bag_tables(schema, roles.others, dim) if roles.others else None,
        vectors=SequenceVectors(schema.sparse_names, pooled),
        dense_features=dense_width(schema),
        bottom=config.bottom_layers,
        top=top_layers(config, schema),
    )
    idle = [one for one in pooled if one.feature in config.query and _takes_no_query(one.pooling)]
    return click_model(net, schema, context, [_unasked(one) for one in idle])


def _takes_no_query(pooling: nn.Module) -> bool:
    """Whether a pooling says that it ignores its query."""
    return getattr(pooling, "needs_query", None) is False


def _unasked(pooled: Pooled) -> Unused:
    """The notice of a query that no pooling takes."""
    return Unused(
        what=f"model: query.{pooled.feature}",
        why=f"its vector is a query for the pooling of {pooled.feature!r}, and "
        f"{type(pooled.pooling).__name__} takes none",
        cure=f"Choose one that does, as `pooling.{pooled.feature}.use: attention`, or take it out.",
    )

"""Rows summed over bags straight from where they are, and the gradients of rows from those of bags.

No id has a row of its own in between: rows are read where they came in once, and what is written
is bags forward and rows backward. The rows of ids that missed are summed here too where rows come
from home; where TorchRec sums them at home, the tiers' sums are added to its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd import Function
from torchrec.distributed.types import LazyAwaitable, LazyGetItemMixin
from torchrec.modules.embedding_configs import EmbeddingBagConfig, PoolingType
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedTensor
from torchrec.streamable import Multistreamable

from recd_plugins.compat.torchrec import HasOwnExchange, LazyKeyedTensor
from recd_plugins.tiers.collectives import Peers
from recd_plugins.tiers.reduction import Entries, add_rows
from recd_plugins.tiers.routed_batch import RoutedBatch, RoutedGroup, begins
from recd_plugins.tiers.rows import rows_from_home, tied
from recd_plugins.tiers.tables import TableFeature
from recd_plugins.tiers.tiers import Tiers
from recd_plugins.tiers.update import GroupUpdate, ReplicaGradients, Update

__all__ = [
    "Divisor",
    "Lookups",
    "PackedBags",
    "PooledRows",
    "RowBagsAwaitable",
    "SumsAwaitable",
    "divisors_of",
]

TINY = 1e-6
"""What TorchRec adds to a divisor, that the mean of an empty bag be 0."""

Divisor = Literal["size", "one"]
"""What TorchRec divides a feature's sums by: the size of each bag, or 1, and `TINY` with it."""


def divisors_of(
    configs: Iterable[EmbeddingBagConfig], row_wise: Collection[str]
) -> dict[str, Divisor]:
    """The divisors of a collection's `row_wise` tables; sums of others stay as they are.

    Where one of them pools by the mean, TorchRec divides the sums of all, those that stay sums by
    1: they are off by `TINY`, and so they are here.
    """
    found: dict[str, Divisor] = {
        config.name: "size" if config.pooling is PoolingType.MEAN else "one"
        for config in configs
        if config.name in row_wise
    }
    return found if "size" in found.values() else {}


@dataclass(frozen=True)
class Lookups:
    """n ids that are rows of one source, each in a bag."""

    which: Tensor
    """[n] int64: the row of each."""
    bags: Tensor
    """[n] int64, ascending."""
    weights: Tensor | None
    """[n] float32; by default 1."""

    def sums(self, rows: Tensor, num_bags: int) -> Tensor:
        """[num_bags, D] float32, of `rows` [u, D]."""
        if not len(self.which):
            return rows.new_zeros(num_bags, rows.shape[1], dtype=torch.float32)
        which = self.which
        if rows.dtype != torch.float32:  # of smaller types, sums would be rounded too
            rows = rows.index_select(0, which).float()
            which = torch.arange(len(which), device=which.device)
        # A row for each id, and `index_add_` of these, would take 2 to 9 times as long on the CPU.
        sums: Tensor = torch.embedding_bag(
            rows,
            which,
            begins(self.bags, num_bags),
            mode=0,  # the sum
            per_sample_weights=self.weights,
            include_last_offset=True,
        )[0]
        return sums

    def gradients(self, bags: Tensor, num_rows: int) -> Tensor:
        """[num_rows, D] float32, from the gradients of the sums over `bags` [num_bags, D]."""
        if not bags.is_cuda:
            rows = bags.new_zeros(num_rows, bags.shape[1])
            add_rows(rows, self.which, bags, self.bags, self.weights)
            return rows
        return self.turned().sums(bags, num_rows)

    def turned(self) -> Lookups:
        """Each row as a bag of the bags that it is in."""
        order = self.which.argsort(stable=True)
        return Lookups(
            self.bags[order],
            self.which[order],
            None if self.weights is None else self.weights[order],
        )


@dataclass(frozen=True)
class _GroupBags:
    """The bags of one group's ids, bag f · B + b being that of its feature f and sample b."""

    num_bags: int
    like: Tensor
    """[0, D]"""
    replicated: Lookups
    replicated_rows: Tensor | None
    """[H, D]: the rows of the tier `replicated` on this rank, or those of its ids alone, as they
    were."""
    addresses: Tensor
    """[n] int32 or int64: the addresses of the rows that `replicated` looks up."""
    per_node: Lookups | None
    node_rows: Tensor | None
    """[u, D]: the rows that this rank asked of its node."""
    missed: Lookups | None
    """The ids whose rows come from home one by one; none where TorchRec sums them there."""

    @classmethod
    def of(cls, batch: RoutedBatch, group: RoutedGroup, *, rows_come: bool) -> _GroupBags:
        bags = batch.bags[group.span] - group.first_feature * batch.batch_size
        weights = None if batch.weights is None else batch.weights[group.span]

        def lookups(which: Tensor, at: Tensor) -> Lookups:
            if len(at) == len(bags):
                return Lookups(which, bags, weights)
            return Lookups(which, bags[at], None if weights is None else weights[at])

        routed, asked = group.routed, group.asked
        tier, before = group.replicas.replicated_tier, group.rows_before
        which, rows = routed.replicated.positions, None if tier is None else tier.rows
        if before is not None:
            which, rows = torch.arange(len(before), device=bags.device), before
        missed = None
        if rows_come:
            inverse = group.home_ids.result.inverse
            if inverse is None:
                inverse = torch.arange(len(routed.missed), device=bags.device)
            missed = lookups(inverse, routed.missed)
        return cls(
            num_bags=len(group.segments.lengths) * batch.batch_size,
            like=group.replicas.group.like,
            replicated=lookups(which, routed.replicated.at),
            replicated_rows=rows,
            addresses=group.addresses,
            per_node=None if asked is None else lookups(asked.inverse, routed.per_node.at),
            node_rows=None if group.node_rows is None else group.node_rows.wait(),
            missed=missed,
        )

    def sums(self, home: Tensor | None = None) -> Tensor:
        """[F · B, D] float32; `home` [u, D] are the rows that came from there, if rows do."""
        sources = [
            (lookups, rows)
            for lookups, rows in (
                (self.missed, home),
                (self.replicated, self.replicated_rows),
                (self.per_node, self.node_rows),
            )
            if lookups is not None and rows is not None and len(lookups.which)
        ]
        if not sources:
            return self.like.new_zeros(self.num_bags, self.like.shape[1], dtype=torch.float32)
        first, *others = (lookups.sums(rows, self.num_bags) for lookups, rows in sources)
        for sums in others:
            first += sums
        return first

    def replica_gradients(self, sums: Tensor) -> ReplicaGradients:
        """The gradients of the tiers' rows, from those of the sums [F · B, D] float32."""
        hits = self.replicated
        replicated = Entries(self.addresses, sums, hits.bags, hits.weights)
        if self.per_node is None or self.node_rows is None:
            return ReplicaGradients(replicated, None)
        return ReplicaGradients(replicated, self.per_node.gradients(sums, len(self.node_rows)))


def _divide(features: Iterable[Tensor], divisors: Sequence[Tensor | None]) -> None:
    """Divide each feature's bags [B, D] in place; what has no divisor stays."""
    for bags, divisor in zip(features, divisors, strict=True):
        if divisor is not None:
            bags /= divisor.unsqueeze(1)


def _numbers(batch: RoutedBatch, divisors: Sequence[Divisor | None]) -> list[Tensor | None]:
    """The numbers [B] that the sums of each feature are divided by."""
    if not any(divisors):
        return [None] * len(divisors)
    sizes = batch.bag_sizes()
    one = torch.ones_like(sizes[0])
    return [
        None if divisor is None else (size if divisor == "size" else one) + TINY
        for size, divisor in zip(sizes, divisors, strict=True)
    ]


# Rows that come from home one by one.


class _PoolRows(Function):
    @staticmethod
    def forward(
        ctx: Any,
        home: Tensor,
        anchor: Tensor,
        group: _GroupBags,
        divisors: Sequence[Tensor | None],
        update: GroupUpdate,
    ) -> Tensor:
        ctx.group, ctx.divisors, ctx.update = group, divisors, update
        ctx.like, ctx.num_rows = home.new_empty(0), len(home)
        bags = group.sums(home)
        _divide(bags.unflatten(0, (len(divisors), -1)), divisors)
        return bags.to(home.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None]:
        group: _GroupBags = ctx.group
        divided = any(divisor is not None for divisor in ctx.divisors)
        sums = gradient.to(torch.float32, copy=divided).contiguous()
        _divide(sums.unflatten(0, (len(ctx.divisors), -1)), ctx.divisors)
        sums = ctx.update.clipped(sums)
        ctx.update.accumulate(group.replica_gradients(sums))
        assert group.missed is not None
        home = group.missed.gradients(sums, ctx.num_rows)
        return home.to(ctx.like.dtype), None, None, None, None


class PooledRows(LazyAwaitable[Mapping[TableFeature, Tensor]]):
    """The bags [B, D] of each feature, whose rows are all of one dimension and come from home."""

    def __init__(
        self,
        tiers: Tiers,
        update: Update,
        home: LazyAwaitable[dict[str, JaggedTensor]],
        divisors: Sequence[Divisor | None],
    ) -> None:
        """`divisors` are those of each feature's sums."""
        super().__init__()
        self._tiers = tiers
        self._update = update
        self._home = home
        self._divisors = divisors

    def _wait_impl(self) -> Mapping[TableFeature, Tensor]:
        home: dict[str, JaggedTensor] = self._tiers.wait(self._home)
        batch = self._update.batch
        divisors = _numbers(batch, self._divisors)
        found: dict[TableFeature, Tensor] = {}
        for number, group in enumerate(batch.groups):
            own = slice(group.first_feature, group.first_feature + len(group.segments.lengths))
            features = self._tiers.features[own]
            # `anchor` requires a gradient (that never comes), so that backward gets here on every
            # rank: it yields that of the rows to TorchRec and accumulates that of the replicas.
            bags: Tensor = _PoolRows.apply(
                rows_from_home(home, [feature.name for feature in features], group),
                self._tiers.anchor,
                _GroupBags.of(batch, group, rows_come=True),
                divisors[own],
                GroupUpdate(self._update, number),
            )
            found.update(zip(features, bags.unflatten(0, (len(features), -1)), strict=True))
        return found


class RowBagsAwaitable(HasOwnExchange, LazyGetItemMixin[str, Tensor], LazyAwaitable[KeyedTensor]):
    """The output of an EmbeddingBagCollection, from the bags of the rows of each dimension, and
    from the sums that TorchRec made of other tables."""

    def __init__(
        self,
        parts: Sequence[LazyAwaitable[Mapping[TableFeature, Tensor]] | LazyAwaitable[KeyedTensor]],
        names: Sequence[Mapping[Any, str]],
        keys: Sequence[str],
    ) -> None:
        """`names` are, for each part, the keys of what it yields; `keys` are those of all."""
        super().__init__()
        self._parts, self._names, self._keys = parts, names, keys

    def _wait_impl(self) -> KeyedTensor:
        found: dict[str, Tensor] = {}
        for part, names in zip(self._parts, self._names, strict=True):
            bags: Any = part.wait()
            each = bags.to_dict() if isinstance(bags, KeyedTensor) else bags
            found |= {names[feature]: tensor for feature, tensor in each.items()}
        outputs = tied([found[key] for key in self._keys])
        return LazyKeyedTensor(dict(zip(self._keys, outputs, strict=True)))


# Sums that TorchRec makes at home.


@dataclass(frozen=True)
class PackedBags(Multistreamable):
    """The bags with ids that miss, each feature's moved to its front: TorchRec sends a sum for
    every bag that it is given."""

    lengths: Tensor
    """[F, stride]: features with fewer bags than the most end in empty ones."""
    samples: tuple[Tensor, ...]
    """The samples whose bags these are, ascending; one tensor for each feature."""

    @classmethod
    def of(cls, lengths: Tensor, world: Peers) -> PackedBags:
        """Pack this rank's bags of `lengths` [F, B]; every rank must call it.

        All ranks send equally many, for gloo sums no others: the most that any rank has, even
        where their batches differ in size.
        """
        counts = lengths.count_nonzero(1)
        # All numbers at once: on CUDA the processor waits for them.
        *each, most = torch.cat([counts, world.most(counts.max()).view(1)]).tolist()
        features, samples = lengths.nonzero().unbind(1)
        columns = torch.arange(len(samples), device=samples.device)
        columns -= (counts.cumsum(0) - counts)[features]
        packed = lengths.new_zeros(len(lengths), max(1, most))
        packed[features, columns] = lengths[features, samples]
        return cls(packed, samples.split(each))

    @classmethod
    def none(cls, lengths: Tensor) -> PackedBags:
        """[F, B] bags that are all empty on every rank: this takes no collective."""
        none = torch.empty(0, dtype=torch.int64, device=lengths.device)
        return cls(lengths[:, :0], (none,) * len(lengths))

    @property
    def stride(self) -> int:
        return self.lengths.shape[1]

    def unpack(self, packed: Tensor, feature: int, bags: Tensor) -> None:
        """Put a feature's sums `packed` [stride, D] where its samples are in `bags` [B, D]."""
        samples = self.samples[feature]
        bags.index_copy_(0, samples, packed[: len(samples)])

    def pack(self, bags: Tensor, feature: int, packed: Tensor) -> None:
        """The inverse of `unpack`, into zeros."""
        samples = self.samples[feature]
        packed[: len(samples)] = bags.index_select(0, samples)

    def record_stream(self, stream: torch.Stream) -> None:
        for tensor in (self.lengths, *self.samples):
            tensor.record_stream(stream)


@dataclass(frozen=True)
class _Output:
    """The map from the sums of a batch to what the collection yields, [B, C]."""

    batch: RoutedBatch
    columns: Sequence[slice]
    """The columns, among the C, of each feature's sums."""
    divisors: Sequence[Tensor | None]
    """The numbers that the sums of each feature are divided by, [B]."""
    packed: PackedBags
    """The bags whose sums come from home."""
    groups: Sequence[_GroupBags]
    update: Update

    def features(self, bags: Tensor) -> list[Tensor]:
        """Views of each feature's [B, D]."""
        return [bags[:, own] for own in self.columns]

    def of_group(self, number: int, bags: Tensor) -> list[Tensor]:
        """Views of each feature's of a group."""
        group = self.batch.groups[number]
        count = len(group.segments.lengths)
        return self.features(bags)[group.first_feature : group.first_feature + count]


class _AddSums(Function):
    @staticmethod
    def forward(ctx: Any, home: Tensor, anchor: Tensor, output: _Output) -> Tensor:
        ctx.output, ctx.home_shape = output, home.shape
        bags = home.new_zeros(output.batch.batch_size, home.shape[1])
        pairs = zip(output.features(home), output.features(bags), strict=True)
        for number, (packed, own) in enumerate(pairs):
            output.packed.unpack(packed, number, own)
        for number, group in enumerate(output.groups):
            features = output.of_group(number, bags)
            sums = group.sums().unflatten(0, (len(features), output.batch.batch_size))
            for own, hits in zip(features, sums, strict=True):
                own += hits
        _divide(output.features(bags), output.divisors)
        return bags

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        output: _Output = ctx.output
        if any(divisor is not None for divisor in output.divisors):
            gradient = gradient.clone()
            _divide(output.features(gradient), output.divisors)
        for number, group in enumerate(output.groups):
            update = GroupUpdate(output.update, number)
            sums = update.clipped(torch.cat(output.of_group(number, gradient)).float())
            update.accumulate(group.replica_gradients(sums))
        home = gradient.new_zeros(ctx.home_shape)
        pairs = zip(output.features(gradient), output.features(home), strict=True)
        for number, (own, packed) in enumerate(pairs):
            output.packed.pack(own, number, packed)
        return home, None, None


class SumsAwaitable(HasOwnExchange, LazyGetItemMixin[str, Tensor], LazyAwaitable[KeyedTensor]):
    """The output of an EmbeddingBagCollection: TorchRec's sums of the ids that missed, and the
    tiers' sums of the others, waited for when they are first looked at."""

    def __init__(
        self,
        tiers: Tiers,
        update: Update,
        packed: PackedBags,
        home: LazyAwaitable[KeyedTensor],
        divisors: Sequence[Divisor | None],
    ) -> None:
        """`divisors` are those of each feature's sums, which are divided here."""
        super().__init__()
        self._tiers = tiers
        self._update = update
        self._packed = packed
        self._home = home
        self._divisors = divisors

    def _wait_impl(self) -> KeyedTensor:
        home: KeyedTensor = self._tiers.wait(self._home)
        batch = self._update.batch
        columns = {}
        end = 0
        for key, width in zip(home.keys(), home.length_per_key(), strict=True):
            columns[key] = slice(end, end + width)
            end += width
        output = _Output(
            batch=batch,
            columns=[columns[feature.name] for feature in self._tiers.features],
            divisors=_numbers(batch, self._divisors),
            packed=self._packed,
            groups=[_GroupBags.of(batch, group, rows_come=False) for group in batch.groups],
            update=self._update,
        )
        # `anchor` is there for backward to get here on every rank, as in `PooledRows`.
        values = _AddSums.apply(home.values(), self._tiers.anchor, output)
        return KeyedTensor(keys=home.keys(), length_per_key=home.length_per_key(), values=values)

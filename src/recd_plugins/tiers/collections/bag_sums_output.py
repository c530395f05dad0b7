"""Bags of which TorchRec sums the rows that miss, at home; the tiers' sums are added to its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torchrec.distributed.types import LazyAwaitable, LazyGetItemMixin
from torchrec.sparse.jagged_tensor import KeyedTensor
from torchrec.streamable import Multistreamable

from recd_plugins.compat.outputs import HasOwnExchange
from recd_plugins.tiers.collections.column_blocks import ColumnBlocks
from recd_plugins.tiers.collections.group_bags import Divisor, GroupBags, divide, divided_by
from recd_plugins.tiers.peers import Peers
from recd_plugins.tiers.routed_batch import RoutedBatch
from recd_plugins.tiers.tiers import Tiers
from recd_plugins.tiers.updates.update import GroupUpdate, Update

__all__ = ["PackedBags", "SumsAwaitable"]


class SumsAwaitable(HasOwnExchange, LazyGetItemMixin[str, Tensor], LazyAwaitable[KeyedTensor]):
    """The output of an EmbeddingBagCollection: TorchRec's sums of the ids that missed and the
    tiers' sums of the others, which are waited for when they are first read."""

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
        with self._update.at_lookup():
            return self._joined()

    def _joined(self) -> KeyedTensor:
        home: KeyedTensor = self._tiers.wait(self._home)
        batch = self._update.batch
        columns = {}
        end = 0
        for key, width in zip(home.keys(), home.length_per_key(), strict=True):
            columns[key] = end, end + width
            end += width
        values: Tensor = home.values()
        edges = tuple(columns[feature.name] for feature in self._tiers.features)
        output = _Output(
            batch=batch,
            edges=edges,
            blocks=ColumnBlocks.of(edges, values.device),
            divisors=divided_by(batch, self._divisors),
            packed=self._packed,
            groups=[GroupBags.of(batch, group, rows_come=False) for group in batch.groups],
            update=self._update,
        )
        # The anchor brings backward here on every rank.
        sums = _AddSums.apply(values, self._tiers.anchor, output)
        return KeyedTensor(keys=home.keys(), length_per_key=home.length_per_key(), values=sums)


class _AddSums(Function):
    @staticmethod
    def forward(ctx: Any, home: Tensor, anchor: Tensor, output: _Output) -> Tensor:
        ctx.output, ctx.home_shape = output, home.shape
        blocks, (at_home, here) = output.blocks, output.places
        bags = home.new_zeros(output.batch.batch_size, home.shape[1], dtype=torch.float32)
        blocks.move(home.float(), at_home, bags, here)
        for number, group in enumerate(output.groups):
            blocks.add(bags, output.features(number), group.sums())
        divide(output.split(bags), output.divisors)
        return bags.to(home.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        output: _Output = ctx.output
        blocks, (at_home, here) = output.blocks, output.places
        divided = any(divisor is not None for divisor in output.divisors)
        gradient = gradient.clone(memory_format=torch.contiguous_format) if divided else gradient
        gradient = gradient.contiguous()
        divide(output.split(gradient), output.divisors)
        for number, group in enumerate(output.groups):
            update = GroupUpdate(output.update, number)
            sums = blocks.gather(gradient, output.features(number)).float()
            update.accumulate(group.replica_gradients(update.clipped(sums)))
        home = gradient.new_zeros(ctx.home_shape)
        blocks.move(gradient, here, home, at_home)
        return home, None, None


@dataclass(frozen=True)
class _Output:
    """The map from the sums of a batch to what the collection yields, [B, C]."""

    batch: RoutedBatch
    edges: Sequence[tuple[int, int]]
    """The first column, among the C, of each feature's sums, and the one behind its last."""
    blocks: ColumnBlocks
    """The same columns."""
    divisors: Sequence[Tensor | None]
    """The numbers that the sums of each feature are divided by, [B]."""
    packed: PackedBags
    """The bags whose sums come from home."""
    groups: Sequence[GroupBags]
    update: Update

    @cached_property
    def places(self) -> tuple[Tensor, Tensor]:
        """Where the blocks of packed bags are among those that come from home, and among those of
        the output."""
        packed = self.packed
        at_home = self.blocks.places(packed.places, packed.features, packed.counts)
        return at_home, self.blocks.places(packed.samples, packed.features, packed.counts)

    def split(self, bags: Tensor) -> list[Tensor]:
        """Views [B, D], one for each feature."""
        return [bags[:, first:last] for first, last in self.edges]

    def features(self, number: int) -> range:
        """The features of one group."""
        group = self.batch.groups[number]
        return range(group.first_feature, group.first_feature + len(group.segments.lengths))


@dataclass(frozen=True)
class PackedBags(Multistreamable):
    """The bags with ids that miss, moved to the front of their feature: TorchRec sends a sum for
    every bag that it is given."""

    lengths: Tensor
    """[F, stride]: features with fewer bags than the most end in empty ones."""
    counts: Sequence[int]
    """[F]: how many bags of each feature have ids that miss; they sum to n."""
    features: Tensor
    """[n] int64: the feature of each, ascending."""
    samples: Tensor
    """[n] int64: the sample whose bag it is."""
    places: Tensor
    """[n] int64: its place among those of its feature."""

    @classmethod
    def of(cls, lengths: Tensor, world: Peers) -> PackedBags:
        """Pack this rank's bags of `lengths` [F, B]; every rank must call it.

        All ranks send as many bags as the rank with the most, even where their batches differ in
        size: gloo cannot sum unequal parts.
        """
        counts = lengths.count_nonzero(1)
        # All numbers at once: on CUDA the processor waits for them.
        *each, most = torch.cat([counts, world.most(counts.max()).view(1)]).tolist()
        features, samples = lengths.nonzero().unbind(1)
        places = torch.arange(len(samples), device=samples.device)
        places -= (counts.cumsum(0) - counts)[features]
        packed = lengths.new_zeros(len(lengths), max(1, most))
        packed[features, places] = lengths[features, samples]
        return cls(packed, each, features, samples, places)

    @classmethod
    def none(cls, lengths: Tensor) -> PackedBags:
        """Pack the bags of a hot batch of `lengths` [F, B], where no id misses on any rank. This
        runs no collective."""
        none = torch.empty(0, dtype=torch.int64, device=lengths.device)
        return cls(lengths[:, :0], [0] * len(lengths), none, none, none)

    @property
    def stride(self) -> int:
        return self.lengths.shape[1]

    def record_stream(self, stream: torch.Stream) -> None:
        for tensor in (self.lengths, self.features, self.samples, self.places):
            tensor.record_stream(stream)

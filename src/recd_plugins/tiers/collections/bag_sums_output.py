"""Bags of which TorchRec sums the rows that miss, at home; the tiers' sums are added to its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torchrec.distributed.types import LazyAwaitable, LazyGetItemMixin
from torchrec.sparse.jagged_tensor import KeyedTensor
from torchrec.streamable import Multistreamable

from recd_plugins.compat.outputs import HasOwnExchange
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
            columns[key] = slice(end, end + width)
            end += width
        output = _Output(
            batch=batch,
            columns=[columns[feature.name] for feature in self._tiers.features],
            divisors=divided_by(batch, self._divisors),
            packed=self._packed,
            groups=[GroupBags.of(batch, group, rows_come=False) for group in batch.groups],
            update=self._update,
        )
        # The anchor brings backward here on every rank.
        values = _AddSums.apply(home.values(), self._tiers.anchor, output)
        return KeyedTensor(keys=home.keys(), length_per_key=home.length_per_key(), values=values)


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
        divide(output.features(bags), output.divisors)
        return bags

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        output: _Output = ctx.output
        if any(divisor is not None for divisor in output.divisors):
            gradient = gradient.clone()
            divide(output.features(gradient), output.divisors)
        for number, group in enumerate(output.groups):
            update = GroupUpdate(output.update, number)
            sums = update.clipped(torch.cat(output.of_group(number, gradient)).float())
            update.accumulate(group.replica_gradients(sums))
        home = gradient.new_zeros(ctx.home_shape)
        pairs = zip(output.features(gradient), output.features(home), strict=True)
        for number, (own, packed) in enumerate(pairs):
            output.packed.pack(own, number, packed)
        return home, None, None


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
    groups: Sequence[GroupBags]
    update: Update

    def features(self, bags: Tensor) -> list[Tensor]:
        """Views [B, D], one for each feature."""
        return [bags[:, own] for own in self.columns]

    def of_group(self, number: int, bags: Tensor) -> list[Tensor]:
        """The same for the features of one group."""
        group = self.batch.groups[number]
        count = len(group.segments.lengths)
        return self.features(bags)[group.first_feature : group.first_feature + count]


@dataclass(frozen=True)
class PackedBags(Multistreamable):
    """The bags with ids that miss, moved to the front of their feature: TorchRec sends a sum for
    every bag that it is given."""

    lengths: Tensor
    """[F, stride]: features with fewer bags than the most end in empty ones."""
    samples: tuple[Tensor, ...]
    """The samples whose bags these are, ascending; one tensor for each feature."""

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
        columns = torch.arange(len(samples), device=samples.device)
        columns -= (counts.cumsum(0) - counts)[features]
        packed = lengths.new_zeros(len(lengths), max(1, most))
        packed[features, columns] = lengths[features, samples]
        return cls(packed, samples.split(each))

    @classmethod
    def none(cls, lengths: Tensor) -> PackedBags:
        """Pack the bags of a hot batch of `lengths` [F, B], where no id misses on any rank. This
        runs no collective."""
        none = torch.empty(0, dtype=torch.int64, device=lengths.device)
        return cls(lengths[:, :0], (none,) * len(lengths))

    @property
    def stride(self) -> int:
        return self.lengths.shape[1]

    def unpack(self, packed: Tensor, feature: int, bags: Tensor) -> None:
        """Put a feature's `packed` sums [stride, D] where their samples are in `bags` [B, D]."""
        samples = self.samples[feature]
        bags.index_copy_(0, samples, packed[: len(samples)])

    def pack(self, bags: Tensor, feature: int, packed: Tensor) -> None:
        """The inverse of `unpack`, into zeros."""
        samples = self.samples[feature]
        packed[: len(samples)] = bags.index_select(0, samples)

    def record_stream(self, stream: torch.Stream) -> None:
        for tensor in (self.lengths, *self.samples):
            tensor.record_stream(stream)

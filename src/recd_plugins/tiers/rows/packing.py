"""Bags with ids that pass, without those that have none: TorchRec sends a sum for each bag."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torchrec.streamable import Multistreamable

from recd_plugins.tiers.nodes import Peers

__all__ = ["PackedBags"]


@dataclass(frozen=True)
class PackedBags(Multistreamable):
    """Of [S, B] bags those that are not empty, each slot's moved to its front."""

    lengths: Tensor
    """[S, stride]: slots with fewer bags than the most end in empty ones."""
    samples: tuple[Tensor, ...]
    """Of each slot: the samples whose bags these are, ascending."""

    @classmethod
    def of(cls, lengths: Tensor, world: Peers) -> PackedBags:
        """Of the lengths [S, B] of this rank's bags; every rank must call it.

        All ranks send equally many, for gloo sums no others: the most that any rank has, be
        their batches of uneven sizes.
        """
        samples = tuple(slot.nonzero().squeeze(1) for slot in lengths)
        most = max((len(slot) for slot in samples), default=0)
        stride = max(1, world.most(most, lengths.device))
        packed = lengths.new_zeros(len(lengths), stride)
        for row, slot, which in zip(packed, lengths, samples, strict=True):
            row[: len(which)] = slot[which]
        return cls(packed, samples)

    @classmethod
    def none(cls, lengths: Tensor) -> PackedBags:
        """Of [S, B] bags that are all empty on every rank: no collective."""
        none = torch.empty(0, dtype=torch.int64, device=lengths.device)
        return cls(lengths[:, :0], (none,) * len(lengths))

    @property
    def stride(self) -> int:
        return self.lengths.shape[1]

    def unpack(self, packed: Tensor, slot: int, bags: Tensor) -> None:
        """Put a slot's sums `packed` [stride, D] where its samples are in `bags` [B, D]."""
        samples = self.samples[slot]
        bags.index_copy_(0, samples, packed[: len(samples)])

    def pack(self, bags: Tensor, slot: int, packed: Tensor) -> None:
        """The inverse of `unpack`, into zeros."""
        samples = self.samples[slot]
        packed[: len(samples)] = bags.index_select(0, samples)

    def record_stream(self, stream: torch.Stream) -> None:
        for tensor in (self.lengths, *self.samples):
            tensor.record_stream(stream)

"""What is trained: a net that answers with logits, and the loss that they are judged by."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

if TYPE_CHECKING:
    from recd_plugins.api.batch import Batch

__all__ = ["ClickModel", "weighted_loss"]


class ClickModel(nn.Module):
    """Any `net(dense, features) -> logits [B] or [B, 1]`, with its loss.

    A schema without dense features has nothing for a bottom MLP to read; with `constant`
    the net gets a column of ones, so that the MLP becomes a learned vector.
    """

    def __init__(self, net: nn.Module, *, constant: bool = False) -> None:
        super().__init__()
        self.net = net
        self.constant = constant

    def forward(self, batch: Batch) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor, Tensor]]:
        """The loss, then (loss, logits [B], labels [B], weights [B]), detached."""
        # TorchRec's pipeline finds `batch.features` by tracing this: only attributes on the way.
        dense = F.pad(batch.dense, (1, 0), value=1.0) if self.constant else batch.dense
        logits = self.net(dense, batch.features).squeeze(-1)
        loss = weighted_loss(logits, batch.labels, batch.weights)
        return loss, (
            loss.detach(),
            logits.detach(),
            batch.labels.detach(),
            batch.weights.detach(),
        )


def weighted_loss(logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """sum_i w_i BCE(logit_i, label_i) / sum_i w_i, all [B]; 0 where all weights are 0.

    The mean of it over ranks, which DDP's gradients follow, is the loss of the global batch
    if the ranks' weight sums are equal: a padding row on one rank alone breaks that.
    """
    mean = weights.mean()
    even = weights / torch.where(mean > 0, mean, 1.0)
    # A mean of weights that average to 1: with weights of 1 this is plain BCE, to the bit.
    return F.binary_cross_entropy_with_logits(logits, labels, even)

"""Any net with the losses of its labels: what every model here is.

A model's `net` is TorchRec's or its own; `ClickModel` gives it a batch's columns, and weighs what
it makes of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recd_plugins.api import Context, GivesNotices, Notice
from recd_plugins.api.data import Label, Schema

if TYPE_CHECKING:
    from recd_plugins.api.batch import Batch

__all__ = ["ClickModel", "click_model", "weighted_loss"]

CLICK = Label(name="label")
"""The label of a model that is given no labels."""


class ClickModel(nn.Module, GivesNotices):
    """Any `net(dense, features) -> outputs [B] or [B, T]`, one for each of T labels, with its loss.

    The loss is the sum of the labels' losses, each times its label's weight. A schema without dense
    features has nothing for a bottom MLP to read; with `constant` the net gets a column of ones, so
    that the MLP becomes a learned vector. `places` are the positions of the batch's floats that the
    net gets, by default all. `found` are the notices of its options.
    """

    places: Tensor | None

    def __init__(
        self,
        net: nn.Module,
        *,
        constant: bool,
        labels: Sequence[Label] = (CLICK,),
        places: Sequence[int] | None = None,
        found: Sequence[Notice] = (),
    ) -> None:
        super().__init__()
        self.net = net
        chosen = None if places is None else torch.tensor([*places], dtype=torch.int64)
        self.register_buffer("places", chosen, persistent=False)
        self.constant = constant
        self.labels = tuple(labels)
        self._found = tuple(found)

    def notices(self) -> Sequence[Notice]:
        return self._found

    def forward(self, batch: Batch) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor, Tensor]]:
        """The loss, then (loss, outputs, labels, weights [B]), detached.

        Outputs and labels are [B], or [B, T] for T labels. An output is the logit of a click, the
        logit of a grade divided by the highest one, or the value itself of a regression.
        """
        # TorchRec's pipeline finds `batch.features` by tracing this: use only attribute accesses.
        dense = batch.dense if self.places is None else batch.dense[:, self.places]
        if self.constant:
            dense = F.pad(dense, (1, 0), value=1.0)
        outputs = self.net(dense, batch.features)
        if len(self.labels) == 1:
            outputs = outputs.squeeze(-1)
            loss = _label_loss(outputs, batch.labels, batch.weights, self.labels[0])
        else:
            losses = [
                _label_loss(outputs[:, task], batch.labels[:, task], batch.weights, label)
                for task, label in enumerate(self.labels)
            ]
            loss = torch.stack(losses).sum()
        return loss, (
            loss.detach(),
            outputs.detach(),
            batch.labels.detach(),
            batch.weights.detach(),
        )


def _label_loss(outputs: Tensor, labels: Tensor, weights: Tensor, label: Label) -> Tensor:
    """The loss of one label times its weight; samples that lack the label do not count. All tensors
    are [B]."""
    if label.nulls == "empty":
        lacking = labels.isnan()
        labels, weights = labels.masked_fill(lacking, 0.0), weights.masked_fill(lacking, 0.0)
    if label.kind == "regression":
        loss = (even_weights(weights) * (outputs - labels).square()).mean()
    else:
        loss = weighted_loss(outputs, labels if label.scale == 1 else labels / label.scale, weights)
    return loss if label.weight == 1 else label.weight * loss


def weighted_loss(logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """sum_i w_i BCE(logit_i, label_i) / N, all [B], N the samples of weight above 0; 0 without any.

    Its mean over ranks, which DDP's gradients follow, is the loss of the global batch if all ranks
    have equally many such samples: a padding row on only one rank breaks that.
    """
    # A mean with weights that average to 1: with weights of 1 this is exactly plain BCE.
    return F.binary_cross_entropy_with_logits(logits, labels, even_weights(weights))


def even_weights(weights: Tensor) -> Tensor:
    """[B] weights whose mean over the batch is their sum over the samples that have any."""
    share = (weights > 0).to(weights.dtype).mean()
    return weights / torch.where(share > 0, share, 1.0)


def click_model(
    net: nn.Module, schema: Schema, context: Context, found: Sequence[Notice] = ()
) -> ClickModel:
    """A net for the columns in `schema`, which are some of the context's, with the loss of its
    labels, and the notices `found` of its options."""
    whole = context.require_schema()
    widths = [whole.width(name) or 1 for name in whole.dense]
    names = [name for name, width in zip(whole.dense, widths, strict=True) for _ in range(width)]
    places = [place for place, name in enumerate(names) if name in schema.dense]
    return ClickModel(
        net,
        constant=not schema.dense,
        labels=schema.targets,
        places=None if schema.dense == whole.dense else places,
        found=found,
    )

"""Checks that the outputs of the registry's model are what its slot asks for; an error names the
record."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from recd_plugins.errors import PluginError, shown

__all__ = ["watch_outputs"]

FIX = "Return loss, (loss.detach(), logits.detach(), batch.labels, batch.weights)."
"""What to do about outputs of another kind."""


def watch_outputs(model: nn.Module, who: str) -> None:
    """Check what the model's forward returns, in training and in evaluation, before TorchRec and
    the metrics take it apart."""

    def check(module: nn.Module, given: tuple[Any, ...], outputs: Any) -> None:
        match outputs:
            case (Tensor(), (Tensor(), Tensor(), Tensor(), Tensor())):
                loss, (_, logits, labels, weights) = cast("Any", outputs)
            case _:
                raise PluginError(f"{who}: forward returned {_in_words(outputs)}. {FIX}")
        if loss.dim():
            raise PluginError(
                f"{who}: forward returned a loss of shape {list(loss.shape)}, where it must be "
                "one number. Reduce it over the batch, by its weights."
            )
        if module.training and torch.is_grad_enabled() and not loss.requires_grad:
            raise PluginError(
                f"{who}: forward returned a loss without a gradient, so that nothing would be "
                f"trained. {FIX} Detach what is returned behind the loss, not the loss itself."
            )
        if logits.numel() != labels.numel() or weights.shape != logits.shape[:1]:
            raise PluginError(
                f"{who}: forward returned logits {list(logits.shape)} for labels "
                f"{list(labels.shape)} and weights {list(weights.shape)}. Return one for each "
                "label of each sample, and a weight [B] for each sample."
            )

    model.register_forward_hook(check)


def _in_words(outputs: Any) -> str:
    """Types and shapes, as they are nested."""
    if isinstance(outputs, Tensor):
        return f"a tensor {list(outputs.shape)}"
    if isinstance(outputs, tuple | list):
        return f"({', '.join(_in_words(one) for one in outputs)})"
    return shown(outputs)

"""The outputs of one lookup as one, so that their backwards run on every rank or on none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.autograd import Function

__all__ = ["together"]


class _Together(Function):
    @staticmethod
    def forward(ctx: Any, *outputs: Tensor) -> tuple[Tensor, ...]:
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        return gradients


def together(outputs: Sequence[Tensor]) -> Sequence[Tensor]:
    """The same tensors. Once a loss depends on one of them, the others' gradients are zeros.

    Backward of each exchanges with the other ranks, whose losses may depend on others of them:
    behind one node, all exchange all, in one order.
    """
    passed: tuple[Tensor, ...] = _Together.apply(*outputs)
    return passed

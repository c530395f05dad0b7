"""The optimizer of replicas' rows: the arithmetic of fbgemm's fused optimizers, repeated.

Options that fbgemm accepts and its kernels never read have no effect here either: `weight_decay` of
SGD and Adagrad, `max_norm` of all but row-wise Adagrad on CUDA.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torchrec.optim.keyed import KeyedOptimizer

from recd_plugins.compat.fused_kernels import fused_arithmetic, next_forward
from recd_plugins.compat.kernels import kernel
from recd_plugins.compat.torchrec import local_parts
from recd_plugins.errors import CapabilityError, DataError
from recd_plugins.sparse.rows.memory import all_below

__all__ = ["KINDS", "OptimizerKind", "RowOptimizer", "check_repeatable"]

OptimizerKind = Literal[
    "sgd",
    "adagrad",
    "rowwise_adagrad",
    "adam",
    "partial_rowwise_adam",
    "lamb",
    "partial_rowwise_lamb",
]

KINDS: dict[str, OptimizerKind] = {
    "EXACT_SGD": "sgd",
    "EXACT_ADAGRAD": "adagrad",
    "EXACT_ROWWISE_ADAGRAD": "rowwise_adagrad",
    "ADAM": "adam",
    "PARTIAL_ROWWISE_ADAM": "partial_rowwise_adam",
    "LAMB": "lamb",
    "PARTIAL_ROWWISE_LAMB": "partial_rowwise_lamb",
}
"""fbgemm's name of each; on the CPU it has the first three."""

Floats: TypeAlias = npt.NDArray[np.float32]

Decay = Literal["none", "l2", "decoupled"]
DECAYS: tuple[Decay, ...] = ("none", "l2", "decoupled")
"""The decays that can be repeated, by the number of fbgemm's `WeightDecayMode`."""


@dataclass(frozen=True, kw_only=True)
class RowOptimizer:
    """Steps rows w [n, D] by their gradients g [n, D], each by itself.

    sgd              w <- w - lr g
    adagrad          s <- s + g²,              w <- w - lr g / (√s + eps),     s [n, D]
    rowwise_adagrad  s <- s + mean_d (g + l w)²,  w <- c w - lr g / (√s + eps),   s [n, 1]

    With weight decay λ by L2, l = λ and c = 1 - λ lr / (√s + eps); decoupled, l = 0 and
    c = 1 - λ lr; without, l = 0 and c = 1. Where a row is longer than `max_norm` it is cut.

    adam             m <- b₁ m + (1 - b₁) g,  v <- b₂ v + (1 - b₂) g²,  m, v [n, D],
                     r = m / (1 - b₁ᵗ) / (√(v / (1 - b₂ᵗ)) + eps) + λ w,   w <- w - lr r
    lamb             the same, but w <- w - lr r |w| / |r|
    partial_rowwise_adam, partial_rowwise_lamb
                     the same, but of v there is one a row [n, 1], and of g² its mean over d

    t counts the forwards of the kernel, this one included; `counts_rows`, the steps of each row.
    """

    kind: OptimizerKind
    learning_rate: float = 0.01
    eps: float = 1e-8
    weight_decay: float = 0.0
    decay: Decay = "none"
    """The way in which row-wise Adagrad decays weights; the Adams and LAMBs have only one."""
    max_norm: float = 0.0
    """The most that a row's norm may be; 0 for no bound."""
    beta1: float = 0.9
    beta2: float = 0.999
    forwards: int = 1
    """t."""
    counts_rows: bool = False

    @classmethod
    def of(cls, kernel: KeyedOptimizer, *, on_cpu: bool, decays: bool = True) -> RowOptimizer:
        """The optimizer as the kernel will step by its next forward: rates and the like may change
        before another one. `decays`: whether it decays weights, where it is set to."""
        name, arguments = fused_arithmetic(kernel)
        kind = KINDS[name]
        rate, forwards = next_forward(kernel)
        return cls(
            kind=kind,
            learning_rate=rate,
            eps=arguments.eps,
            weight_decay=arguments.weight_decay,
            decay=DECAYS[arguments.weight_decay_mode]
            if decays and kind == "rowwise_adagrad"
            else "none",
            max_norm=0.0 if on_cpu or kind != "rowwise_adagrad" else arguments.max_norm,
            beta1=arguments.beta1,
            beta2=arguments.beta2,
            forwards=forwards,
            counts_rows=arguments.use_rowwise_bias_correction,
        )

    def state_width(self, dim: int) -> int:
        """Numbers of state for a row of D."""
        match self.kind:
            case "sgd":
                return 0
            case "adagrad":
                return dim
            case "rowwise_adagrad":
                return 1
            case "adam" | "lamb":
                return 2 * dim + self.counts_rows
            case "partial_rowwise_adam" | "partial_rowwise_lamb":
                return dim + 1

    def update(self, rows: Tensor, state: Tensor, which: Tensor, gradients: Tensor) -> None:
        """Step the rows `which` [n], each there once, of `rows` [R, D] and their state in place, by
        gradients [n, D] float32."""
        if (
            (self.kind, self.decay, self.max_norm) == ("rowwise_adagrad", "none", 0.0)
            and rows.dtype == torch.float32
            and not rows.is_cuda
        ):
            arrays = (one.numpy() for one in (rows, state, which, gradients))
            rate, eps = np.float32(self.learning_rate), np.float32(self.eps)
            if not _rowwise_adagrad(*arrays, rate, eps):
                raise DataError(
                    f"tiers: some row to update is none of {len(rows)}, or of them {len(state)} "
                    f"have a state, or {len(which)} come with {len(gradients)} gradients. This "
                    "happens if tier plans differ between ranks: give all ranks the same plan."
                )
            return
        # Stepped in float32, then rounded to the table's type: as fbgemm does.
        stepped, states = rows.index_select(0, which).float(), state.index_select(0, which)
        self.step(stepped, states, gradients, rows.dtype)
        rows.index_copy_(0, which, stepped.to(rows.dtype))
        state.index_copy_(0, which, states)

    def step(
        self,
        rows: Tensor,
        state: Tensor,
        gradients: Tensor,
        table_type: torch.dtype = torch.float32,
    ) -> None:
        """Step `rows` and their `state` [n, `state_width`] in place, all float32.

        On the CPU, fbgemm rounds the steps of SGD and Adagrad to the table's type, then the rows.
        """
        rate = self.learning_rate
        match self.kind:
            case "sgd" if table_type == torch.float32:
                rows.sub_(gradients, alpha=rate)
                return
            case "sgd":
                step = gradients * rate
            case "adagrad":
                state.addcmul_(gradients, gradients)
                step = gradients * (rate / (state.sqrt() + self.eps))
            case "rowwise_adagrad":
                step = self._rowwise_step(rows, state, gradients)
            case _:
                rows.sub_(self._direction(rows, state, gradients), alpha=rate)
                return
        if self.kind != "rowwise_adagrad" and rows.device.type == "cpu":
            step = step.to(table_type)
        rows.sub_(step)
        if self.max_norm:
            stored = rows.to(table_type).float()
            norms = stored.norm(dim=1, keepdim=True)
            rows.copy_(torch.where(norms > self.max_norm, stored * (self.max_norm / norms), stored))

    def _rowwise_step(self, rows: Tensor, state: Tensor, gradients: Tensor) -> Tensor:
        """Decay the rows as row-wise Adagrad does, and return what is then to be taken off them."""
        decay, rate = self.weight_decay, self.learning_rate
        whole = gradients + decay * rows if self.decay == "l2" else gradients
        state += whole.square().mean(dim=1, keepdim=True)
        rates = rate / (state.sqrt() + self.eps)
        if self.decay != "none":
            rows.mul_(1 - decay * (rates if self.decay == "l2" else rate))
        return gradients * rates

    def _direction(self, rows: Tensor, state: Tensor, gradients: Tensor) -> Tensor:
        """r of the Adams, and of the LAMBs times |w| / |r|."""
        dim, partial = rows.shape[1], self.kind.startswith("partial")
        first, second = state[:, :dim], state[:, dim : dim + 1 if partial else 2 * dim]
        squares = gradients.square()
        first.mul_(self.beta1).add_(gradients, alpha=1 - self.beta1)
        second.mul_(self.beta2).add_(
            squares.mean(dim=1, keepdim=True) if partial else squares, alpha=1 - self.beta2
        )
        # float32, in which fbgemm computes the powers: with a beta near 1 this shows in the first
        # steps.
        steps = state[:, -1:].add_(1) if self.counts_rows else state.new_full((1,), self.forwards)
        means, variances = first / (1 - self.beta1**steps), second / (1 - self.beta2**steps)
        direction: Tensor = means / (variances.sqrt() + self.eps) + self.weight_decay * rows
        if self.kind in ("lamb", "partial_rowwise_lamb"):
            lengths, own = (part.norm(dim=1, keepdim=True) for part in (rows, direction))
            direction *= lengths / own
        return direction


@kernel
def _rowwise_adagrad(
    rows: Floats,
    state: Floats,
    which: npt.NDArray[np.int64],
    gradients: Floats,
    rate: np.float32,
    eps: np.float32,
) -> bool:
    """`RowOptimizer.update` without decay, in one pass over the rows. Squares are added up by
    fours, in the same order on all processors, so that every rank gets the same sum. If a row, its
    state or its gradient does not exist, steps nothing and returns False."""
    if len(which) > len(gradients) or len(state) != len(rows) or not all_below(which, len(rows)):
        return False
    columns = gradients.shape[1]
    for i in range(len(which)):
        row, gradient = rows[np.uintp(which[i])], gradients[i]
        first = second = third = fourth = 0.0
        for at in range(0, columns - columns % 4, 4):
            first += _square(gradient[at])
            second += _square(gradient[at + 1])
            third += _square(gradient[at + 2])
            fourth += _square(gradient[at + 3])
        for at in range(columns - columns % 4, columns):
            first += _square(gradient[at])
        own = state[np.uintp(which[i])]
        own[0] += np.float32(((first + second) + (third + fourth)) / columns)
        step = np.divide(rate, np.sqrt(own[0]) + eps)  # by 0 it is infinite, as with torch
        for at in range(columns):
            row[at] -= gradient[at] * step
    return True


@kernel
def _square(number: np.float32) -> Any:
    return np.float64(number) * np.float64(number)


def check_repeatable(kernel: KeyedOptimizer, tables: Sequence[str]) -> None:
    """`CapabilityError` unless replicas can repeat what the kernel does to these tables."""
    name, arguments = fused_arithmetic(kernel)
    what = []
    if name not in KINDS:
        what.append(name)
    elif arguments.regularization_mode >= len(DECAYS):
        what.append(f"{name} with a weight_decay_mode other than {', '.join(DECAYS)}")
    types = {
        part.dtype
        for weight in kernel.params.values()
        for state in kernel.state[weight].values()
        for _, part in local_parts(state)
    }
    if others := sorted(str(kind) for kind in types - {torch.float32}):
        what.append(f"{name} with states of {', '.join(others)}")
    if what:
        raise CapabilityError(
            f"tiers: tables {', '.join(tables)} are updated by fbgemm's {', '.join(what)}, whose "
            f"arithmetic replicas cannot repeat. Use one of {', '.join(KINDS.values())}, or leave "
            "these tables out of the tier plan."
        )

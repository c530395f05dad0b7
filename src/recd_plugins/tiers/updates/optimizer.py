"""The tables' fused optimizers on rows of a replica: fbgemm's arithmetic, row by row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torchrec.optim.keyed import CombinedOptimizer

from recd_plugins.errors import CapabilityError

__all__ = ["FlushingOptimizer", "OptimizerKind", "RowOptimizer"]

OptimizerKind = Literal["sgd", "adagrad", "rowwise_adagrad"]


@dataclass(frozen=True)
class RowOptimizer:
    """Updates rows w [n, D] by their gradients g [n, D]; each row stands for itself.

    sgd               w <- w - lr g
    adagrad           s <- s + g²,          w <- w - lr g / (sqrt(s) + eps),   s [n, D]
    rowwise_adagrad   s <- s + mean_d(g²),  w <- w - lr g / (sqrt(s) + eps),   s [n]
    """

    kind: OptimizerKind
    eps: float

    def empty_state(self, rows: Tensor) -> Tensor:
        """A place for the state of `rows` [n, D]: [n, D], [n] or [n, 0], float32."""
        width = {"sgd": 0, "adagrad": rows.shape[1], "rowwise_adagrad": 1}[self.kind]
        return torch.zeros(len(rows), width, device=rows.device)

    def step(
        self,
        rows: Tensor,
        state: Tensor,
        gradients: Tensor,
        learning_rate: float,
        table_type: torch.dtype = torch.float32,
    ) -> None:
        """Update `rows` and their `state` [n, 0 | 1 | D] in place, all float32.

        On the CPU, fbgemm rounds the steps of SGD and Adagrad to the table's type, then the rows.
        """
        match self.kind:
            case "sgd" if table_type == torch.float32:
                rows.sub_(gradients, alpha=learning_rate)
                return
            case "sgd":
                step = gradients * learning_rate
            case "adagrad":
                state.addcmul_(gradients, gradients)
                step = gradients * (learning_rate / (state.sqrt() + self.eps))
            case "rowwise_adagrad":
                state += gradients.square().mean(dim=1, keepdim=True)
                step = gradients * (learning_rate / (state.sqrt() + self.eps))
        if self.kind != "rowwise_adagrad" and rows.device.type == "cpu":
            step = step.to(table_type)
        rows.sub_(step)


class FlushingOptimizer(CombinedOptimizer):
    """TorchRec's fused optimizer of a collection, whose state is partly with replicas.

    Whoever asks for the state gets it whole: `flush` first brings it home. Learning rates
    reach the replicas when they reach TorchRec's kernels: in `zero_grad`, `step` and
    `update_hyper_parameters`.
    """

    def __init__(
        self,
        optimizer: CombinedOptimizer,
        flush: Callable[[], None],
        set_learning_rates: Callable[[float | None], None],
    ) -> None:
        """`set_learning_rates` to a number, or to those of the optimizer's groups."""
        super().__init__(list(optimizer.optimizers))
        self._flush = flush
        self._set_learning_rates = set_learning_rates

    @property
    def state(self) -> Any:
        self._flush()
        return super().state

    def zero_grad(self, set_to_none: bool = False) -> None:
        super().zero_grad(set_to_none)
        self._set_learning_rates(None)

    def step(self, closure: Any = None) -> None:
        super().step(closure)
        self._set_learning_rates(None)

    def update_hyper_parameters(self, params_dict: dict[str, Any]) -> None:
        if others := sorted(set(params_dict) - {"lr"}):
            raise CapabilityError(
                f"tiers: update_hyper_parameters can take lr alone, not {', '.join(others)}, which "
                "replicas do not follow. Set it where the model is sharded, or leave tiers out."
            )
        super().update_hyper_parameters(params_dict)
        if "lr" in params_dict:
            self._set_learning_rates(float(params_dict["lr"]))

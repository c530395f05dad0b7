"""An optimizer: steps of one size, along the signs of a running mean of gradients."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import nn
from torch.optim import Optimizer

from recd_plugins.api import Config, Context, OptimizerFactory, OptimizerRecord, Range, hookimpl


@dataclass(frozen=True, kw_only=True)
class NewPluginConfig(Config):
    """The options of new_plugin."""

    lr: Annotated[float, Range(gt=0)] = 1e-3
    """The learning rate: how far each weight moves in a step."""
    momentum: Annotated[float, Range(ge=0, lt=1)] = 0.9
    """The share of the mean that stays from step to step."""


class NewPlugin(Optimizer):
    """m <- momentum m + (1 - momentum) g, w <- w - lr sign(m)."""

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float, momentum: float) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """The rate is read anew in each step, as callbacks may set it."""
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    state = self.state[weight]  # checkpoints keep it
                    mean = state.setdefault("mean", torch.zeros_like(weight))
                    mean.lerp_(weight.grad, 1 - group["momentum"])
                    weight.sub_(mean.sign(), alpha=group["lr"])


def build(config: NewPluginConfig, context: Context) -> OptimizerFactory:
    return lambda parameters: NewPlugin(parameters, config.lr, config.momentum)


@hookimpl
def recd_optimizer() -> list[OptimizerRecord[NewPluginConfig]]:
    return [
        OptimizerRecord(
            name="new_plugin",
            summary="Steps along the signs of gradients.",
            config=NewPluginConfig,
            build=build,
        )
    ]

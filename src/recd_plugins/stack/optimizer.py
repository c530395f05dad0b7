"""The factory that the `optimizer` slot chose; each optimizer that it makes is checked against the
parameters that it was given."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recd_plugins.errors import check_made
from recd_plugins.registry.choice import Choice
from recd_plugins.slots import OptimizerFactory
from recd_plugins.slots.built import check_steps
from recd_plugins.stack.usage import OPTIMIZER_MADE, Usage

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

__all__ = ["checked_factory"]


def checked_factory(choice: Choice, factory: OptimizerFactory, usage: Usage) -> OptimizerFactory:
    """The factory, which raises `PluginError` where it makes no optimizer of the parameters; a
    notice names those that it leaves out."""

    def make(params: list[nn.Parameter]) -> Optimizer:
        from torch.optim import Optimizer

        usage.asked(OPTIMIZER_MADE)
        with choice.named("when asked for an optimizer"):
            made = factory(params)
        check_made(made, Optimizer, f"{choice.who}: its factory made", "Return one.")
        check_steps(made, params, f"{choice.who}: its factory made an optimizer that")
        held = {id(one) for group in made.param_groups for one in group["params"]}
        left = sum(one.requires_grad and id(one) not in held for one in params)
        usage.not_stepped(choice, left, len(params))
        return made

    return make

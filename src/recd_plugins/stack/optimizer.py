"""The factory that the `optimizer` slot chose; each optimizer that it makes is checked against the
parameters that it was given."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from recd_plugins.errors import RegistryError, check_made
from recd_plugins.registry.choice import Choice
from recd_plugins.registry.contexts import Contexts
from recd_plugins.registry.registry import Registry
from recd_plugins.slots import OptimizerFactory
from recd_plugins.slots.built import check_steps
from recd_plugins.stack.usage import OPTIMIZER_MADE, Usage

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

__all__ = ["chosen_factory"]


def chosen_factory(
    registry: Registry, contexts: Callable[[], Contexts], usage: Usage
) -> OptimizerFactory | None:
    """The factory that the slot chose; None where `train.optimizer` chooses the dense optimizer."""
    usage.asked("optimizer")
    choices = registry.chosen("optimizer")
    if not choices:
        return None
    written = registry.written("train", "optimizer")
    if twice := [name for name in written if name.startswith("dense")]:
        raise RegistryError(
            f"optimizer: the slot and train.optimizer ({', '.join(twice)}) both choose the "
            "dense optimizer. Keep one of them."
        )
    (choice,) = choices
    factory: OptimizerFactory = choice.build(contexts().of("optimizer"))
    return _checked(choice, factory, usage)


def _checked(choice: Choice, factory: OptimizerFactory, usage: Usage) -> OptimizerFactory:
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

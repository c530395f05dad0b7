"""The optimizer of the dense parameters: any of torch.optim, or that of its slot."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from recd_plugins.errors import RegistryError, nearest, shown
from recd_plugins.registry.settings import OptimizerSettings
from recd_plugins.stack import Stack

__all__ = ["WAYS", "check_dense_optimizer", "dense_optimizer"]

WAYS = {"capturable", "differentiable", "foreach", "fused"}
"""The options of torch's optimizers that say how a step is done."""


def dense_optimizer(stack: Stack, params: list[nn.Parameter]) -> torch.optim.Optimizer:
    """The registry's optimizer of the parameters that no fused optimizer updates: any of
    torch.optim, or that of its slot."""
    if (factory := stack.optimizer()) is not None:
        return factory(params)
    settings = stack.registry.train.optimizer
    if params:
        _check_options(settings, params[0].device)
    return _made(_kind(settings), params, settings)


def check_dense_optimizer(stack: Stack) -> None:
    """`RegistryError` if registry.yaml names no optimizer of torch, or one that refuses its
    options. On CUDA the ranks try the options."""
    settings = stack.registry.train.optimizer
    if stack.device == "cpu":
        _check_options(settings, torch.device("cpu"))
    else:
        _kind(settings)


def _check_options(settings: OptimizerSettings, device: torch.device) -> None:
    """`RegistryError` if torch refuses the options, or fails because of them in the first step."""
    kind = _kind(settings)
    small = nn.Parameter(torch.ones(2, 2, device=device))
    small.grad = torch.ones_like(small)
    optimizer = _made(kind, [small], settings)
    try:
        optimizer.step()
    except Exception as error:  # torch has many ways of saying it
        raise _refused(settings, error) from error


def _kind(settings: OptimizerSettings) -> Callable[..., torch.optim.Optimizer]:
    known = {name.lower(): kind for name, kind in _optimizers()}
    kind = known.get(settings.dense.lower())
    if kind is None:
        raise RegistryError(
            f"train.optimizer.dense: torch.optim has no {shown(settings.dense)} that takes dense "
            f"gradients step by step; {nearest(settings.dense.lower(), known)}"
        )
    return kind


def _made(
    kind: Callable[..., torch.optim.Optimizer],
    params: list[nn.Parameter],
    settings: OptimizerSettings,
) -> torch.optim.Optimizer:
    try:
        given = settings.dense_options
        return kind(params, lr=settings.dense_lr, **_in_one_call(kind, params, given), **given)
    except Exception as error:
        raise _refused(settings, error) from error


def _in_one_call(
    kind: Callable[..., torch.optim.Optimizer], params: list[nn.Parameter], given: Mapping[str, Any]
) -> dict[str, bool]:
    """On the CPU, Adam's step of all parameters at once, unless the options say how to do it.

    Torch would step them one by one, by ten calls each: for 250 small ones in three times the time.
    """
    fits = kind in (torch.optim.Adam, torch.optim.AdamW) and not WAYS & given.keys()
    fits = fits and all(
        one.device.type == "cpu" and one.is_floating_point() and one.is_contiguous()
        for one in params
    )
    return {"fused": True} if fits else {}


def _refused(settings: OptimizerSettings, error: Exception) -> RegistryError:
    why = str(error).partition("\n")[0] or type(error).__name__
    return RegistryError(
        f"train.optimizer: torch.optim's {settings.dense} refuses the dense parameters with "
        f"lr={settings.dense_lr:g} and dense_options={shown(dict(settings.dense_options))}: {why}. "
        "Change dense_options, or choose another optimizer as `dense`."
    )


def _optimizers() -> Iterator[tuple[str, Callable[..., torch.optim.Optimizer]]]:
    # LBFGS evaluates the loss several times a step, SparseAdam takes sparse gradients alone.
    unfit = (torch.optim.LBFGS, torch.optim.SparseAdam, torch.optim.Optimizer)
    for name, kind in vars(torch.optim).items():
        if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and kind not in unfit:
            yield name, kind

"""Holds the ranks to the same dense parameters, the same shapes of what their optimizer keeps, and
the same learning rates of tables: they begin alike, and dense parameters are stepped by gradients
that are summed over the ranks, so only a plugin can have them differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torchrec.optim.keyed import KeyedOptimizer

from recd_plugins.errors import PluginError, listed
from recd_plugins.planning.together import on_every_rank

__all__ = ["check_dense_alike", "check_rates_alike", "check_states_alike"]

T = TypeVar("T")

ROUNDING = 1e-3
"""The share of a parameter's norm by which ranks may be apart: machines may round otherwise."""
PART = 1 << 16
"""The numbers that are multiplied at once."""


def check_dense_alike(model: nn.Module, dense: torch.optim.Optimizer, device: torch.device) -> None:
    """`PluginError` on every rank if some parameter of the dense optimizer differs on the ranks;
    every rank calls it."""
    named = dict(_plain(model, dense))
    if not named or dist.get_world_size() == 1:
        return
    shares = torch.randn(
        PART, generator=torch.Generator().manual_seed(0), dtype=torch.double, device="cpu"
    )
    ours = torch.tensor(
        [_numbers_of(one, shares) for one in named.values()], dtype=torch.double, device="cpu"
    )
    least, most = ours.to(device, copy=True), ours.to(device, copy=True)
    dist.all_reduce(least, dist.ReduceOp.MIN)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    off = ((most - least).amax(1) > ROUNDING * most[:, 1]).tolist()
    if differ := [name for name, apart in zip(named, off, strict=True) if apart]:
        raise PluginError(
            f"{listed(differ, kind='dense parameter')}: ranks have other values, though they began "
            "with the same ones and step them by the same gradients. So a callback, the optimizer "
            "or the model changes them otherwise on each rank: let no rank decide what is changed, "
            "and draw random numbers from a generator that is seeded alike on all ranks."
        )


def check_states_alike(model: nn.Module, dense: torch.optim.Optimizer) -> None:
    """`PluginError` on every rank if ranks have other shapes of what the dense optimizer keeps for
    a parameter, of which a checkpoint holds one rank's; every rank calls it."""
    for name, (other, found), (rank, shape) in _differing(lambda: _shapes(model, dense)):
        raise PluginError(
            f"optimizer: the state {name} has the shape {found} on rank {other} and {shape} on "
            f"rank {rank}, so that no checkpoint can have it: those hold one rank's for all. Let "
            "the optimizer keep the same of a parameter on all ranks."
        )


def _shapes(model: nn.Module, dense: torch.optim.Optimizer) -> dict[str, list[int]]:
    """The shape of each tensor that the dense optimizer keeps for a parameter, by both names."""
    return {
        f"{key!r} of {name}": list(value.shape)
        for name, one in model.named_parameters()
        for key, value in dense.state.get(one, {}).items()
        if isinstance(value, Tensor)
    }


def check_rates_alike(tables: KeyedOptimizer) -> None:
    """`PluginError` on every rank if ranks have different learning rates for the same table; every
    rank calls it."""
    for name, (other, found), (rank, rate) in _differing(lambda: _rates(tables)):
        raise PluginError(
            f"{name}: its learning rate is {found:g} on rank {other} and {rate:g} on rank {rank}, "
            "so that its rows learn by where they are. Let a callback set rates by what all ranks "
            "know alike, as steps and metrics are, not the loss of a rank's own batch."
        )


def _differing(
    own: Callable[[], Mapping[str, T]],
) -> Iterator[tuple[str, tuple[int, T], tuple[int, T]]]:
    """What two ranks have otherwise, by name: each with its number; every rank calls it."""
    if dist.get_world_size() == 1:
        return
    first: dict[str, tuple[int, T]] = {}
    for rank, found in enumerate(on_every_rank(own)):
        for name, value in found.items():
            other = first.setdefault(name, (rank, value))
            if value != other[1]:
                yield name, other, (rank, value)


def _rates(tables: KeyedOptimizer) -> dict[str, float]:
    """The learning rate of each table that this rank has rows of, by the parameter's name."""
    rates = {
        id(one): float(group["lr"]) for group in tables.param_groups for one in group["params"]
    }
    return {name: rates[id(one)] for name, one in tables.params.items() if id(one) in rates}


def _plain(model: nn.Module, dense: torch.optim.Optimizer) -> Iterator[tuple[str, Tensor]]:
    """The parameters that the dense optimizer steps and each rank has whole, by name."""
    stepped = {id(one) for group in dense.param_groups for one in group["params"]}
    for name, one in model.named_parameters():
        if id(one) in stepped and type(one) is nn.Parameter and one.is_floating_point():
            yield name, one.detach()


def _numbers_of(parameter: Tensor, shares: Tensor) -> tuple[float, float]:
    """Two numbers that other values would change: a sum by random `shares`, and the norm."""
    total = squares = 0.0
    for part in parameter.reshape(-1).split(PART):
        numbers = part.cpu().double()
        total += float(numbers @ shares[: len(numbers)])
        squares += float(numbers @ numbers)
    return total, squares**0.5

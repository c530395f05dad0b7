"""What optimizers keep apart from tensors: the rates and numbers of their groups, and states that
are numbers. A checkpoint's job.json has them, for any number of ranks and any plan.

The state dicts of TorchRec's keyed optimizers have no groups. These matter to a callback that
lowers a rate once, to torch's schedulers, which go on from the latest rate, and to optimizers that
count their steps in a group or in a plain number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import torch
from torch import Tensor
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizer

from recd_plugins.errors import listed, so_many
from recd_plugins.trainer.assemble import Job
from recd_plugins.trainer.dense_optimizer import WAYS

__all__ = [
    "RateOf",
    "lost_states",
    "numbers_of",
    "restore_groups",
    "restore_states",
    "table_rates",
]

RATES = ("lr", "initial_lr")
"""The numbers of a group that are rates."""

CALLBACKS = "the callbacks, which may have made it that, are others by now"
"""Why a rate begins as the registry says, if callbacks may have changed it before."""

RateOf = Literal["before", "registry", "callbacks"]
"""Where the rates of an optimizer begin in a resumed run: at the rates of before; at the registry's
new rates; or at the registry's rates because the callbacks, which may have changed the rates
before, are others now."""


def numbers_of(job: Job, rates: Mapping[str, float]) -> dict[str, Any]:
    """The numbers of a job's optimizers, as JSON holds them; `rates` are those of `table_rates` of
    all ranks."""
    states = {
        name: {key: one for key, one in state.items() if _is_plain(one)}
        for name, state in _states(job)
    }
    groups = []
    for group in job.dense.param_groups:
        numbers = {key: _number(one) for key, one in group.items() if key not in {"params", *WAYS}}
        groups.append({key: one for key, one in numbers.items() if _is_plain(one)})
    return {
        "groups": groups,
        "states": {name: kept for name, kept in states.items() if kept},
        "tables": dict(rates),
    }


def lost_states(job: Job) -> str:
    """The states of the dense optimizer that no checkpoint keeps, in words; empty if there are
    none."""
    lost = {
        str(key): type(one).__name__
        for _, state in _states(job)
        for key, one in state.items()
        if not isinstance(one, Tensor) and not _is_plain(one)
    }
    if not lost:
        return ""
    named = [f"{key!r}, a {kind}" for key, kind in lost.items()]
    return (
        f"optimizer: of the states of {type(job.dense).__name__} a checkpoint does not have "
        f"{listed(named)}: a resumed run begins them anew. Keep tensors and numbers in an "
        "optimizer's state."
    )


def table_rates(job: Job) -> dict[str, float]:
    """The rate of each table of which this rank has rows, by its parameter."""
    return {
        name: float(group["lr"])
        for prefix, optimizer in _kernels(job.model.fused_optimizer)
        for group in optimizer.param_groups
        for name in (CombinedOptimizer.prepend_opt_key(one, prefix) for one in optimizer.params)
    }


def restore_states(job: Job, restored: Mapping[str, Any]) -> None:
    """Restore the states that are numbers."""
    states = restored["states"]
    for name, state in _states(job):
        for key, one in states.get(name, {}).items():
            state[key] = _as(one, state.get(key))


def restore_groups(
    job: Job, restored: Mapping[str, Any], rates: Mapping[str, RateOf]
) -> Iterator[str]:
    """Restore the numbers of the groups, and begin the rates of `dense` and of `tables` as `rates`
    says; yields a line for each number that begins anew."""
    yield from _restore_dense(job.dense, restored["groups"], rates["dense"])
    before: dict[float, float] = {}
    for prefix, optimizer in _kernels(job.model.fused_optimizer):
        names = [CombinedOptimizer.prepend_opt_key(one, prefix) for one in optimizer.params]
        had = {restored["tables"][name] for name in names if name in restored["tables"]}
        for group in optimizer.param_groups:
            if rates["tables"] == "before" and len(had) == 1:
                (group["lr"],) = had
            before |= {one: float(group["lr"]) for one in had if one != group["lr"]}
    if rates["tables"] != "registry":
        plan = "tables with several rates are in one kernel by this plan"
        why = plan if rates["tables"] == "before" else CALLBACKS
        yield from (_begins("tables", old, now, why) for old, now in before.items())


def _restore_dense(
    optimizer: torch.optim.Optimizer, restored: list[dict[str, Any]], rates: RateOf
) -> Iterator[str]:
    groups = optimizer.param_groups
    if len(groups) != len(restored):
        yield (
            f"the dense optimizer has {so_many(len(groups), 'group')} of parameters, and had "
            f"{len(restored)}: their rates and counts begin anew"
        )
        return
    before: dict[float, float] = {}
    for group, numbers in zip(groups, restored, strict=True):
        for key, one in numbers.items():
            if key in RATES and rates != "before":
                continue
            if isinstance(now := group.get(key), Tensor):
                now.fill_(one)
            else:
                group[key] = _as(one, now)
        if (old := numbers.get("lr")) not in (None, group["lr"]):
            before[old] = float(group["lr"])
    if rates == "callbacks":
        yield from (_begins("dense parameters", old, now, CALLBACKS) for old, now in before.items())


def _begins(whose: str, before: float, now: float, why: str) -> str:
    return (
        f"the rate of the {whose} is {now:g} to begin with, as registry.yaml says, and was "
        f"{before:g}: {why}"
    )


def _kernels(optimizer: KeyedOptimizer, prefix: str = "") -> Iterator[tuple[str, KeyedOptimizer]]:
    """The fused optimizer of each of this rank's kernels, with the path to its parameters."""
    if not isinstance(optimizer, CombinedOptimizer):
        yield prefix, optimizer
        return
    for key, one in optimizer.optimizers:
        yield from _kernels(one, CombinedOptimizer.prepend_opt_key(key, prefix))


def _states(job: Job) -> Iterator[tuple[str, dict[str, Any]]]:
    """The dense optimizer's state of each parameter, by the parameter's name."""
    for name, parameter in job.optimizer.params.items():
        if parameter in job.dense.state:
            yield name, job.dense.state[parameter]


def _number(value: object) -> object:
    return value.item() if isinstance(value, Tensor) and value.numel() == 1 else value


def _is_plain(value: object) -> bool:
    """Whether JSON gives the value back unchanged, except that tuples come back as lists."""
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _is_plain(one) for key, one in value.items())
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def _as(value: Any, like: object) -> Any:
    return tuple(value) if isinstance(like, tuple) else value

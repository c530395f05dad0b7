"""Learning rates that change from step to step: a warm-up, then any scheduler of torch's."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

from recd_plugins.config import Config, Range
from recd_plugins.errors import RegistryError, nearest
from recd_plugins.slots import Callback, Context

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

    from recd_plugins.trainer.training import Training

__all__ = ["ScheduleConfig", "build_schedule"]

UNFIT = {
    "LRScheduler": "is the base class of them all",
    "ReduceLROnPlateau": "waits for a metric, and this one counts steps",
    "LambdaLR": "takes code",
    "MultiplicativeLR": "takes code",
    "SequentialLR": "takes other schedulers",
    "ChainedScheduler": "takes other schedulers",
}
"""Schedulers of torch's that no options of registry.yaml can name, and why."""


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig(Config):
    """Rates start from those of `train.optimizer`; a resumed run goes on with the schedule."""

    of: Literal["both", "dense", "tables"] = "both"
    """The scheduled rates: the dense parameters', the tables' (replicas follow them), or both."""
    warmup: Annotated[int, Range(ge=0)] = 0
    """Steps in which the rate grows linearly to the whole one: step s takes (s + 1) / warmup of
    it. The scheduler begins after them."""
    scheduler: str = ""
    """A class of torch.optim.lr_scheduler, by its name in any case: cosineannealinglr, steplr, ...;
    none: the rate stays."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The scheduler's keyword arguments, say {T_max: 1000}; it steps once a step."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.options and not self.scheduler:
            raise RegistryError("there is no scheduler that would take them.", "options")
        if not self.warmup and not self.scheduler:
            raise RegistryError(
                "neither `warmup` nor `scheduler` is set, so no rate would change. Set one."
            )


class Schedule(Callback):
    """Sets the rates before each step; the schedulers run on stand-ins of the optimizers.

    A fused optimizer has no parameters that torch could step, and a checkpoint keeps no groups:
    the stand-ins' rates are the state.
    """

    def __init__(self, config: ScheduleConfig) -> None:
        self._config = config
        self._schedules: dict[str, tuple[Optimizer, LRScheduler | None]] = {}
        _try(config)

    def at_start(self, training: Training) -> None:
        for name, optimizer in self._optimizers(training):
            rates = [group["lr"] for group in optimizer.param_groups]
            if rates:  # no table may be on this rank
                self._schedules[name] = _schedule(self._config, rates)

    def before_step(self, training: Training) -> None:
        part = min(1.0, (training.step + 1) / max(1, self._config.warmup))
        for name, optimizer in self._optimizers(training):
            if name in self._schedules:
                stand_in = self._schedules[name][0]
                for group, at in zip(optimizer.param_groups, stand_in.param_groups, strict=True):
                    group["lr"] = part * at["lr"]

    def after_step(self, training: Training) -> None:
        if training.step <= self._config.warmup:
            return
        for optimizer, scheduler in self._schedules.values():
            if scheduler is not None:
                optimizer.step()  # of nothing; torch warns of a scheduler that steps first
                scheduler.step()

    def on_metrics(self, training: Training, metrics: dict[str, float]) -> None:
        """Adds the rates of the latest step, of the first group of each."""
        for name, optimizer in self._optimizers(training):
            if name in self._schedules:
                metrics[f"{name}_lr"] = float(next(iter(optimizer.param_groups))["lr"])

    def state_dict(self) -> dict[str, Any]:
        return {
            name: {
                "rates": [group["lr"] for group in optimizer.param_groups],
                "scheduler": scheduler.state_dict() if scheduler else {},
            }
            for name, (optimizer, scheduler) in self._schedules.items()
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, (optimizer, scheduler) in self._schedules.items():
            if name not in state:  # it had other options
                continue
            for group, rate in zip(optimizer.param_groups, state[name]["rates"], strict=True):
                group["lr"] = rate
            if scheduler is not None:
                scheduler.load_state_dict(state[name]["scheduler"])

    def _optimizers(self, training: Training) -> list[tuple[str, Any]]:
        both = [("dense", training.dense), ("tables", training.tables)]
        return [one for one in both if self._config.of in ("both", one[0])]


def _schedule(config: ScheduleConfig, rates: list[float]) -> tuple[Optimizer, LRScheduler | None]:
    """An optimizer of nothing with these rates, and its scheduler."""
    import torch

    groups = [{"params": [torch.nn.Parameter(torch.empty(0))], "lr": rate} for rate in rates]
    stand_in = torch.optim.SGD(groups, lr=1.0)
    if not config.scheduler:
        return stand_in, None
    known = {
        name.lower(): kind
        for name, kind in vars(torch.optim.lr_scheduler).items()
        if isinstance(kind, type) and issubclass(kind, torch.optim.lr_scheduler.LRScheduler)
    }
    kind = known.get(config.scheduler.lower())
    fit = [name for name, kind in known.items() if kind.__name__ not in UNFIT]
    if kind is None or kind.__name__ in UNFIT:
        why = "is none of torch.optim.lr_scheduler" if kind is None else UNFIT[kind.__name__]
        raise RegistryError(
            f"callbacks: schedule: the scheduler {config.scheduler!r} {why}; "
            f"{nearest(config.scheduler.lower(), fit)}"
        )
    try:
        return stand_in, kind(stand_in, **config.options)
    except Exception as error:  # torch has many ways of saying it
        raise RegistryError(
            f"callbacks: schedule: {kind.__name__} refuses options={dict(config.options)}: {error}"
            ". Change `options`, or choose another scheduler."
        ) from error


def _try(config: ScheduleConfig) -> None:
    """`RegistryError` for what a scheduler refuses: some look at their options in the first step.

    `T_max` may be a text until then, or zero.
    """
    stand_in, scheduler = _schedule(config, [1.0])
    if scheduler is None:
        return
    why = ""
    try:
        stand_in.step()
        scheduler.step()
        rate = stand_in.param_groups[0]["lr"]
        if not math.isfinite(rate):
            why = f"its first step makes a rate of {rate}"
    except Exception as error:  # torch has many ways of saying it
        why = f"its first step raised {type(error).__name__}: {error}"
    if why:
        raise RegistryError(
            f"callbacks: schedule: {type(scheduler).__name__} cannot step by "
            f"options={dict(config.options)}: {why}. Change `options`, or choose another scheduler."
        )


def build_schedule(config: ScheduleConfig, context: Context) -> Schedule:
    return Schedule(config)

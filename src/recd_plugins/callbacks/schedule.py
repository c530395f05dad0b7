"""Changes learning rates from step to step: a warm-up, then any of torch's schedulers."""

from __future__ import annotations

import json
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
"""The schedulers of torch that registry.yaml cannot name, and why."""


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig(Config):
    """Rates start from those of `train.optimizer`; a resumed run goes on with the schedule."""

    of: Literal["both", "dense", "tables"] = "both"
    """Which learning rates the schedule changes: those of the dense parameters, those of the tables
    and their replicas, or both."""
    warmup: Annotated[int, Range(ge=0)] = 0
    """The number of first steps in which the rate grows linearly: step s takes (s + 1) / warmup of
    the whole rate. The scheduler begins after them."""
    scheduler: str = ""
    """A class of torch.optim.lr_scheduler, by its name in any case: cosineannealinglr, steplr, ...
    By default there is none, and after the warmup the rate stays."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The scheduler's keyword arguments, such as {T_max: 1000}. It counts steps, not epochs."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.options and not self.scheduler:
            raise RegistryError(
                "there is no scheduler to take them. Name one (`scheduler`), or take them out.",
                "options",
            )
        if not self.warmup and not self.scheduler:
            raise RegistryError(
                "neither `warmup` nor `scheduler` is set, so no rate would change. Set one."
            )


class Schedule(Callback):
    """Sets the rates before each step; the schedulers run on stand-ins for the optimizers.

    torch could not step the parameters of a fused optimizer, so the rates of the stand-ins are the
    state.
    """

    def __init__(self, config: ScheduleConfig) -> None:
        self._config = config
        self._schedules: dict[str, tuple[Optimizer, LRScheduler | None]] = {}
        _try(config)

    def at_start(self, training: Training) -> None:
        settings = training.settings.optimizer
        usual = {"dense": settings.dense_lr, "tables": settings.tables_lr}
        for name, optimizer in self._optimizers(training):
            rates = [group["lr"] for group in optimizer.param_groups]
            # A rank without tables keeps their schedule, since another plan may give it some.
            self._schedules[name] = _schedule(self._config, rates or [usual[name]])

    def before_step(self, training: Training) -> None:
        part = min(1.0, (training.step + 1) / max(1, self._config.warmup))
        for name, optimizer in self._optimizers(training):
            stand_in = self._schedules[name][0]
            for group, at in zip(optimizer.param_groups, stand_in.param_groups, strict=False):
                group["lr"] = part * at["lr"]

    def after_step(self, training: Training) -> None:
        if training.step <= self._config.warmup:
            return
        for optimizer, scheduler in self._schedules.values():
            if scheduler is not None:
                optimizer.step()  # steps nothing; torch warns if a scheduler steps first
                scheduler.step()

    def on_metrics(self, training: Training, metrics: dict[str, float]) -> None:
        """Add the rates of the latest step, those of the first group of each optimizer."""
        for name, optimizer in self._optimizers(training):
            if rates := [group["lr"] for group in optimizer.param_groups]:
                metrics[f"{name}_lr"] = float(rates[0])

    def state_dict(self) -> dict[str, Any]:
        states = {
            name: {
                "rates": [group["lr"] for group in optimizer.param_groups],
                "scheduler": _counts(scheduler.state_dict()) if scheduler else {},
            }
            for name, (optimizer, scheduler) in self._schedules.items()
        }
        return {"made_of": self._made_of, **states}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with the schedule. If options or rates have changed, or a plan gave this rank
        tables, go on from where the schedule would be if that had been so from the start."""
        saved = {name: state.get(name, {}).get("scheduler", {}) for name in ("dense", "tables")}
        steps = max(one.get("last_epoch", 0) for one in saved.values())
        alike = state.get("made_of", self._made_of) == self._made_of
        for name, (optimizer, scheduler) in self._schedules.items():
            if scheduler is None:
                continue
            if alike and saved[name].get("base_lrs") == scheduler.base_lrs:
                for group, rate in zip(optimizer.param_groups, state[name]["rates"], strict=True):
                    group["lr"] = rate
                scheduler.load_state_dict(_counts(saved[name]))
            else:
                _step_to(steps, optimizer, scheduler)

    @property
    def _made_of(self) -> dict[str, Any]:
        """The scheduler and its options, as they come back from JSON."""
        named = {"scheduler": self._config.scheduler.lower(), "options": self._config.options}
        made: dict[str, Any] = json.loads(json.dumps(named, default=dict))
        return made

    def _optimizers(self, training: Training) -> list[tuple[str, Any]]:
        both = [("dense", training.dense), ("tables", training.tables)]
        return [one for one in both if self._config.of in ("both", one[0])]


def _schedule(config: ScheduleConfig, rates: list[float]) -> tuple[Optimizer, LRScheduler | None]:
    """An optimizer with these rates and no numbers to step, and its scheduler; None without a
    scheduler."""
    import torch

    groups = [
        {"params": [torch.nn.Parameter(torch.empty(0, device="cpu"))], "lr": rate} for rate in rates
    ]
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


def _counts(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state of a scheduler without its mappings, such as the milestones of MultiStepLR: options
    make them anew."""
    return {name: one for name, one in state.items() if not isinstance(one, Mapping)}


def _step_to(steps: int, optimizer: Optimizer, scheduler: LRScheduler) -> None:
    """Take `steps` steps, from the first on."""
    try:
        for _ in range(steps):
            optimizer.step()
            scheduler.step()
    except Exception as error:  # torch has many ways of saying it
        raise RegistryError(
            f"callbacks: schedule: {type(scheduler).__name__} has no rate for step {steps}, where "
            f"the run goes on: {error}. Change `options`, or choose another scheduler."
        ) from error


def _try(config: ScheduleConfig) -> None:
    """`RegistryError` if a scheduler refuses its options: some look at them only in the first step.

    Until then `T_max`, for example, may be a text or zero.
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

"""Ends a run when a metric no longer improves."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from recd_plugins.config import Config, Range
from recd_plugins.errors import RegistryError, nearest, so_many
from recd_plugins.slots import Callback, Context

if TYPE_CHECKING:
    from collections.abc import Mapping

    from recd_plugins.trainer.training import Training

__all__ = ["EarlyStoppingConfig", "build_early_stopping"]


@dataclass(frozen=True, kw_only=True)
class EarlyStoppingConfig(Config):
    """All ranks see the same metrics, and end after the same step."""

    metric: str = "loss"
    """The name of the metric: loss, ne, auc, or one that a callback before this one adds."""
    split: Literal["train", "test"] = "test"
    """When the metric is looked at: with `test` at every `train.eval_every` steps, with `train` at
    every `train.log_every`."""
    patience: Annotated[int, Range(ge=1)] = 3
    """The number of looks in a row without an improvement after which the run ends."""
    min_delta: Annotated[float, Range(ge=0)] = 0.0
    """The least amount by which the metric must improve."""
    goal: Literal["auto", "min", "max"] = "auto"
    """Whether larger (`max`) or smaller (`min`) values are better. `auto` takes `max` for names
    with auc, accuracy or precision, and `min` for all others."""


class EarlyStopping(Callback):
    def __init__(self, config: EarlyStoppingConfig) -> None:
        self._config = config
        rises = any(part in config.metric for part in ("auc", "accuracy", "precision"))
        self._sign = 1 if config.goal == "min" or (config.goal == "auto" and not rises) else -1
        self._best: float | None = None
        self._failed = 0

    def at_start(self, training: Training) -> None:
        if self._config.split == "test" and not training.settings.eval_every:
            raise RegistryError(
                "callbacks: early_stopping: the test split is evaluated only at the end. Set "
                "train.eval_every, or watch the training metrics with `split: train`."
            )
        settings, patience = training.settings, self._config.patience
        key = "eval_every" if self._config.split == "test" else "log_every"
        every: int = getattr(settings, key)
        if patience * every >= settings.steps:
            training.say(
                f"callbacks: early_stopping: it ends no run of {so_many(settings.steps, 'step')} "
                f"early, because it looks every {every:,} (train.{key}) and waits for "
                f"{so_many(patience, 'look')} (patience)"
            )

    def on_metrics(self, training: Training, metrics: dict[str, float]) -> None:
        if self._config.split == "train":
            self._see(training, metrics)

    def on_evaluation(self, training: Training, metrics: dict[str, float]) -> None:
        if self._config.split == "test":
            self._see(training, metrics)

    def _see(self, training: Training, metrics: Mapping[str, float]) -> None:
        config = self._config
        if config.metric not in metrics:
            raise RegistryError(
                f"callbacks: early_stopping: there is no metric {config.metric!r}; "
                f"{nearest(config.metric, metrics)}"
            )
        found: float | None = metrics[config.metric]
        # A NaN, or no value, is no improvement, and nothing can improve on it.
        if found is not None and not math.isnan(found):
            value = self._sign * found
            if self._best is None or value < self._best - config.min_delta:
                self._best, self._failed = value, 0
                return
        self._failed += 1
        if self._failed >= config.patience:
            failed = "been no number"
            if self._best is not None:
                failed = f"not improved on {self._sign * self._best:.6g}"
            training.stop(
                f"{config.metric} of {config.split} has {failed} for {self._failed} times"
            )

    def state_dict(self) -> dict[str, Any]:
        return {"best": self._best, "failed": self._failed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._best, self._failed = state["best"], state["failed"]


def build_early_stopping(config: EarlyStoppingConfig, context: Context) -> EarlyStopping:
    return EarlyStopping(config)

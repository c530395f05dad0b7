"""A plugin of someone else's whose callbacks write down what they are called with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from recd_plugins import hookimpl
from recd_plugins.api import (
    Callback,
    CallbackRecord,
    Config,
    Context,
    OptimizerFactory,
    OptimizerRecord,
)
from recd_plugins.api.training import Training


@dataclass(frozen=True, kw_only=True)
class DiaryConfig(Config):
    """What is written, and when the run is to end."""

    name: str = "diary"
    """How each line begins."""
    stop_after: int = 0
    """The step after which rank 1 asks for the end; 0 never."""
    fail_after: int = 0
    """The step after which it raises; 0 never."""
    scale: float = 1.0
    """Dense features are multiplied by it, as they are read."""


class Diary(Callback):
    def __init__(self, config: DiaryConfig) -> None:
        self._config = config
        self._steps = 0
        self._folder: Any = None

    def _write(self, training: Training, line: str) -> None:
        self._folder = training.run.parent / f"diary-{training.rank}"
        with self._folder.open("a") as file:
            file.write(f"{self._config.name} {line}\n")

    def at_start(self, training: Training) -> None:
        self._write(training, f"at_start {training.step}")

    def on_batch(self, training: Training, batch: Any, split: Any) -> Any:
        if self._config.scale != 1:
            batch.dense = batch.dense * self._config.scale
        return batch

    def before_step(self, training: Training) -> None:
        self._write(training, f"before_step {training.step}")

    def before_update(self, training: Training) -> None:
        grads = [p.grad for group in training.dense.param_groups for p in group["params"]]
        assert any(grad is not None and grad.abs().sum() > 0 for grad in grads)
        self._write(training, f"before_update {training.step}")

    def after_step(self, training: Training) -> None:
        self._steps += 1
        assert training.batch is not None
        assert len(training.outputs[1]) == len(training.batch)
        self._write(training, f"after_step {training.step}")
        if self._config.stop_after == training.step and training.rank == 1:
            training.stop("rank 1 has seen enough")
        if self._config.fail_after == training.step:
            raise KeyError("nothing of this name")

    def on_metrics(self, training: Training, metrics: dict[str, float]) -> None:
        metrics["pages"] = float(self._steps)
        self._write(training, f"on_metrics {training.step}")

    def after_evaluation_step(self, training: Training) -> None:
        self._write(training, f"after_evaluation_step {training.step}")

    def on_evaluation(self, training: Training, metrics: dict[str, float]) -> None:
        self._write(training, f"on_evaluation {training.step}")

    def on_checkpoint(self, training: Training) -> None:
        self._write(training, f"on_checkpoint {training.step}")

    def at_end(self, training: Training, summary: dict[str, Any]) -> None:
        summary["pages"] = self._steps
        self._write(training, f"at_end {training.step}")

    def close(self) -> None:
        if self._folder is not None:
            with self._folder.open("a") as file:
                file.write(f"{self._config.name} close\n")

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self._steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._steps = state["steps"]


class Misspelt(Callback):
    def on_metric(self, training: Training, metrics: dict[str, float]) -> None:
        raise AssertionError


def build(config: DiaryConfig, context: Context) -> Callback:
    return Diary(config)


def build_misspelt(config: DiaryConfig, context: Context) -> Callback:
    return Misspelt()


DIARY = CallbackRecord(name="diary", summary="Writes.", config=DiaryConfig, build=build)
MISSPELT = CallbackRecord(
    name="misspelt", summary="Writes nothing.", config=DiaryConfig, build=build_misspelt
)


@dataclass(frozen=True, kw_only=True)
class PlainConfig(Config):
    """Gradient descent."""

    lr: float = 0.1
    """Its learning rate."""


def build_plain(config: PlainConfig, context: Context) -> OptimizerFactory:
    return lambda params: torch.optim.SGD(params, lr=config.lr)


PLAIN = OptimizerRecord(name="plain", summary="Descends.", config=PlainConfig, build=build_plain)


@hookimpl
def recd_optimizer() -> list[OptimizerRecord[Any]]:
    return [PLAIN]


@hookimpl
def recd_callbacks() -> list[CallbackRecord[Any]]:
    return [DIARY, MISSPELT]

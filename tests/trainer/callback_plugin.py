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
    drifts: float = 0.0
    """What is added to the dense parameters before each step, times the rank."""
    rate_drifts: float = 0.0
    """What is added to the tables' learning rates before each step, times the rank."""
    returns: bool = False
    """Whether it returns metrics in place of adding them."""
    starts: int = 0
    """The number from which it counts pages."""
    scale: float = 1.0
    """Dense features are multiplied by it, as they are read."""


class Diary(Callback):
    def __init__(self, config: DiaryConfig) -> None:
        self._config = config
        self._steps = config.starts
        self._by_parity: dict[int, int] = {}
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
        for group in training.dense.param_groups if self._config.drifts else ():
            for parameter in group["params"]:
                parameter.data += self._config.drifts * training.rank
        for group in training.tables.param_groups:
            group["lr"] += self._config.rate_drifts * training.rank

    def before_update(self, training: Training) -> None:
        grads = [p.grad for group in training.dense.param_groups for p in group["params"]]
        assert any(grad is not None and grad.abs().sum() > 0 for grad in grads)
        self._write(training, f"before_update {training.step}")

    def after_step(self, training: Training) -> None:
        self._steps += 1
        parity = training.step % 2
        self._by_parity[parity] = self._by_parity.get(parity, 0) + 1
        assert training.batch is not None
        assert len(training.outputs[1]) == len(training.batch)
        self._write(training, f"after_step {training.step}")
        if self._config.stop_after == training.step and training.rank == 1:
            training.stop("rank 1 has seen enough")
        if self._config.fail_after == training.step:
            raise KeyError("nothing of this name")

    def on_metrics(self, training: Training, metrics: dict[str, float]) -> Any:
        if self._config.returns:
            return {**metrics, "pages": 1.0}
        metrics["pages"] = float(self._steps)
        metrics["odd_pages"] = float(self._by_parity.get(1, 0))
        self._write(training, f"on_metrics {training.step}")
        return None

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
        return {"steps": self._steps, "by_parity": self._by_parity}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._steps, self._by_parity = state["steps"], state["by_parity"]


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


@dataclass(frozen=True, kw_only=True)
class CountingConfig(Config):
    """Where the optimizer counts its steps."""

    where: str = "state"
    """In the `state` of each parameter, or in each `group`."""
    past: bool = False
    """Whether it keeps the latest gradients, in a list."""
    late: bool = False
    """Whether it makes a state in its third step."""
    by_rank: bool = False
    """Whether it keeps as many numbers as its rank's."""


class Counting(torch.optim.Optimizer):
    """A mean of gradients, by a rate that the number of steps divides."""

    def __init__(self, params: list[torch.nn.Parameter], config: CountingConfig) -> None:
        super().__init__(params, {"lr": 0.1, "steps": 0, "pair": (0, 0)})
        self._config = config

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            group["steps"] += 1
            group["pair"] = (group["steps"], 0)
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                state["steps"] = state.get("steps", 0) + 1
                if self._config.past:
                    state["past"] = [weight.grad.clone()]
                if self._config.by_rank:
                    state["ranks"] = torch.ones(1 + torch.distributed.get_rank())
                if self._config.late and state["steps"] == 3:
                    state["late"] = weight.grad.clone()
                mean = state.setdefault("mean", torch.zeros_like(weight))
                mean.lerp_(weight.grad, 0.1)
                steps = state["steps"] if self._config.where == "state" else group["steps"]
                weight.sub_(mean, alpha=group["lr"] / steps)


def build_counting(config: CountingConfig, context: Context) -> OptimizerFactory:
    return lambda params: Counting(params, config)


COUNTING = OptimizerRecord(
    name="counting", summary="Slows down.", config=CountingConfig, build=build_counting
)


@dataclass(frozen=True, kw_only=True)
class RatesConfig(Config):
    """No options."""


class Drops(Callback):
    """Lowers all rates once."""

    def before_step(self, training: Training) -> None:
        if training.step == 2:
            for optimizer in (training.dense, training.tables):
                for group in optimizer.param_groups:
                    group["lr"] *= 0.1


class TorchsOwn(Callback):
    """A scheduler of torch's, as any trainer steps it: it goes on from the rate that there is."""

    def at_start(self, training: Training) -> None:
        schedule = torch.optim.lr_scheduler
        self._scheduler = schedule.LinearLR(training.dense, start_factor=0.5, total_iters=6)

    def after_step(self, training: Training) -> None:
        self._scheduler.step()

    def state_dict(self) -> dict[str, Any]:
        return self._scheduler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._scheduler.load_state_dict(state)


class Draws(Callback):
    """Draws random numbers of torch's as it starts, and at each line."""

    def at_start(self, training: Training) -> None:
        torch.rand(3)

    def on_metrics(self, training: Training, metrics: dict[str, float]) -> None:
        metrics["drawn"] = float(torch.rand(()))


class Exhausts(Callback):
    """Has the model take from what is at its end, in its second step."""

    def before_step(self, training: Training) -> None:
        if training.step == 1:
            training.model.register_forward_pre_hook(lambda *_: next(iter(())))


def build_exhausts(config: RatesConfig, context: Context) -> Callback:
    return Exhausts()


def build_draws(config: RatesConfig, context: Context) -> Callback:
    return Draws()


def build_drops(config: RatesConfig, context: Context) -> Callback:
    return Drops()


def build_torchs(config: RatesConfig, context: Context) -> Callback:
    return TorchsOwn()


OF_RATES = [
    CallbackRecord(name="exhausts", summary="Ends.", config=RatesConfig, build=build_exhausts),
    CallbackRecord(name="drops", summary="Lowers.", config=RatesConfig, build=build_drops),
    CallbackRecord(name="torchs_own", summary="Steps.", config=RatesConfig, build=build_torchs),
]


@hookimpl
def recd_optimizer() -> list[OptimizerRecord[Any]]:
    return [PLAIN, COUNTING]


DRAWS = CallbackRecord(name="draws", summary="Draws.", config=RatesConfig, build=build_draws)


@hookimpl
def recd_callbacks() -> list[CallbackRecord[Any]]:
    return [DIARY, MISSPELT, DRAWS, *OF_RATES]

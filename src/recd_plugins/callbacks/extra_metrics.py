"""Metrics of torchrec.metrics in addition to loss, NE and AUC."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from recd_plugins.config import Config
from recd_plugins.errors import RegistryError, nearest
from recd_plugins.slots import Callback, Context

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from recd_plugins.data.schema import Label
    from recd_plugins.trainer.training import Training

__all__ = ["ExtraMetricsConfig", "build_extra_metrics"]

FIT = (
    "accuracy",
    "auprc",
    "calibration",
    "ctr",
    "mae",
    "mse",
    "nmse",
    "precision",
    "rauc",
    "recall",
    "unweighted_ne",
    "xauc",
)
"""The metrics of torchrec.metrics that need only labels, predictions and weights."""
WINDOW = 1 << 20
"""How many of the latest samples of all ranks a metric keeps, if it keeps samples."""


@dataclass(frozen=True, kw_only=True)
class ExtraMetricsConfig(Config):
    """Metrics of the stretch of steps that a line covers, and of each evaluation."""

    names: tuple[str, ...]
    """Names of torchrec.metrics: accuracy, auprc, calibration, ctr, mae, mse, ..."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.names:
            raise RegistryError("names no metric, so it would add none. Name some.", "names")
        for name in self.names:
            if name not in FIT:
                raise RegistryError(
                    f"torchrec.metrics has no {name!r} that needs labels, predictions and weights "
                    f"alone; {nearest(name, FIT)}",
                    "names",
                )


class ExtraMetrics(Callback):
    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names
        self._labels: tuple[Label, ...] = ()
        self._ranks = 0
        self._device: Any = None
        self._make: list[Callable[[], Any]] = []
        """The functions that make the metrics anew for the steps of the next line."""
        self._metrics: dict[str, list[Any]] = {}
        self._say: Callable[[str], None] = print

    def at_start(self, training: Training) -> None:
        from torchrec.metrics.metric_module import REC_METRICS_MAPPING
        from torchrec.metrics.metrics_config import RecTaskInfo

        self._labels, self._ranks = training.labels, training.world_size
        self._device, self._say = training.device, training.say
        kinds = {kind.value: metric for kind, metric in REC_METRICS_MAPPING.items()}
        # Tasks have numbers as names: TorchRec splits results at characters that a column may have.
        tasks = [
            RecTaskInfo(
                name=str(number),
                label_name="label",
                prediction_name="prediction",
                weight_name="weight",
            )
            for number in range(len(training.labels))
        ]
        self._make = [
            partial(
                _made,
                kinds[name],
                training.device,
                world_size=training.world_size,
                my_rank=training.rank,
                batch_size=training.settings.batch_size,
                tasks=tasks,
                window_size=WINDOW,
                compute_on_all_ranks=True,
            )
            for name in self._names
        ]
        for split in ("train", "test"):
            self._begin(split)

    def after_step(self, training: Training) -> None:
        self._update("train", training)

    def after_evaluation_step(self, training: Training) -> None:
        self._update("test", training)

    def on_metrics(self, training: Training, metrics: dict[str, float]) -> None:
        metrics.update(self._computed("train"))

    def on_evaluation(self, training: Training, metrics: dict[str, float]) -> None:
        metrics.update(self._computed("test"))

    def state_dict(self) -> dict[str, Any]:
        """What this rank has collected for the next line of training, by metric."""
        kept = {name: _kept(metric) for name, metric in self._of_train()}
        return {"ranks": self._ranks, "train": kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with that line; if the number of ranks has changed, the line begins anew here."""
        if state["ranks"] != self._ranks:
            self._say(
                "callbacks: extra_metrics: the number of ranks has changed, so the next line has "
                "only the metrics of the steps from here on"
            )
            return
        for name, metric in self._of_train():
            if name in state["train"]:
                _fill(metric, state["train"][name], self._device)

    def _of_train(self) -> Iterator[tuple[str, Any]]:
        """The metrics of the next line of training, by name; empty before the run starts."""
        return zip(self._names, self._metrics.get("train", ()), strict=False)

    def _begin(self, split: str) -> None:
        # A reset is not enough: auprc would go on with the mean of all earlier lines.
        self._metrics[split] = [make() for make in self._make]

    def _update(self, split: str, training: Training) -> None:
        _, outputs, labels, weights = training.outputs
        predictions, targets, counts = {}, {}, {}
        for number, label in enumerate(self._labels):
            output, target = (
                one.double().reshape(len(weights), -1)[:, number] for one in (outputs, labels)
            )
            lacking = target.isnan()
            predictions[str(number)] = output if label.kind == "regression" else output.sigmoid()
            targets[str(number)] = target.masked_fill(lacking, 0.0) / label.scale
            counts[str(number)] = weights.double().masked_fill(lacking, 0.0)
        for metric in self._metrics[split]:
            metric.update(predictions=predictions, labels=targets, weights=counts)

    def _computed(self, split: str) -> dict[str, float]:
        """The metrics of all ranks since the last call: `mse-0|lifetime_mse` is mse of label 0."""
        found: dict[str, float] = {}
        for metric in self._metrics[split]:
            values = {tuple(key.split("|")): value for key, value in metric.compute().items()}
            whole = {k: v for k, v in values.items() if k[1].startswith("lifetime_")} or values
            for (task, key), value in whole.items():
                label = self._labels[int(task.rpartition("-")[2])]
                of = f"/{label.name}" if len(self._labels) > 1 else ""
                found[key.partition("_")[2] + of] = float(value)
        self._begin(split)
        return found


def _made(kind: Callable[..., Any], device: torch.device, **options: Any) -> Any:
    """A metric that has all its sums and samples in its state dict."""
    metric = kind(**options).to(device)
    for part in metric.modules():
        if hasattr(part, "persistent"):  # torchmetrics' classes have it
            part.persistent(True)
    return metric


def _kept(metric: Any) -> dict[str, Any]:
    """What a metric has collected, as JSON holds it, exact to the bit: sums, and the samples that
    some metrics keep. Samples of weight 0 are left out, since TorchRec makes one itself."""
    import torch

    sums: dict[str, Any] = {}
    samples: dict[str, list[Tensor]] = {}
    for name, value in metric.state_dict().items():
        if isinstance(value, list):
            samples.setdefault(name.rpartition(".")[2], []).append(torch.cat(value, -1).view(-1))
        else:
            sums[name] = _to_json(value)
    joined = {name: torch.stack(each) for name, each in samples.items()}
    counted = joined["weights"].any(0) if joined else None
    return {
        "sums": sums,
        "samples": {name: _to_json(one[:, counted]) for name, one in joined.items()},
    }


def _fill(metric: Any, kept: Mapping[str, Any], device: torch.device) -> None:
    """Fill a new metric with what `_kept` returned. Samples go through `update`, since TorchRec
    also counts them elsewhere."""
    sums = {name: _of_json(one, device) for name, one in kept["sums"].items()}
    metric.load_state_dict(metric.state_dict() | sums)
    samples = {name: _of_json(one, device) for name, one in kept["samples"].items()}
    if samples and samples["weights"].numel():
        each = {name: enumerate(tasks) for name, tasks in samples.items()}
        metric.update(
            **{name: {str(task): one for task, one in tasks} for name, tasks in each.items()}
        )


def _to_json(tensor: Tensor) -> list[Any]:
    numbers = tensor.detach().cpu().contiguous().numpy()
    return [str(numbers.dtype), [*numbers.shape], base64.b64encode(numbers.tobytes()).decode()]


def _of_json(kept: Sequence[Any], device: torch.device) -> Tensor:
    import numpy as np
    import torch

    dtype, shape, numbers = kept
    held = np.frombuffer(bytearray(base64.b64decode(numbers)), dtype=dtype)
    return torch.from_numpy(held.reshape(shape)).to(device)


def build_extra_metrics(config: ExtraMetricsConfig, context: Context) -> ExtraMetrics:
    return ExtraMetrics(config.names)

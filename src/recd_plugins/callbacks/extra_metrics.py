"""Metrics of torchrec.metrics beside loss, NE and AUC."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from recd_plugins.config import Config
from recd_plugins.errors import RegistryError, nearest
from recd_plugins.slots import Callback, Context

if TYPE_CHECKING:
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
"""The metrics of torchrec.metrics that need labels, predictions and weights alone."""
WINDOW = 1 << 20
"""The latest samples, of all ranks, of those that keep samples."""


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
        self._metrics: dict[str, list[Any]] = {}

    def at_start(self, training: Training) -> None:
        from torchrec.metrics.metric_module import REC_METRICS_MAPPING
        from torchrec.metrics.metrics_config import RecTaskInfo

        self._labels = training.labels
        kinds = {kind.value: metric for kind, metric in REC_METRICS_MAPPING.items()}
        # Their names are numbers: TorchRec splits its results at signs that a column may have.
        tasks = [
            RecTaskInfo(
                name=str(number),
                label_name="label",
                prediction_name="prediction",
                weight_name="weight",
            )
            for number in range(len(training.labels))
        ]
        batch_size = training.settings.batch_size
        for split in ("train", "test"):
            self._metrics[split] = [
                kinds[name](
                    world_size=training.world_size,
                    my_rank=training.rank,
                    batch_size=batch_size,
                    tasks=tasks,
                    window_size=WINDOW,
                    compute_on_all_ranks=True,
                ).to(training.device)
                for name in self._names
            ]

    def after_step(self, training: Training) -> None:
        self._update("train", training)

    def after_evaluation_step(self, training: Training) -> None:
        self._update("test", training)

    def on_metrics(self, training: Training, metrics: dict[str, float]) -> None:
        metrics.update(self._computed("train"))

    def on_evaluation(self, training: Training, metrics: dict[str, float]) -> None:
        metrics.update(self._computed("test"))

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
            metric.reset()
            whole = {k: v for k, v in values.items() if k[1].startswith("lifetime_")} or values
            for (task, key), value in whole.items():
                label = self._labels[int(task.rpartition("-")[2])]
                of = f"/{label.name}" if len(self._labels) > 1 else ""
                found[key.partition("_")[2] + of] = float(value)
        return found


def build_extra_metrics(config: ExtraMetricsConfig, context: Context) -> ExtraMetrics:
    return ExtraMetrics(config.names)

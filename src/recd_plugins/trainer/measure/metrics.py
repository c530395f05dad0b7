"""Loss, normalised entropy, AUC and squared error over several steps."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import pad

from recd_plugins.data.schema import Label
from recd_plugins.trainer.measure.by_rank import uneven_by_rank

__all__ = ["LabelMetrics", "Metrics", "MetricsWindow", "joined_windows"]

ETA = 1e-12
"""Predictions are kept this far from 0 and 1, as TorchRec does."""

CALIBRATION_BINS = 20
"""Bins of equally many samples, ordered by prediction; each compares predictions with labels."""

AUC_SAMPLES = 131_072
"""How many of the latest samples per rank count for the AUC of a training window."""


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """The metrics of the samples of all ranks together."""

    loss: float
    """Mean of the ranks' losses over the steps; over the samples if all samples are kept."""
    ne: float
    """Normalised entropy: cross entropy over that of the mean label; below 1 is learning. NaN if
    only one class was seen."""
    auc: float
    """Area under the ROC curve; 0.5 if only one class was seen."""
    samples: int
    """Samples of weight above 0."""


# These are TorchRec's formulas, equal to the bit except for the AUC. Importing TorchRec's own takes
# a rank 1.2 s and 33 MiB, mostly for matplotlib, with which nothing there draws.


def _sums(predictions: Tensor, labels: Tensor, weights: Tensor) -> Iterator[Tensor]:
    """The sums over some samples: cross entropy, weight, weight of labels 1 and of labels 0."""
    sure = predictions.clamp(min=ETA, max=1 - ETA)
    yield (
        -weights * labels * torch.log2(sure) - weights * (1.0 - labels) * torch.log2(1.0 - sure)
    ).sum()
    yield weights.sum()
    yield (weights * labels).sum()
    yield (weights * (1.0 - labels)).sum()


def _normalised_entropy(
    entropy: Tensor, seen: Tensor, positive: Tensor, negative: Tensor
) -> Tensor | float:
    """Cross entropy over that of the mean label; NaN if only one class was seen."""
    if not positive * negative > 0:
        return math.nan
    mean = (positive / seen.clamp(min=ETA)).clamp(min=ETA, max=1 - ETA)
    return entropy / (-positive * torch.log2(mean) - negative * torch.log2(1.0 - mean))


def _auc(predictions: Tensor, labels: Tensor, weights: Tensor) -> Tensor | float:
    """The area under the ROC curve, by trapezia from (0, 0) on; 0.5 if only one class was seen.

    All samples with the same prediction are one point, so their pairs count half. TorchRec's AUC
    has a point for each sample, so it depends on the order of such samples.
    """
    if not len(predictions):
        return 0.5
    order = torch.argsort(predictions, descending=True)
    predictions, labels, weights = predictions[order], labels[order], weights[order]
    last = torch.ones_like(predictions, dtype=torch.bool)
    last[:-1] = predictions[1:] != predictions[:-1]
    every = (weights * (1.0 - labels), weights * labels)
    false, true = (pad(one.cumsum(0)[last], (1, 0)) for one in every)
    if false[-1] * true[-1] == 0:
        return 0.5
    return torch.trapezoid(true, false) / false[-1] / true[-1]


def _calibration(predictions: Tensor, labels: Tensor, weights: Tensor) -> list[list[float]]:
    """[mean prediction, mean label, weight] of `CALIBRATION_BINS` bins, by ascending
    prediction."""
    order = torch.argsort(predictions)
    found = []
    for part in order.tensor_split(min(CALIBRATION_BINS, max(1, len(order)))):
        weight = weights[part].sum()
        if weight > 0:
            means = [(weights[part] * one[part]).sum() / weight for one in (predictions, labels)]
            found.append([*map(float, means), float(weight)])
    return found


class MetricsWindow:
    """Collects outputs step by step; `metrics` joins those of all ranks and starts anew."""

    def __init__(self, device: torch.device, *, auc_samples: int | None = AUC_SAMPLES) -> None:
        self._device = device
        self._auc_samples = auc_samples
        self.calibration: list[list[float]] = []
        """The bins (`_calibration`) of the latest `metrics`, if all samples are kept."""
        self._reset()

    def _reset(self) -> None:
        self._losses: list[Tensor] = []
        self._sizes: list[Tensor] = []
        """The number of samples of which each loss is the mean, if all samples are kept."""
        self._outputs: list[tuple[Tensor, Tensor, Tensor]] = []
        self._held = 0
        self._states = torch.zeros(5, dtype=torch.float64, device=self._device)

    def add(
        self,
        loss: Tensor,
        logits: Tensor,
        labels: Tensor,
        weights: Tensor,
        size: Tensor | None = None,
    ) -> None:
        """Take one step's outputs of this rank: a scalar and three [B]. The loss is the mean of
        `size` samples, by default of those with weight above 0."""
        # Convert to doubles first: a float's sigmoid is 1 from a logit of 17 on.
        predictions, labels, weights = logits.double().sigmoid(), labels.double(), weights.double()
        counted = (weights > 0).sum()
        self._states += torch.stack([*_sums(predictions, labels, weights), counted])
        self._losses.append(loss.double())
        if self._auc_samples is None:
            self._sizes.append(counted if size is None else size)
        self._outputs.append((predictions, labels, weights))
        self._held += predictions.numel()
        while (
            self._auc_samples is not None
            and self._held - self._outputs[0][0].numel() >= self._auc_samples
        ):
            self._held -= self._outputs.pop(0)[0].numel()

    def state_dict(self) -> dict[str, Any]:
        """What this rank has collected, as JSON holds it, exact to the bit."""
        outputs = [torch.stack(one).cpu() for one in self._outputs]
        joined = torch.cat(outputs, 1).numpy().tobytes() if outputs else b""
        return {
            "losses": [float(loss) for loss in self._losses],
            "states": self._states.tolist(),
            "sizes": [one.shape[1] for one in outputs],
            "outputs": base64.b64encode(joined).decode(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what was collected."""
        self._reset()
        losses, states = (
            torch.tensor(state[name], dtype=torch.float64, device=self._device)
            for name in ("losses", "states")
        )
        self._losses, self._states = list(losses), states
        held = bytearray(base64.b64decode(state["outputs"]))
        if held:
            outputs = torch.frombuffer(held, dtype=torch.float64).view(3, -1).to(self._device)
            for part in outputs.split(state["sizes"], 1):
                predictions, labels, weights = part.unbind()
                self._outputs.append((predictions, labels, weights))
        self._held = sum(state["sizes"])

    def metrics(self) -> Metrics:
        """The metrics of all ranks; every rank must call it, after the same steps."""
        losses = torch.stack(self._losses)
        sizes = torch.ones_like(losses)
        if self._auc_samples is None:  # a batch of only padding may have any loss
            sizes = torch.stack(self._sizes).to(losses)
            losses = losses.where(sizes > 0, 0.0)
        sums = torch.cat([torch.stack([(losses * sizes).sum(), sizes.sum()]), self._states])
        dist.all_reduce(sums)
        entropy, seen, positive, negative, samples = sums[2:].unbind()
        own = torch.stack([torch.cat(part) for part in zip(*self._outputs, strict=True)])
        outputs = torch.cat(uneven_by_rank(own), dim=1)
        outputs = outputs[:, outputs[2] > 0]
        if self._auc_samples is None:
            self.calibration = _calibration(*outputs)
        result = Metrics(
            loss=float(sums[0] / sums[1]),
            ne=float(_normalised_entropy(entropy, seen, positive, negative)),
            auc=float(_auc(*outputs)),
            samples=int(samples),
        )
        self._reset()
        return result


class LabelMetrics:
    """The metrics of all labels, by name; with several labels, those of each are `auc/click` and so
    on."""

    def __init__(
        self,
        device: torch.device,
        labels: Sequence[Label],
        *,
        auc_samples: int | None = AUC_SAMPLES,
    ) -> None:
        self._device = device
        self._labels = tuple(labels)
        self._windows = [MetricsWindow(device, auc_samples=auc_samples) for _ in labels]
        self._reset()

    def _reset(self) -> None:
        self._errors = torch.zeros(len(self._labels), 2, dtype=torch.float64, device=self._device)
        self._samples = torch.zeros(1, dtype=torch.float64, device=self._device)

    def add(self, loss: Tensor, outputs: Tensor, labels: Tensor, weights: Tensor) -> None:
        """Take one step's outputs of this rank: a scalar, two [B] or [B, T], and [B]."""
        self._samples += (weights > 0).double().sum()
        # A sample may lack labels. The loss is the mean of the samples that have at least one.
        lacking_all = labels.reshape(len(weights), -1).isnan().all(1)
        size = ((weights > 0) & ~lacking_all).sum()
        columns = zip(
            self._labels,
            self._windows,
            outputs.reshape(len(weights), -1).unbind(1),
            labels.reshape(len(weights), -1).unbind(1),
            strict=True,
        )
        for task, (label, window, output, target) in enumerate(columns):
            counted = weights
            if label.nulls == "empty":
                lacking = target.isnan()
                target = target.masked_fill(lacking, 0.0)
                counted = weights.masked_fill(lacking, 0.0)
            if label.kind == "regression":
                error = counted.double() * (output.double() - target.double()).square()
                self._errors[task] += torch.stack([error.sum(), counted.double().sum()])
                target = torch.zeros_like(target)
            window.add(loss, output, target / label.scale, counted, size)

    def state_dict(self) -> dict[str, Any]:
        """What this rank has collected, as JSON holds it, exact to the bit."""
        return {
            "windows": [window.state_dict() for window in self._windows],
            "errors": self._errors.tolist(),
            "samples": self._samples.tolist(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what was collected."""
        for window, held in zip(self._windows, state["windows"], strict=True):
            window.load_state_dict(held)
        self._errors = torch.tensor(state["errors"], dtype=torch.float64, device=self._device)
        self._samples = torch.tensor(state["samples"], dtype=torch.float64, device=self._device)

    def metrics(self) -> dict[str, float]:
        """The metrics of all ranks; every rank must call it, after the same steps.

        `ne` and `auc` are those of the first label that is not a regression; NaN if there is none.
        """
        found = [window.metrics() for window in self._windows]
        sums = torch.cat([self._errors.flatten(), self._samples])
        dist.all_reduce(sums)
        errors = sums[:-1].view(-1, 2).tolist()
        values: dict[str, float] = {
            "loss": found[0].loss,
            "ne": math.nan,
            "auc": math.nan,
            "samples": int(sums[-1]),
        }
        ranked = [one for one, label in zip(found, self._labels, strict=True) if is_ranked(label)]
        if ranked:
            values |= {"ne": ranked[0].ne, "auc": ranked[0].auc}
        for label, one, (error, weight) in zip(self._labels, found, errors, strict=True):
            if not is_ranked(label):
                values[f"mse/{label.name}"] = error / weight if weight else math.nan
            elif len(self._labels) > 1:
                values |= {f"ne/{label.name}": one.ne, f"auc/{label.name}": one.auc}
        self._reset()
        return values

    @property
    def calibration(self) -> dict[str, list[list[float]]]:
        """The calibration of the latest `metrics` of all samples, for each label that is not a
        regression: mean prediction, mean label and weight of bins of equally many samples, by
        ascending prediction."""
        both = zip(self._labels, self._windows, strict=True)
        return {label.name: window.calibration for label, window in both if is_ranked(label)}


def joined_windows(
    states: Sequence[Mapping[str, Any]], *, ranks_before: int, ranks: int
) -> dict[str, Any]:
    """What the `LabelMetrics` of all `ranks_before` have collected, as the state of one of `ranks`
    whose others have collected nothing. The steps so far count as much as those to come."""
    windows = []
    for parts in zip(*(state["windows"] for state in states), strict=True):
        outputs = [
            np.frombuffer(base64.b64decode(part["outputs"])).reshape(3, -1) for part in parts
        ]
        losses = [loss for part in parts for loss in part["losses"]]
        windows.append(
            {
                "losses": _for_ranks(losses, ranks_before, ranks),
                "states": np.sum([part["states"] for part in parts], axis=0).tolist(),
                "sizes": [size for part in parts for size in part["sizes"]],
                "outputs": base64.b64encode(np.concatenate(outputs, 1).tobytes()).decode(),
            }
        )
    sums = {
        name: np.sum([state[name] for state in states], axis=0).tolist()
        for name in ("errors", "samples")
    }
    return {"windows": windows, **sums}


def _for_ranks(losses: list[float], ranks_before: int, ranks: int) -> list[float]:
    """Losses of the same mean, as many as other ranks would have added in as many steps."""
    if not losses:
        return []
    return [math.fsum(losses) / len(losses)] * (len(losses) * ranks // ranks_before)


def is_ranked(label: Label) -> bool:
    """Whether a label's output is a logit, by which samples are ranked."""
    return label.kind != "regression"

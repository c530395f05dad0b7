"""Clips dense gradients before they are applied."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from recd_plugins.config import Config, Range
from recd_plugins.errors import RegistryError
from recd_plugins.slots import Callback, Context

if TYPE_CHECKING:
    from torch import Tensor

    from recd_plugins.trainer.training import Training

__all__ = ["ClippingConfig", "build_clipping"]


@dataclass(frozen=True, kw_only=True)
class ClippingConfig(Config):
    """Gradients of the dense parameters alone, summed over the ranks, so all ranks clip alike."""

    norm: Annotated[float, Range(gt=0)] | None = None
    """The largest norm of all gradients together: a larger one is scaled down to it. By default
    norms are not bounded."""
    norm_type: Annotated[float, Range(gt=0)] = 2.0
    """The order of the norm: 2 is the Euclidean one."""
    value: Annotated[float, Range(gt=0)] | None = None
    """The largest magnitude of a gradient's number, which is cut before `norm` counts. By default
    numbers are not cut."""
    of: Literal["dense", "tables", "both"] = "dense"
    """Which gradients are clipped: only `dense`, since tables have fused optimizers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.of != "dense":
            raise RegistryError(
                "gradients of tables cannot be clipped: their fused optimizer applies the gradient "
                "of each row within backward, table by table, so the norm of all gradients is not "
                "known in time. Clip `dense`; for tables lower train.optimizer.tables_lr, or warm "
                "it up (`schedule`).",
                "of",
            )
        if self.norm is None and self.value is None:
            raise RegistryError(
                "neither `norm` nor `value` is set, so nothing would be clipped. Set one."
            )

    def idle_options(self) -> Mapping[str, str]:
        if self.norm is not None:
            return {}
        why = "it is the order of `norm`, which is not set"
        return dict.fromkeys(self.set_among("norm_type"), why)


class Clipping(Callback):
    def __init__(self, config: ClippingConfig) -> None:
        self._config = config
        self._norm: Tensor | None = None

    def before_update(self, training: Training) -> None:
        from torch.nn.utils import clip_grad_norm_, clip_grad_value_

        config = self._config
        params = [param for group in training.dense.param_groups for param in group["params"]]
        if config.value is not None:
            clip_grad_value_(params, config.value)
        if config.norm is not None:
            self._norm = clip_grad_norm_(params, config.norm, config.norm_type)

    def on_metrics(self, training: Training, metrics: dict[str, float]) -> None:
        """Add the norm of the latest step's gradients, as it was before clipping."""
        if self._norm is not None:
            metrics["gradient_norm"] = float(self._norm)


def build_clipping(config: ClippingConfig, context: Context) -> Clipping:
    return Clipping(config)

"""Computes the dense part of the model in bfloat16, by torch.autocast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from recd_plugins.config import Config
from recd_plugins.errors import RegistryError
from recd_plugins.slots import Callback, Context

if TYPE_CHECKING:
    from recd_plugins.trainer.training import Training

__all__ = ["MixedPrecisionConfig", "build_mixed_precision"]


@dataclass(frozen=True, kw_only=True)
class MixedPrecisionConfig(Config):
    """Parameters, optimizers, tables and what collectives move stay float32."""

    dtype: Literal["bfloat16", "float16"] = "bfloat16"
    """The type in which torch.autocast computes matrix products; `float16` is not supported."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dtype == "float16":
            raise RegistryError(
                "float16 needs losses scaled against underflow, and the tables' fused optimizers "
                "would apply the scaled gradients within backward. Take bfloat16, which has "
                "float32's range.",
                "dtype",
            )


class MixedPrecision(Callback):
    """Runs forward under autocast, in training and evaluation; backward uses the same types."""

    def __init__(self) -> None:
        self._handles: list[Any] = []

    def at_start(self, training: Training) -> None:
        import torch

        entered: list[torch.autocast] = []

        def enter(*_: Any) -> None:
            entered.append(torch.autocast(training.device.type, dtype=torch.bfloat16))
            entered[-1].__enter__()

        def leave(*_: Any) -> None:
            entered.pop().__exit__(None, None, None)

        self._handles = [
            training.model.register_forward_pre_hook(enter),
            training.model.register_forward_hook(leave, always_call=True),
        ]

    def close(self) -> None:
        while self._handles:
            self._handles.pop().remove()


def build_mixed_precision(config: MixedPrecisionConfig, context: Context) -> MixedPrecision:
    return MixedPrecision()

"""A callback: the largest gradient of the dense parameters, among the metrics."""

from __future__ import annotations

from typing import Any

from torch.nn.utils import get_total_norm

from recd_plugins.api import Callback, CallbackRecord, Config, Context, hookimpl
from recd_plugins.api.training import Training


class NewPlugin(Callback):
    """Each rank has the same: gradients are summed over the ranks before an update."""

    def __init__(self) -> None:
        self.largest = 0.0

    def before_update(self, training: Training) -> None:
        parameters = [one for group in training.dense.param_groups for one in group["params"]]
        norm = get_total_norm([one.grad for one in parameters if one.grad is not None])
        self.largest = max(self.largest, float(norm))

    def on_metrics(self, training: Training, metrics: dict[str, float]) -> None:
        metrics["largest_gradient"] = self.largest

    def state_dict(self) -> dict[str, Any]:
        """The state that a checkpoint keeps, so that a resumed run goes on from it."""
        return {"largest": self.largest}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.largest = state["largest"]


def build(config: Config, context: Context) -> NewPlugin:
    return NewPlugin()


@hookimpl
def recd_callbacks() -> list[CallbackRecord[Config]]:
    return [
        CallbackRecord(
            name="new_plugin",
            summary="The largest dense gradient.",
            config=Config,
            build=build,
        )
    ]

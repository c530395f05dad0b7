"""The run that a callback sees; forecasts of a trainer's own batches; how fast a trainer is."""

from recd_plugins.advise.turns import step_seconds
from recd_plugins.registry.settings import OptimizerSettings, TrainSettings
from recd_plugins.trainer.checkpoints.weights import checkpoint_reader, load_weights
from recd_plugins.trainer.measure.beside import Beside
from recd_plugins.trainer.measure.watched import WatchedBatches
from recd_plugins.trainer.training import Training

__all__ = [
    "Beside",
    "OptimizerSettings",
    "TrainSettings",
    "Training",
    "WatchedBatches",
    "checkpoint_reader",
    "load_weights",
    "step_seconds",
]

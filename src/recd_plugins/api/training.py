"""What a callback sees of the run that it is called by."""

from recd_plugins.registry.settings import OptimizerSettings, TrainSettings
from recd_plugins.trainer.training import Training

__all__ = ["OptimizerSettings", "TrainSettings", "Training"]

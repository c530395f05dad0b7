"""A registry's training on one rank of a pool, for examples, tests and benchmarks."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Mapping
from typing import Any

__all__ = ["train_quietly"]


def train_quietly(registry: Mapping[str, Any]) -> dict[str, Any]:
    """The summary that `recd train` would return, with nothing printed."""
    import torch

    from recd_plugins.stack import load
    from recd_plugins.trainer.run import train

    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchRec's own
        return train(load(registry), torch.device("cpu"))

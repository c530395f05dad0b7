"""The extra states that the modules of a model add to its state dict by torch's `get_extra_state`.
A rank's file has those that are not tensors.
"""

from __future__ import annotations

import json
from typing import Any

from torch import Tensor, nn
from torchrec.distributed.types import ShardedTensor

from recd_plugins.errors import PluginError
from recd_plugins.storage.json_mappings import as_items

__all__ = ["EXTRA", "beside_tensors"]

EXTRA = "_extra_state"
"""How torch names the extra state of a module."""


def beside_tensors(model: nn.Module) -> dict[str, Any]:
    """The values of a model's state dict that are not tensors, by name; `PluginError` if JSON
    cannot hold one."""
    found = {
        name: value
        for name, value in model.state_dict().items()
        if not isinstance(value, Tensor | ShardedTensor)
    }
    for name, value in found.items():
        try:
            json.dumps(as_items(value))
        except (TypeError, ValueError) as error:
            module = name.removesuffix(EXTRA).rstrip(".") or "the model"
            raise PluginError(
                f"model: a checkpoint cannot keep {name!r} of its state dict, a "
                f"{type(value).__name__}, as JSON ({error}). Have get_extra_state of {module} "
                "return one tensor, or numbers, texts, lists and mappings; or make tensors of it "
                "buffers."
            ) from error
    return found

"""The states of a rank's random numbers, of the CPU and of its device, as a checkpoint has them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from recd_plugins.trainer.checkpoints.files import damaged_file

__all__ = ["random_state", "restored_random_state", "set_random_state"]


def random_state(device: torch.device) -> dict[str, str]:
    """The states of this rank's random numbers by device, as JSON holds them."""
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return {name: bytes(value.tolist()).hex() for name, value in state.items()}


def restored_random_state(
    mine: Mapping[str, Any], device: torch.device, file: Path
) -> dict[str, Tensor]:
    """The states of the random numbers that `file` has of this rank, which are restored; empty for
    a rank that `reshard` added, which has none."""
    if "random" not in mine:
        return {}
    try:
        random = {
            name: torch.tensor(list(bytes.fromhex(text)), dtype=torch.uint8, device="cpu")
            for name, text in mine["random"].items()
        }
        set_random_state(random, device)
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise damaged_file(file, f"its random state is none: {error}") from error
    return random


def set_random_state(state: Mapping[str, Tensor], device: torch.device) -> None:
    """Restore the states of the random numbers, so that the next ones are those that would have
    come; an empty `state` changes nothing."""
    if not state:
        return
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)

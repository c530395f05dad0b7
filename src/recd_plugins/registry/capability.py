"""Checks what a record needs of the machine and of its neighbours, before it is built.

`needs` of a record lists: "cuda"; "import:NAME", a Python package; "command:NAME", a
program on PATH; "slot:NAME", a neighbour slot that registry.yaml must fill.
"""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Collection
from typing import Any, Literal

from recd_plugins.errors import CapabilityError, RegistryError, so_many
from recd_plugins.slots import Record

__all__ = ["check_gpus", "check_needs", "resolve_device"]


def resolve_device(device: Literal["auto", "cpu", "cuda"]) -> Literal["cpu", "cuda"]:
    """The device to train on: `auto` is CUDA if torch sees a device, else the CPU."""
    import torch

    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise CapabilityError(
            "train.device: cuda is asked for, but torch sees no CUDA device here. "
            "Set train.device=cpu, or install the CUDA lock (requirements/cuda.txt)."
        )
    return device


def check_gpus(ranks: int) -> None:
    """`RegistryError` if this machine has fewer CUDA devices than `ranks`."""
    import torch

    if ranks > (there := torch.cuda.device_count()):
        raise RegistryError(
            f"train.ranks: {so_many(ranks, 'rank')} of this machine train on CUDA, and torch sees "
            f"{so_many(there, 'GPU')} here. Lower --ranks, or set train.device=cpu. Where a "
            "launcher shows each rank one GPU alone (CUDA_VISIBLE_DEVICES, srun --gpus-per-task), "
            "let it show each rank all GPUs of the node."
        )


def check_needs(
    record: Record[Any, Any],
    device: Literal["auto", "cpu", "cuda"],
    filled: Collection[str],
    where: str,
    provider: object,
) -> None:
    """`CapabilityError` if a need of the record is not met."""
    for need in record.needs:
        lack = _lack(need, device, filled)
        if lack:
            raise CapabilityError(
                f"{where}: {record.slot} {record.name!r} of {provider} needs {lack}"
            )


def _importable(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # for a.b: there is no a
        return False


def _lack(need: str, device: Literal["auto", "cpu", "cuda"], filled: Collection[str]) -> str:
    kind, _, name = need.partition(":")
    match kind:
        case "cuda":
            if resolve_device(device) != "cuda":
                return (
                    "a CUDA device, but training runs on the CPU. Choose another record, "
                    "or train where torch sees a GPU (train.device=cuda)."
                )
        case "import":
            if not _importable(name):
                return f"the package {name!r}, which is not installed. Install it with pip."
        case "command":
            if shutil.which(name) is None:
                return f"the program {name!r}, which is not on PATH. Install it."
        case "slot":
            if name not in filled:
                return f"the slot {name!r} filled too. Add `{name}:` to registry.yaml."
        case _:
            return (
                f"{need!r}, which is no capability that the host knows: its plugin is for another "
                "version, or misspelt it (cuda, import:NAME, command:NAME, slot:NAME)."
            )
    return ""

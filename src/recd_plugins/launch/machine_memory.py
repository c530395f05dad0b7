"""How much memory this machine has, or its container may take; and its accelerator."""

from __future__ import annotations

import resource
from functools import cache
from pathlib import Path

from recd_plugins.launch.control_groups import own_groups, text_of

__all__ = ["address_space", "device_memory", "machine_memory"]

LIMITS = ("memory.max", "memory.limit_in_bytes")
"""The files that say how much a control group may take, of version 2 and of version 1; `max` is no
limit."""


@cache
def machine_memory(root: Path = Path("/")) -> int | None:
    """The bytes of memory that this machine has, or that its container or a cluster's job may take;
    None where Linux does not say."""
    groups = own_groups(root, "memory")
    limits = (_limit(text_of(group / name)) for group in groups for name in LIMITS)
    found = [_total(text_of(root / "proc/meminfo")), *limits]
    return min((size for size in found if size is not None), default=None)


def address_space() -> int | None:
    """The bytes of addresses that this process may take (`ulimit -v`); None where nothing limits
    them. Each thread takes some that it never touches."""
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if most == resource.RLIM_INFINITY else most


def device_memory() -> int | None:
    """The bytes of memory of this process's CUDA device; None where torch sees none."""
    import torch

    if not torch.cuda.is_available():
        return None
    return int(torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory)


def _total(meminfo: str) -> int | None:
    for line in meminfo.splitlines():
        name, _, value = line.partition(":")
        if name == "MemTotal":
            return int(value.split()[0]) * 1024
    return None


def _limit(text: str) -> int | None:
    return int(text) if text.strip().isdigit() else None

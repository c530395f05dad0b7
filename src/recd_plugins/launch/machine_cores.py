"""How many cores this process may use, and each rank's share of them."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

from recd_plugins.launch.control_groups import own_groups, text_of
from recd_plugins.launch.environment import AGENTS_STORE

__all__ = ["cores_of_each", "machine_cores"]


def machine_cores(root: Path = Path("/")) -> int:
    """The cores that this process may use: those to which `taskset` or a cluster's job binds it,
    but no more than its container's time quota."""
    return _within_quotas(_bound_to(0), root)


def cores_of_each(ranks_here: int, root: Path = Path("/")) -> int:
    """The cores of each of this machine's ranks; this process is one of them, or starts them.

    srun and mpirun bind a rank to cores of its own. torchrun and `launch` bind none: their ranks
    share the cores that the launcher itself may use.
    """
    own = _bound_to(0)
    if "RANK" not in os.environ:
        shared = own
    elif os.environ.get(AGENTS_STORE) == "True":
        shared = _bound_to(os.getppid())
    else:
        shared = os.cpu_count() or 1
    return max(1, min(own, _within_quotas(shared, root) // ranks_here))


def _bound_to(process: int) -> int:
    """The number of cores that the system lets a process run on."""
    try:
        return len(os.sched_getaffinity(process))
    except (AttributeError, OSError):  # as on macOS; or it is gone
        return os.cpu_count() or 1


def _within_quotas(cores: int, root: Path) -> int:
    return min((cores, *_quotas(root)))


def _quotas(root: Path) -> Iterator[int]:
    """The cores whose time each control group may use, as either version says it."""
    for group in own_groups(root, "cpu"):
        old = (text_of(group / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
        for text in (text_of(group / "cpu.max"), " ".join(old)):
            match text.split():
                case [quota, period] if quota.isdigit():  # else `max`, or -1
                    yield max(1, math.ceil(int(quota) / int(period)))

"""How many processors this process may use, and what each rank of a machine has of them."""

from __future__ import annotations

import math
import os
from pathlib import Path

__all__ = ["cores_of_a_rank", "usable_cores"]


def usable_cores(root: Path = Path("/")) -> int:
    """The processors that this process may use: those that it is bound to, by a scheduler or by
    `taskset`, and no more than its container's share of the machine's time."""
    share = _share(root / "sys/fs/cgroup")
    bound = len(os.sched_getaffinity(0))
    return bound if share is None else min(bound, max(1, math.ceil(share)))


def cores_of_a_rank(ranks_here: int) -> int:
    """A rank's part of the processors that this machine's ranks share evenly; all that it may use,
    where it is bound to them alone, as `srun` and `mpirun` bind ranks."""
    if os.sched_getaffinity(0) < _bound(os.getppid()):
        return usable_cores()
    return max(1, usable_cores() // ranks_here)


def _bound(process: int) -> set[int]:
    try:
        return os.sched_getaffinity(process)
    except OSError:
        return set()


def _share(group: Path) -> float | None:
    """How many processors' time a container may take, by either version of control groups; none
    where nothing limits it, which the one calls `max`, and the other -1."""
    quota, _, period = _text(group / "cpu.max").partition(" ")
    if not quota:
        quota, period = (_text(group / f"cpu/cpu.cfs_{one}_us") for one in ("quota", "period"))
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() else None


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""

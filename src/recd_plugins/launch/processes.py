"""What the system says of a process in /proc, where there is one: its state, its work, its age, and
which processes are below it."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ProcessStat", "own_memory", "stat_of", "with_those_below"]


@dataclass(frozen=True, kw_only=True)
class ProcessStat:
    """Some fields of /proc/PID/stat."""

    state: str
    """The letter of ps(1): T for one that is stopped."""
    major_faults: int
    """Pages that it has waited for a disk to bring."""
    seconds: float
    """The time that it has computed."""
    began: str
    """When it began, in ticks of the machine's clock: no other process of its number has that."""


def stat_of(pid: int) -> ProcessStat:
    """Raises `OSError` if there is no such process, or no /proc."""
    text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    # Its name, which may hold any sign, stands in parentheses before these.
    fields = text.rpartition(")")[2].split()
    return ProcessStat(
        state=fields[0],
        major_faults=int(fields[9]),
        seconds=(int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"),
        began=fields[19],
    )


def own_memory(field: str) -> int | None:
    """What Linux counts of this process's memory as `field` ("VmRSS"), in bytes; None on other
    systems."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text(errors="replace").splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) * 1024
    return None


def with_those_below(pid: int) -> list[int]:
    """A process, those that it started, and theirs; only itself if the system does not say."""
    found = [pid]
    for one in found:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{one}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
    return found

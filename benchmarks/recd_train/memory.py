"""The memory that a step takes: of its tensors, exactly, and as the system sees the process."""

from __future__ import annotations

import ctypes
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from torch.profiler import ProfilerActivity, profile

__all__ = ["give_back", "tensor_memory"]


def tensor_memory(step: Callable[[], object]) -> int:
    """Bytes of the tensors that a step makes and holds at once, at most.

    From the record of torch's CPU allocator: the same in every run. What was there before the
    step counts neither where it is nor where it goes.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        step()
    with tempfile.TemporaryDirectory(prefix="recd-bench-") as folder:
        trace = Path(folder) / "trace.json"
        watched.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text())["traceEvents"]
    changes = [one for one in events if one.get("name") == "[memory]"]
    # Not "Total Allocated": it counts on from one profile to the next.
    held: dict[int, int] = {}
    size = peak = 0
    for change in sorted(changes, key=lambda one: one["ts"]):
        place, change_size = change["args"]["Addr"], change["args"]["Bytes"]
        if change_size > 0:
            held[place] = change_size
            size += change_size
        else:
            size -= held.pop(place, 0)
        peak = max(peak, size)
    return peak


def give_back() -> None:
    """Have malloc return what is free, so that what is resident is what is in use."""
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)

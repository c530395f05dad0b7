"""The memory that a step takes: of its tensors, exactly; and of the process, as the system sees
it."""

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
    """The most bytes of tensors that a step makes and keeps at once.

    They come from the record of torch's CPU allocator, and are the same in every run. Memory from
    before the step does not count, even if the step frees it.
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
    """Have malloc return free memory, so that resident memory is the memory in use."""
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)

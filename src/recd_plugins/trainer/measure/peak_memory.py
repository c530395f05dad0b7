"""Peak memory of this process: of its device where that counts, else what is resident."""

from __future__ import annotations

import contextlib
import resource
from pathlib import Path

import torch

__all__ = ["PeakMemory"]


class PeakMemory:
    """The peak since it was made, in bytes.

    On CUDA what torch's allocator has handed out; on the CPU the resident set (Linux: since
    `clear_refs` was written; where that cannot be, since the process started).
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        if device.type == "cuda":
            torch.cuda.synchronize(device)
            torch.cuda.reset_peak_memory_stats(device)
            self.level = torch.cuda.memory_allocated(device)
            """What was in use when it was made."""
        else:
            with contextlib.suppress(OSError):
                Path("/proc/self/clear_refs").write_text("5")  # VmHWM falls to VmRSS
            self.level = _status("VmRSS") or _max_rss()

    def peak(self) -> int:
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device)
        return _status("VmHWM") or _max_rss()

    def above(self) -> int:
        """The bytes by which the peak exceeds the level."""
        return max(0, self.peak() - self.level)


def _status(field: str) -> int | None:
    """Linux's own count, in bytes; None on other systems."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) * 1024
    return None


def _max_rss() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

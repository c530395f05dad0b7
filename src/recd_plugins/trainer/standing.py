"""Where the ranks of a job stand, and which of them hangs, judged without asking any process."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Standing", "main_frames", "titled", "verdict", "waits"]

FRAMES = 12
"""Frames of a rank that hangs that its message shows; its file has all of them."""
NAMED = 4
"""Ranks that a message describes one by one."""
WAITS = (
    os.path.join("torch", "distributed", ""),
    os.path.join("torchrec", "distributed", ""),
    os.path.join("recd_plugins", "tiers", ""),
    os.path.join("recd_plugins", "trainer", "stop_signal.py"),
)
"""Parts of the names of files in which a rank stands while it waits for the others."""
WAITS_IN_BACKWARD = "_engine_run_backward"
"""Where a rank stands in Python while DDP waits for the others' gradients."""
FRAME = re.compile(r'File "(.*)", line (\d+) in (.*)')
"""A frame, as faulthandler writes it."""
ESCAPED = re.compile(r"\\x([0-9a-f]{2})|\\u([0-9a-f]{4})|\\U([0-9a-f]{8})")
"""A character beyond ASCII, as faulthandler writes it."""


@dataclass(frozen=True, kw_only=True)
class Standing:
    """The place where a rank stands."""

    rank: int
    host: str
    pid: int
    marks: int = 0
    """Marks that it has set: fewer than others have, if it is behind."""
    doing: str = ""
    """The work that it does since its latest mark."""
    waits: bool = False
    """Whether it waits for other ranks."""
    silent: str = ""
    """The state of its process, if the rank did not answer."""
    stacks: str = ""
    """The stacks of its threads, as faulthandler writes them."""
    at: tuple[str, ...] = ()
    """The frames of its main thread, innermost first."""


def verdict(standings: Sequence[Standing], limit: float, folder: Path) -> str:
    """The verdict: which ranks hang and where, how the others stand, and what to do.

    Ranks that do not answer hang; if all answer, those that do not wait for others; if all wait,
    those that are behind. If all are alike, they wait for each other.
    """
    order = {one.rank: (not one.silent, one.waits, one.marks) for one in standings}
    worst = min(order.values())
    hanging = [one for one in standings if order[one.rank] == worst]
    others = [one for one in standings if order[one.rank] != worst]
    lines = [f"no rank has made a step for {limit:g} s (train.hang_after)."]
    alone = len(standings) == 1
    if others or alone:
        lines += [_described(one) for one in hanging[:NAMED]]
        if more := hanging[NAMED:]:
            lines.append(f"So do the ranks {', '.join(str(one.rank) for one in more)}.")
    else:
        lines.append("All ranks stand alike, as where they disagree on what comes next:")
        lines += [_short(one) for one in hanging[:NAMED]]
    if others:
        lines.append(
            "The others wait for it:" if len(hanging) == 1 else "The others wait for them:"
        )
        lines += [_short(one) for one in others[:NAMED]]
        if more := others[NAMED:]:
            lines.append(f"  and {len(more)} more")
    lines.append(
        f"Stacks of all ranks: {folder}/rank-*.txt. `recd train --resume` goes on from the latest "
        "checkpoint. Where a step, a batch of an evaluation or a checkpoint may take longer than "
        "that, give train.hang_after more seconds, or 0 to wait for ever."
    )
    return "\n".join(lines)


def _described(one: Standing) -> str:
    who = f"rank {one.rank} hangs (process {one.pid} of {one.host})"
    what = f": it {one.silent}" if one.silent else f" at {one.doing}"
    where = "".join(f"\n    {frame}" for frame in one.at[:FRAMES])
    return f"{who}{what}{', in' if where else '.'}{where}"


def _short(one: Standing) -> str:
    return f"  rank {one.rank} at {one.doing}, in {one.at[0] if one.at else 'C code'}"


def titled(one: Standing) -> str:
    return f"{_described(one)}\n\n{one.stacks}"


def main_frames(stacks: str, thread: int) -> tuple[str, ...]:
    """The frames of a thread, innermost first, of stacks as faulthandler writes them.

    faulthandler reads no line of source, and neither do we: the disk that has them may be what
    hangs.
    """
    lines = iter(stacks.splitlines())
    for line in lines:
        if f"hread 0x{thread:016x}" in line:
            break
    frames = []
    for line in lines:
        if not (found := FRAME.search(line)):
            break
        frame = "{}:{} {}".format(*found.groups())
        frames.append(ESCAPED.sub(lambda one: chr(int(one[1] or one[2] or one[3], 16)), frame))
    return tuple(frames)


def waits(frame: str) -> bool:
    return frame.endswith(WAITS_IN_BACKWARD) or any(part in frame for part in WAITS)

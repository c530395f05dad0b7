"""The folders of a run's checkpoints: their names by step, and which of them are complete."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

__all__ = ["checkpoints_in", "remove_parts", "step_of"]

STEP = re.compile(r"step-(\d{8,})")
"""The name of a checkpoint's folder: eight digits, or more from step 100,000,000 on."""


def checkpoints_in(folder: Path) -> list[Path]:
    """The checkpoints of a run's folder of them, the newest last."""
    return sorted((one for one in folder.glob("step-*") if step_of(one) >= 0), key=step_of)


def step_of(checkpoint: Path) -> int:
    """The step in a checkpoint's name; -1 if it is not a checkpoint, or is incomplete or set
    aside."""
    named = STEP.fullmatch(checkpoint.name)
    return int(named[1]) if named else -1


def remove_parts(checkpoints: Path) -> None:
    """Remove the incomplete checkpoints that a kill left: no run can go on from them."""
    for part in checkpoints.glob("step-*.part"):
        shutil.rmtree(part, ignore_errors=True)

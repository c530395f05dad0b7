"""A run's folder: kept when a new run takes its name, checked before it is resumed."""

from __future__ import annotations

from pathlib import Path

from recd_plugins.errors import RegistryError

__all__ = ["check_resumable", "set_aside"]


def set_aside(run: Path) -> Path | None:
    """Rename a run that is there to `<name>.<n>`, so that a new one loses nothing."""
    if run.exists() and not run.is_dir():
        raise RegistryError(f"train.run: {run} is a file, not a folder. Name another.")
    if not run.exists() or not any(run.iterdir()):
        return None
    number = 1
    while (target := run.with_name(f"{run.name}.{number}")).exists():
        number += 1
    run.rename(target)
    return target


def check_resumable(run: Path) -> None:
    """`RegistryError` where a run holds no checkpoint to go on from."""
    checkpoints = run / "checkpoints"
    if not any(checkpoints.glob("step-????????")):
        raise RegistryError(
            f"--resume: {checkpoints} holds no checkpoint. Train without --resume, or name the "
            "run's folder with train.run=..."
        )

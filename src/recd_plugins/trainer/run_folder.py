"""A run's folder: it is kept when a new run takes its name, and checked before it is resumed."""

from __future__ import annotations

import errno
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from recd_plugins.errors import DataError, RegistryError, listed
from recd_plugins.trainer.checkpoints.step_folders import checkpoints_in, remove_parts

__all__ = [
    "check_is_run",
    "check_makes_files",
    "check_not_among_checkpoints",
    "check_resumable",
    "naming_lost_folder",
    "set_aside",
]

OF_A_RUN = ("metrics.jsonl", "summary.json", "checkpoints", "tensorboard")
"""A folder that has any of these is a run's; hidden files do not count."""


def check_is_run(run: Path, option: str = "train.run") -> None:
    """`RegistryError` if the folder that `option` names exists and is not a run's, or if none can
    be made; it is left as it is."""
    encoding = sys.getfilesystemencoding()
    if (
        encoding != "utf-8"
        and len({str(run).encode(one, "surrogateescape") for one in (encoding, "utf-8")}) > 1
    ):
        raise RegistryError(
            f"{option}: {run} would become folders of two names, as names are written in "
            f"{encoding} here, but in UTF-8 by TensorBoard. Name it in ASCII; or have the variable "
            "PYTHONUTF8 be 1, or LC_ALL a locale of UTF-8, as C.UTF-8."
        )
    here = Path.cwd()
    if Path(os.path.realpath(run)) in (here, *here.parents):
        raise RegistryError(
            f"{option}: {run} is the folder in which this command runs, or a folder above it. Name "
            "a folder for the run, such as runs/first."
        )
    if not run.exists():
        check_makes_files(run, option)
        return
    if not run.is_dir():
        raise RegistryError(f"{option}: {run} is not a folder. Name another.")
    held = sorted(one.name for one in run.iterdir() if not one.name.startswith("."))
    if held and not set(held) & set(OF_A_RUN):
        raise RegistryError(
            f"{option}: {run} is not a run's folder: it holds {listed(held)}. Name a folder that "
            "is empty, or not there."
        )


def check_not_among_checkpoints(run: Path) -> None:
    """`RegistryError` if the folder TO, which `recd reshard` writes, lies among another run's
    checkpoints."""
    for folder in Path(os.path.realpath(run)).parents:
        if folder.name == "checkpoints" and checkpoints_in(folder):
            raise RegistryError(
                f"TO: {run} lies in {folder}, where another run has its checkpoints. Name a "
                "folder outside that run."
            )


def check_makes_files(path: Path, option: str) -> None:
    """`RegistryError` if no file or folder of this name can be made."""
    real = Path(os.path.realpath(path))
    if real.is_symlink():
        raise RegistryError(f"{option}: {path} is a link that leads to itself. Name another.")
    folder = next(one for one in real.parents if one.exists())
    try:
        # Asking for permission is not enough: root has it where nothing can be written.
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise RegistryError(
            f"{option}: {path} cannot be written, because {folder} takes no files "
            f"({error.strerror}). Name another."
        ) from None


def set_aside(run: Path) -> Path | None:
    """Rename an existing run to `<name>.<n>`, so that a new one overwrites nothing; checkpoints
    that a kill left incomplete are removed. A link stays and leads to the new run, so a lock that a
    job took through the link is the new run's."""
    check_is_run(run)
    folder = Path(os.path.realpath(run)) if run.is_symlink() else run
    moved = None
    if folder.exists() and any(folder.iterdir()):
        remove_parts(folder / "checkpoints")
        number = 1
        while (target := folder.with_name(f"{folder.name}.{number}")).exists():
            number += 1
        moved = folder.rename(target)
    if run.is_symlink():
        folder.mkdir(parents=True, exist_ok=True)
    return moved


def check_resumable(run: Path) -> None:
    """`RegistryError` if a run has no checkpoint to go on from, or may save no further one: the
    steps to the next one would be lost."""
    checkpoints = run / "checkpoints"
    if not checkpoints_in(checkpoints):
        raise RegistryError(
            f"--resume: {checkpoints} holds no checkpoint. Begin with --resume-or-begin, or name "
            "the run's folder with train.run=..."
        )
    try:
        with tempfile.TemporaryFile(dir=checkpoints):
            pass
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            return  # as of a full disk, which may have room by then
        raise RegistryError(
            f"--resume: {checkpoints} takes no files ({error.strerror}), so the run could save no "
            "further checkpoint. Check its owner and permissions."
        ) from None


@contextmanager
def naming_lost_folder(run: Path) -> Iterator[None]:
    """Inside, a file that is missing because the run's folder was removed or moved says so."""
    # While it is held open, no other folder gets its number.
    held = os.open(run, os.O_RDONLY) if run.is_dir() else None
    try:
        yield
    except FileNotFoundError as error:
        if held is None or (run.is_dir() and os.path.samestat(os.stat(run), os.fstat(held))):
            raise
        raise DataError(
            f"{run}: the run's folder was removed, moved or replaced while the job trained in it, "
            "so that its metrics and checkpoints have no place. Put it back, and `recd train "
            "--resume` goes on from its latest checkpoint; or train anew."
        ) from error
    finally:
        if held is not None:
            os.close(held)

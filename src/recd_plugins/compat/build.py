"""Does the installed torch load, and is it the build for this target?

    python -m recd_plugins.compat.build cpu

`make` checks its installation with this. If PyTorch's own index is out of reach, pip takes PyPI's
torch. That is the build for CUDA, and the CPU's lock leaves out CUDA's libraries: its versions are
right, but it does not load.

fbgemm's build for CUDA needs a library of NVIDIA's driver. A machine that installs for others may
lack it: the node where users log in, or one that builds an image. Everything is installed there,
and `make` goes on when it sees the exit code `NO_DRIVER`.
"""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from recd_plugins.compat.versions import check_versions, installed_versions
from recd_plugins.errors import VersionError

__all__ = [
    "Build",
    "NoDriverError",
    "check_build",
    "installed_build",
    "load",
    "missing_library",
    "not_loaded",
]

INDEX = "https://download.pytorch.org/whl/cpu"
MISSING = re.compile(r"([^\s:]+): cannot open shared object file")
"""The message of the system's loader about a missing library."""
DRIVER = ("libcuda.so", "libnvidia-ml.so")
"""The beginnings of the names of libraries that come with NVIDIA's driver."""
NO_DRIVER = 3
"""The exit code if only the driver is missing."""


class NoDriverError(VersionError):
    """The build for CUDA is here, but NVIDIA's driver is not."""


class Build(NamedTuple):
    """The build of torch, read from its files, which works even if it does not load."""

    version: str
    cuda: str | None
    """The version of CUDA that it is built for; None for the CPU."""

    def __str__(self) -> str:
        return f"torch {self.version}, built for {f'CUDA {self.cuda}' if self.cuda else 'the CPU'}"


def installed_build() -> Build:
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        raise VersionError(
            "torch is not installed. Install the lock as it is: "
            "pip install --no-deps -r requirements/cpu.txt"
        )
    version = runpy.run_path(str(Path(spec.origin).parent / "version.py"))
    return Build(version["__version__"], version["cuda"])


def load() -> None:
    """Import torch, an operator of fbgemm's, and TorchRec, which would import even with the others
    incomplete."""
    import torch

    try:
        import fbgemm_gpu  # noqa: F401

        torch.ops.fbgemm.permute_2D_sparse_data  # noqa: B018  # AttributeError where it is absent
        import torchrec  # noqa: F401
    except (ImportError, OSError, AttributeError, RuntimeError) as error:
        raise ImportError(f"fbgemm's operators, or TorchRec: {error}") from error


def check_build(
    build: Build, target: str | None = None, *, load: Callable[[], None] = load
) -> None:
    """Raises `VersionError` with what to do, unless the build loads and fits `target` (cpu or
    cuda)."""
    if target == "cuda" and build.cuda is None:
        raise VersionError(
            f"Here is {build}, and the target is cuda. Name no folder or index with wheels for the "
            "CPU (PIP_FIND_LINKS, PIP_EXTRA_INDEX_URL), then: make clean, and make TARGET=cuda "
            "again."
        )
    try:
        load()
    except (ImportError, OSError) as error:
        missing = missing_library(error) or ""
        if missing.startswith(DRIVER) and target != "cpu":
            raise NoDriverError(
                f"Here is {build}, which loads where NVIDIA's driver is, and this machine lacks "
                f"the driver's {missing}. Where nvidia-smi runs, recd doctor says whether it loads."
                + ("" if target else f"\n{_for_cpu(build)}")
            ) from error
        fix = (
            "Install its lock with nothing left out: make clean, then make TARGET=cuda."
            if target == "cuda"
            else f"{_for_cpu(build)} To train on CUDA: make TARGET=cuda."
        )
        raise VersionError(
            f"Here is {build}, and it does not load: {not_loaded(error)}\n{fix}"
        ) from error


def missing_library(error: BaseException | None) -> str | None:
    """The library whose absence made an import fail, by the error or its causes; None if that is
    not why."""
    while error is not None:
        if found := MISSING.search(str(error)):
            return found[1]
        error = error.__cause__
    return None


def not_loaded(error: BaseException) -> str:
    """The message of a failed import, with the name of a missing library."""
    missing = missing_library(error) or ""
    what = str(error)
    return what if missing in what else ": ".join(filter(None, [what, f"there is no {missing}"]))


def _for_cpu(build: Build) -> str:
    """What to do to train on the CPU."""
    where = "{}.{}".format(*sys.version_info)
    release = build.version.partition("+")[0]
    return (
        f"The CPU needs torch {release}+cpu, which is on {INDEX}. If that is out of reach, "
        f"download the wheel for Python {where} elsewhere, and: make clean, then "
        "PIP_FIND_LINKS=its-folder make. Or name a Python whose wheel is at hand: make "
        "PYTHON=python3.11."
    )


def main(target: str) -> None:
    try:
        check_versions(installed_versions())
        check_build(installed_build(), target)
    except NoDriverError as error:
        print(error)
        sys.exit(NO_DRIVER)
    except VersionError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(sys.argv[1])

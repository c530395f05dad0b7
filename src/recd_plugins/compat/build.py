"""Does the torch that lies here load, and is it the build for this target?

    python -m recd_plugins.compat.build cpu

`make` asks that of what it has installed. Where PyTorch's own index is out of reach, pip takes
PyPI's torch, which is the build for CUDA, whose libraries the CPU's lock leaves out: its versions
are right, and it does not load.

fbgemm's build for CUDA asks for a library of NVIDIA's driver, which a machine that installs for
others may lack: the node where users log in, or one that builds an image. All is installed there,
and `make` goes on by the exit code `NO_DRIVER`.
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
"""What the system's loader says of a library that is not there."""
DRIVER = ("libcuda.so", "libnvidia-ml.so")
"""How the names of libraries begin that come with NVIDIA's driver."""
NO_DRIVER = 3
"""The exit code where the driver alone is missing."""


class NoDriverError(VersionError):
    """The build for CUDA is here, and NVIDIA's driver is not."""


class Build(NamedTuple):
    """The build of torch, as its files say, which may be read where it does not load."""

    version: str
    cuda: str | None
    """The CUDA that it is built for."""

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
    """Import torch, have an operator of fbgemm's, and import TorchRec, which takes whatever is left
    of them."""
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
    """`VersionError` with what to do, unless it loads and `target` (cpu or cuda) is its own."""
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
    """The library for want of which an import failed, by an error or by what caused it."""
    while error is not None:
        if found := MISSING.search(str(error)):
            return found[1]
        error = error.__cause__
    return None


def not_loaded(error: BaseException) -> str:
    """The message of a failed import, which names the library that is missing."""
    missing = missing_library(error) or ""
    return str(error) if missing in str(error) else f"{error}: there is no {missing}"


def _for_cpu(build: Build) -> str:
    """What to do to train on the CPU."""
    where = "{}.{}".format(*sys.version_info)
    release = build.version.partition("+")[0]
    return (
        f"On the CPU it takes torch {release}+cpu, which lies on {INDEX}. Where that is "
        f"out of reach, download the wheel for Python {where} elsewhere, and: make clean, then "
        "PIP_FIND_LINKS=its-folder make. Or name a Python whose wheel is at hand: "
        "make PYTHON=python3.11."
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

"""The versions of torch, fbgemm and torchrec that fit each other, found without importing them.

fbgemm's minor version is torch's minus 5, and torchrec's equals fbgemm's. Other combinations fail
to load, or load and compute wrongly.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from recd_plugins.errors import VersionError

__all__ = ["check_age", "check_versions", "fbgemm_minor", "installed_versions"]

FBGEMM = ("fbgemm-gpu", "fbgemm-gpu-cpu")
OFFSET = 5
OLDEST = (1, 5)
"""The oldest TorchRec that our code knows (docs/install.md)."""


def installed_versions() -> dict[str, str]:
    """The version of each of these distributions that is installed, by name."""
    return dict(_found_in(tuple(sys.path)))


@cache
def _found_in(_: tuple[str, ...]) -> dict[str, str]:
    """Looked for in `sys.path` once as long as that stays: a run asks ten times, and for a name
    that is not installed all its folders are listed."""
    found = {}
    for name in ("torch", *FBGEMM, "torchrec"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def fbgemm_minor() -> int:
    """The minor version of fbgemm; 0 where it is installed under another name."""
    found = installed_versions()
    return next((_minor(found[name]) for name in FBGEMM if name in found), 0)


def check_versions(found: Mapping[str, str]) -> None:
    """Raises `VersionError`, naming the right versions, unless `found` fit together."""
    torch = found.get("torch")
    if torch is None:
        raise VersionError(f"torch is not installed. {_install('cpu')}")
    minor = _minor(torch) - OFFSET
    have = next((name for name in FBGEMM if name in found), FBGEMM[1])
    fbgemm = have
    if "+cpu" in torch and "+cpu" not in found.get(have, ""):
        # A CPU torch cannot load a CUDA fbgemm; nightly CPU builds have the CUDA one's name.
        fbgemm = FBGEMM[1]
    kind = "cpu" if fbgemm == FBGEMM[1] else "cuda"
    if all(name in found for name in FBGEMM):
        raise VersionError(
            f"{' and '.join(FBGEMM)} are both installed, and overwrite each other's files. "
            f"Uninstall both, then: {_install(kind)}"
        )
    wrong = [
        f"{name} {found[name]}" if name in found else f"no {name}"
        for name in (fbgemm, "torchrec")
        if name not in found or _minor(found[name]) != minor
    ]
    if wrong:
        raise VersionError(
            f"torch {torch} needs {fbgemm} 1.{minor} and torchrec 1.{minor}, but here is "
            f"{' and '.join(wrong)}. {_install(kind)}"
        )
    check_age(found)


def check_age(found: Mapping[str, str]) -> None:
    """Raises `VersionError` if TorchRec is too old; one under another name is not checked."""
    torchrec = found.get("torchrec")
    if torchrec is not None and tuple(map(int, torchrec.split(".")[:2])) < OLDEST:
        major, minor = OLDEST
        raise VersionError(
            f"torchrec {torchrec} is too old: recd-plugins needs {major}.{minor}, which belongs "
            f"to torch 2.{minor + OFFSET} and fbgemm {major}.{minor}, or newer ones. "
            f"{_install('cpu')}"
        )


def _minor(version: str) -> int:
    return int(version.split(".")[1])


def _install(kind: str) -> str:
    return f"Install the lock as it is: pip install --no-deps -r requirements/{kind}.txt"

"""Write the locks anew, each file with its hashes: `python requirements/refresh.py [cpu] [cuda]`.

The versions of a lock stay unless what asks for them changes: after a line in base.in or an extra
in EXTRAS, pip's resolver adds what is new. `--upgrade` takes the newest of all. pip's resolver is
asked once, here, in a dry run; whoever installs uses `--no-deps`, because torchrec names the CUDA
fbgemm even where the CPU one is right. To move the trio, change TRIO (fbgemm's minor is torch's
minus 5, torchrec's equals fbgemm's), run this with `--upgrade`, run the tests. `mutants` and `docs`
keep their versions, which are written by hand: what the other locks have is not in them, and of
cosmic-ray its own runner, and what that needs, is not used.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import tomllib
import urllib.request
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
TRIO = {
    "cpu": ("torch==2.13.0", "fbgemm-gpu-cpu==1.8.0", "torchrec==1.8.0"),
    # `===` takes the registry's CUDA build, never a local +cpu one.
    "cuda": ("torch===2.13.0", "fbgemm-gpu==1.8.0", "torchrec==1.8.0"),
}
EXTRAS = ("delta", "iceberg", "kafka", "ray")
"""Extras of pyproject.toml that the tests run with, and that the locks have."""

BY_HAND = ("mutants", "docs")
"""Locks of what the tests do without."""

PYTHONS = {f"cp3{minor}" for minor in range(11, 15)}
HEADER = (
    "# Written by requirements/refresh.py {target}; install with: pip install --no-deps -r",
    "# pip takes no file whose hash is not here: of PyPI's, those that CPython >= 3.11 on Linux "
    "may take.",
)


def resolve(target: str, constraints: dict[str, str]) -> dict[str, tuple[str, set[str]]]:
    """Name to version, and to the hash of the file that pip found, of all that it would install."""
    torch, fbgemm, torchrec = TRIO[target]
    extras = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    wanted = [torch, fbgemm, *(name for extra in EXTRAS for name in extras[extra])]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(f"{name}=={version}" for name, version in constraints.items()))
        file.flush()
        found = _report([*wanted, "-r", str(HERE / "base.in"), "-c", file.name])
    found |= _report(["--no-deps", torchrec])
    return dict(sorted(found.items()))


def _report(arguments: list[str]) -> dict[str, tuple[str, set[str]]]:
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed"]
    command += ["--quiet", "--report", "-", *arguments]
    report = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return {
        normal(item["metadata"]["name"]): (
            item["metadata"]["version"].split("+")[0],
            {item["download_info"]["archive_info"]["hashes"]["sha256"]},
        )
        for item in report["install"]
    }


def hashes_of_pypi(name: str, version: str) -> set[str]:
    """The hashes of the files of a version, those that we might install."""
    request = urllib.request.Request(
        f"https://pypi.org/simple/{normal(name)}/",
        headers={"Accept": "application/vnd.pypi.simple.v1+json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        files: list[dict[str, Any]] = json.load(answer)["files"]
    return {
        file["hashes"]["sha256"]
        for file in files
        if _is_of(file["filename"], version) and not file.get("yanked")
    }


def _is_of(filename: str, version: str) -> bool:
    if not filename.endswith(".whl"):
        return filename.removesuffix(".tar.gz").rpartition("-")[2] == version
    _, found, *_, pythons, abi, platforms = filename.removesuffix(".whl").split("-")
    return (
        found == version
        and (abi == "abi3" or not {"py3", *PYTHONS}.isdisjoint(pythons.split(".")))
        and any(name == "any" or "linux" in name for name in platforms.split("."))
        and "musllinux" not in platforms
        and not abi.endswith("t")
    )


def normal(name: str) -> str:
    """As registries write it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(lock: Path) -> dict[str, str]:
    """Name to version, of a lock."""
    found = re.findall(r"^([\w.-]+?)===?([^\s\\]+)", lock.read_text(), re.MULTILINE)
    return {normal(name): version for name, version in found}


def write(target: str, found: dict[str, tuple[str, set[str]]]) -> None:
    lines = [line.format(target=target) for line in HEADER]
    for name, (version, hashes) in found.items():
        equal = "===" if f"{name}==={version}" in TRIO.get(target, ()) else "=="
        known = sorted(hashes | hashes_of_pypi(name, version))
        lines.append(
            " \\\n    ".join([f"{name}{equal}{version}", *(f"--hash=sha256:{h}" for h in known)])
        )
    (HERE / f"{target}.txt").write_text("\n".join(lines) + "\n")
    print(f"{target}.txt: {len(found)} packages")


def refresh(target: str, *, upgrade: bool) -> None:
    locked = pins(HERE / f"{target}.txt")
    if target in BY_HAND:
        write(target, {name: (version, set()) for name, version in locked.items()})
        return
    ours = {normal(re.split("=", pin)[0]) for pin in TRIO[target]}
    kept = {name: version for name, version in locked.items() if name not in ours}
    write(target, resolve(target, {} if upgrade else kept))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    names = ", ".join((*TRIO, *BY_HAND))
    parser.add_argument("targets", nargs="*", metavar="target", help=f"of {names}")
    parser.add_argument("--upgrade", action="store_true", help="the newest of all")
    asked = parser.parse_args()
    for target in asked.targets or [*TRIO, *BY_HAND]:
        refresh(target, upgrade=asked.upgrade)

"""Ladder: an example run. my_plugin, built and installed as a stranger's, trains.

The environment is fresh: it has the wheels of recd-plugins and my_plugin, and sees the heavy
packages (torch, torchrec, ...) of the running one through a .pth file.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "my_plugin"
COMPILED = (".pyc", ".nbi", ".nbc")
# An environment need not have pip: the interpreter that it was made from has.
PIP = (f"{sys.base_prefix}/bin/python3.{sys.version_info.minor}", "-m", "pip", "--python")


def run(*command: str | Path, folder: Path) -> str:
    """What the command prints; it must succeed."""
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def pip(python: Path, *arguments: str | Path, folder: Path) -> None:
    run(*PIP, python, "--disable-pip-version-check", *arguments, folder=folder)


def build(projects: Sequence[Path], folder: Path) -> list[Path]:
    """The wheels of projects, by the backend that is installed here."""
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", folder)
    pip(Path(sys.executable), "wheel", *options, *projects, folder=folder)
    return sorted(folder.glob("*.whl"))


def take_compiled(installed: Path) -> None:
    """Have what Python and numba have compiled of the sources here, if they have, where the same
    sources are installed: to compile it anew takes ten seconds and more."""
    for package in (ROOT / "src/recd_plugins", *(ROOT / "plugins").iterdir()):
        for compiled in package.rglob("__pycache__/*"):
            source = compiled.parents[1] / f"{compiled.name.partition('.')[0]}.py"
            copy = installed / source.relative_to(package.parent)
            if compiled.suffix not in COMPILED or not (source.exists() and copy.exists()):
                continue  # or compiled of a module that has another name by now
            cache = copy.parent / "__pycache__"
            cache.mkdir(exist_ok=True)
            shutil.copy(compiled, cache)
            shutil.copystat(source, copy)  # by which both know what they have compiled


@pytest.fixture(scope="module")
def binaries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of `python` and `recd` of the fresh environment."""
    folder = tmp_path_factory.mktemp("fresh")
    wheels = build([ROOT, EXAMPLE], folder)
    assert len(wheels) == 2
    run(sys.executable, "-m", "venv", "--without-pip", "fresh", folder=folder)
    fresh = folder / "fresh"
    scheme = {"base": str(fresh), "platbase": str(fresh)}
    site_packages = Path(sysconfig.get_path("purelib", "venv", scheme))
    # Last on sys.path, and its own .pth files (an editable recd-plugins) are not read.
    (site_packages / "heavy.pth").write_text(sysconfig.get_path("purelib"))
    options = ("--quiet", "--no-compile", "--no-deps")
    pip(fresh / "bin/python", "install", *options, *wheels, folder=folder)
    take_compiled(site_packages)
    return fresh / "bin"


def test_both_packages_come_from_their_wheels(binaries: Path, tmp_path: Path) -> None:
    modules = ("recd_plugins", "recd_dlrm", "my_plugin")
    # Where imports find them: the other tests here import them, which takes seconds.
    say = f"from importlib.util import find_spec; [print(find_spec(m).origin) for m in {modules}]"
    files = run(binaries / "python", "-c", say, folder=tmp_path).splitlines()
    assert len(files) == len(modules)
    assert all(Path(file).is_relative_to(binaries.parent) for file in files)


def test_it_trains(binaries: Path, tmp_path: Path) -> None:
    """Well below the NE of a constant guess: its pooling finds out what a user likes now."""
    registry = EXAMPLE / "registry.yaml"
    printed = run(binaries / "recd", "train", "--registry", registry, "--json", folder=tmp_path)
    summary = json.loads(printed)
    assert summary["finished"]
    assert summary["world_size"] == 2
    assert summary["test"]["ne"] < 0.5


LISTED = "--- and what `recd plugins` lists:"
TESTS = f"""
import os
import sys
import pytest
import recd_plugins.testing.preload
from recd_plugins.__main__ import main
from recd_plugins.compat.copied_server import copy_as_fork_server
registry, *options = sys.argv[1:]
if child := os.fork():  # which has one thread, so that it can be copied
    if code := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        sys.exit(code)
    print({LISTED!r})
    sys.argv = ["recd", "plugins", "--registry", registry, "--json"]
    sys.exit(main())
copy_as_fork_server()
sys.exit(pytest.main(options))
"""
"""pytest, whose ranks are forked from what has imported already all that they need; then `recd`,
which needs that too."""


def test_its_own_tests_pass_with_the_kit_as_installed_which_lists_its_records(
    binaries: Path, tmp_path: Path
) -> None:
    options = ("-q", "-p", "no:cacheprovider", EXAMPLE)
    registry = EXAMPLE / "registry.yaml"
    printed = run(binaries / "python", "-c", TESTS, registry, *options, folder=tmp_path)
    tested, _, listed = printed.partition(LISTED)
    assert "4 passed" in tested
    mine = {row["name"] for row in json.loads(listed) if row["provider"] == "my-recd-plugin 0.1.0"}
    assert mine == {"decay", "tastes"}

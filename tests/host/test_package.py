"""Rung 4 (a run): the wheel and the sdist that hatchling builds have what their users need."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import recd_plugins

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_wheel_and_sdist_have_what_is_used(tmp_path: Path) -> None:
    """`make package` installs both and tries them."""
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=300)
    version = recd_plugins.__version__
    with zipfile.ZipFile(tmp_path / f"recd_plugins-{version}-py3-none-any.whl") as wheel:
        names = set(wheel.namelist())
        (points,) = (name for name in names if name.endswith("entry_points.txt"))
        commands = wheel.read(points).decode()
    sources = {
        str(path.relative_to(top))
        for top in (ROOT / "src", ROOT / "plugins")
        for path in top.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert sources <= names
    assert {f"recd_plugins/cli/pages/{page}.md" for page in ("glossary", "metrics")} <= names
    described = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for points in (described["scripts"], *described["entry-points"].values()):
        for name, value in points.items():
            assert f"{name} = {value}" in commands
    with tarfile.open(tmp_path / f"recd_plugins-{version}.tar.gz") as sdist:
        there = {Path(*Path(name).parts[1:]).as_posix() for name in sdist.getnames()}
    wanted = {"requirements/cpu.txt", "docs/glossary.md", "tests/conftest.py", "Makefile"}
    assert wanted | {"examples/notebooks/plug_in_your_own.ipynb", "CHANGELOG.md"} <= there

"""Which of the Pythons on the path `make` takes, by requirements/python.sh itself: scripts of that
name stand in for Pythons that are slow, or without pip."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

CHOOSES = Path(__file__).parents[2] / "requirements" / "python.sh"
THIS = shlex.quote(sys._base_executable)  # the environment's own has no pip
FAST = f'exec {THIS} "$@"'
SLOW = f"""exec {THIS} -c 'import sys
sys.setprofile(lambda *_: None)
exec(sys.argv[1])' "$2\""""
WITHOUT_PIP = "exit 1"


def chosen(folders: Sequence[Path]) -> str:
    path = os.pathsep.join([*map(str, folders), "/nowhere"])
    ended = subprocess.run(
        ["/bin/sh", CHOOSES], env={"PATH": path}, capture_output=True, text=True, check=True
    )
    assert not ended.stderr
    return ended.stdout


def a_python(folder: Path, script: str, minor: int) -> Path:
    folder.mkdir()
    program = folder / f"python3.{minor}"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return folder


@pytest.mark.parametrize(
    ("pythons", "which"),
    [
        pytest.param([(SLOW, 11), (FAST, 11)], 1, id="the faster of one version"),
        pytest.param([(FAST, 11), (SLOW, 11)], 0, id="and not by its place"),
        pytest.param([(FAST, 12), (SLOW, 11)], 1, id="the version that the tests run on"),
        pytest.param([(FAST, 12), (FAST, 13)], 1, id="the newest of the others"),
        pytest.param([(WITHOUT_PIP, 11), (SLOW, 11)], 1, id="none without pip"),
    ],
)
def test_the_first_version_and_its_fastest_python(
    tmp_path: Path, pythons: Sequence[tuple[str, int]], which: int
) -> None:
    folders = [a_python(tmp_path / str(at), *one) for at, one in enumerate(pythons)]
    program = folders[which] / f"python3.{pythons[which][1]}"
    assert chosen(folders) == f"{program}\n"


def test_none_where_none_fits(tmp_path: Path) -> None:
    assert chosen([a_python(tmp_path / "bare", WITHOUT_PIP, 11)]) == ""

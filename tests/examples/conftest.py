"""What tests of the scripts share: how to run one."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def run_example(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """`run_example("scars.py", "12")`: what the script prints, run as the main program in an
    empty folder.

    This process stands for a user's, for it has imported already what takes the script seconds.
    The script's ranks are processes of their own.
    """

    def run(name: str, *arguments: str) -> str:
        script = str(EXAMPLES / name)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", [script, *arguments])
        runpy.run_path(script, run_name="__main__")
        return capsys.readouterr().out

    return run

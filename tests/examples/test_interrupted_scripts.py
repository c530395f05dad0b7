"""Values, then example runs: scripts that Ctrl-C ends, sent to all of their processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from recd_plugins.api.testing import scratch_folder

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_folder_goes_with_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    folder = ""

    def interrupted() -> None:
        nonlocal folder
        with scratch_folder() as folder:
            Path(folder, "file").touch()
            raise KeyboardInterrupt

    with pytest.raises(SystemExit) as ended:
        interrupted()
    assert ended.value.code == 130
    assert capsys.readouterr().err == "\ninterrupted\n"
    assert not Path(folder).exists()


def test_another_error_stays_what_it_is() -> None:
    with pytest.raises(ValueError, match="mine"), scratch_folder() as folder:
        raise ValueError("mine")
    assert not Path(folder).exists()


@pytest.mark.parametrize("script", sorted(one.name for one in EXAMPLES.glob("*.py")))
def test_no_script_has_a_folder_of_another_kind(script: str) -> None:
    assert "tempfile" not in (EXAMPLES / script).read_text()


def as_a_terminal_has_it() -> None:
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "samples", "line"),
    [("all_together.py", [], "row-wise"), ("growing_log.py", ["6000"], "period 0")],
)
def test_a_script_ends_without_a_traceback(
    script: str, samples: list[str], line: str, tmp_path: Path
) -> None:
    """Its ranks, or a thread of it, are at work: it cannot be done before the signal comes."""
    with subprocess.Popen(
        [sys.executable, str(EXAMPLES / script), *samples],
        env=os.environ | {"PYTHONUNBUFFERED": "1", "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=as_a_terminal_has_it,  # no thread has started
    ) as program:
        assert program.stdout is not None
        for printed in program.stdout:
            if printed.startswith(line):
                os.killpg(program.pid, signal.SIGINT)
                break
        rest = program.stdout.read()
        assert program.wait(300) == 130
    assert "Traceback" not in rest
    assert rest.endswith("\ninterrupted\n")
    assert not [one for one in tmp_path.iterdir() if one.name.startswith("tmp")]

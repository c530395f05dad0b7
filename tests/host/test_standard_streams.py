"""Real processes: a command prints to what a stranger's shell, and locale, have for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

OPEN = (
    "import os, sys; from recd_plugins.cli.standard_streams import open_streams; open_streams(); "
)


def test_what_is_printed_where_streams_are_closed_is_in_no_file(tmp_path: Path) -> None:
    """The next file that is opened would else have their numbers."""
    file = tmp_path / "table"
    code = (
        f"{OPEN}file = open({str(file)!r}, 'w'); print('one', flush=True); "
        "print('two', file=sys.stderr, flush=True); os.write(1, b'three'); os.write(2, b'four'); "
        "assert not sys.stdin.read() and sys.__stdout__ is sys.stdout; file.write('row')"
    )
    program = ["sh", "-c", '"$@" <&- >&- 2>&-', "", sys.executable, "-c", code]
    assert subprocess.run(program, check=False).returncode == 0
    assert file.read_text() == "row"


def test_letters_that_the_output_has_no_code_for_are_escapes() -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"{OPEN}print('größe')"],
        capture_output=True,
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
        check=False,
    )
    assert done.stdout == rb"gr\xf6\xdfe" + b"\n", done.stderr

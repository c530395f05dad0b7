"""Programs and a command that SIGTERM, SIGHUP or Ctrl-C ends: how they end, and what they leave."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from forked import Forked

from recd_plugins.api.data import Schema, SparseFeature
from recd_plugins.api.testing import random_table

ENDS = (signal.SIGTERM, signal.SIGHUP)
DEADLINE = 300.0

PROGRAM = """
import os, signal, sys, tempfile, time
from recd_plugins.cli.ended_by_signals import ended_by_signals

with ended_by_signals(), tempfile.TemporaryDirectory(dir=sys.argv[1]):
    if sys.argv[2:] == ["forks"]:
        ours, theirs = os.pipe()
        if child := os.fork():
            os.read(ours, 1)  # what comes while it is forked, Python forgets
            os.kill(child, signal.SIGTERM)
            sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) + 100)
        os.write(theirs, b".")
    print("what is not flushed yet")
    os.write(1, b"there\\n")
    time.sleep(600)
print("here")
"""

MEASURE = '''"""A measure that keeps a temporary folder for a while."""

import tempfile
import time
from pathlib import Path

from recd_plugins.api import Config, StatsRecord, hookimpl


class Slow:
    def measure(self, table, progress):
        with tempfile.TemporaryDirectory():
            Path("there").touch()
            time.sleep(600)


@hookimpl
def recd_stats():
    build = lambda config, context: Slow()  # noqa: E731
    return [StatsRecord(name="slow", summary="It takes its time.", config=Config, build=build)]
'''

COMMAND = """
import signal
from recd_plugins.__main__ import main

# As a terminal has it; what runs in a shell's background ignores Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
main()
"""


def started(*arguments: str, ignored: bool = False, **options: str) -> subprocess.Popen[str]:
    """A program that has come to where it prints `there`, on either stream."""

    def as_a_terminal_has_it() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)

    program = subprocess.Popen(
        [sys.executable, *arguments],
        env=os.environ | {"PYTHONUNBUFFERED": ""} | options,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=as_a_terminal_has_it,  # no thread has started
    )
    assert program.stdout is not None
    for line in program.stdout:
        if line == "there\n":
            return program
    raise AssertionError(f"ended with {program.wait()}")


def ended(program: subprocess.Popen[str]) -> tuple[int, str]:
    out, _ = program.communicate(timeout=DEADLINE)
    return program.returncode, out


@pytest.mark.parametrize("number", ENDS)
def test_temporary_folders_go_and_what_was_printed_is_there(
    number: signal.Signals, tmp_path: Path
) -> None:
    program = started("-c", PROGRAM, str(tmp_path))
    assert [*tmp_path.iterdir()]
    program.send_signal(number)
    code, out = ended(program)
    assert code == -number
    assert out == "what is not flushed yet\n"
    assert not [*tmp_path.iterdir()]


def test_what_nohup_ignores_stays_ignored(tmp_path: Path) -> None:
    program = started("-c", PROGRAM, str(tmp_path), ignored=True)
    program.send_signal(signal.SIGHUP)
    program.send_signal(signal.SIGTERM)  # behind the other, wherever that counts
    assert ended(program)[0] == -signal.SIGTERM


def test_what_is_forked_ends_at_once_and_removes_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), "forks"]
    assert subprocess.run(command, timeout=DEADLINE).returncode == 100 - signal.SIGTERM


@pytest.mark.parametrize("number", [signal.SIGINT, *ENDS])
def test_a_command_leaves_no_temporary_folder(number: signal.Signals, tmp_path: Path) -> None:
    schema = Schema(sparse=(SparseFeature(name="item", num_ids=8),))
    random_table(tmp_path / "table", schema, 60)
    (tmp_path / "slow.py").write_text(MEASURE)
    registry = tmp_path / "registry.yaml"
    registry.write_text("plugins: [./slow.py]\nstats: [slow]\n")
    (kept := tmp_path / "temporary").mkdir()
    command = ("data", "stats", str(tmp_path / "table"), "--registry", str(registry))
    (tmp_path / "a_command.py").write_text(COMMAND)
    program = Forked("a_command", *command, folder=tmp_path, environment={"TMPDIR": str(kept)})
    ends = time.monotonic() + DEADLINE
    while program.running() and not (tmp_path / "there").exists() and time.monotonic() < ends:
        time.sleep(0.01)
    assert [*kept.iterdir()]
    program.send_signal(number)
    done = program.done(DEADLINE)
    assert done.code == (130 if number is signal.SIGINT else -number)
    assert "Traceback" not in done.out + done.err
    assert not [*kept.iterdir()]

"""Runs a page of the docs: its code blocks are files and commands, in order, in a folder."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from forked import run_module

__all__ = ["Reader", "blocks"]

COMMENT = re.compile(r"# (\S+\.(?:py|yaml|toml))\n")


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    """The language and the text of each code block."""
    yield from re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


@dataclass
class Reader:
    """Someone who does what a page says, in an empty folder."""

    folder: Path
    ran: list[str] = field(default_factory=list)
    """The commands so far."""

    def __post_init__(self) -> None:
        self._bin, self._site = self.folder / ".bin", self.folder / ".site"
        self._bin.mkdir()
        # An environment need not have pip, and this one stays as it is: what is installed goes
        # beside it, built by the backend that is here.
        base = f"{sys.base_prefix}/bin/python3.{sys.version_info.minor}"
        pip = self._bin / "pip"
        command = shlex.join([base, "-m", "pip", "--python", sys.executable])
        pip.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        pip.chmod(0o755)
        self._environment = os.environ | {
            "PATH": f"{self._bin}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": f"{self._site}:{os.environ.get('PYTHONPATH', '')}",
            "PIP_TARGET": str(self._site),
            "PIP_NO_BUILD_ISOLATION": "off",  # which is how pip is told to have none
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "COLUMNS": "160",
        }

    def read(self, page: Path) -> None:
        """Write each file and run each command; what a command is shown to print, it prints."""
        for language, text in blocks(page):
            if language == "console":
                for command, shown in _commands(text):
                    self._run(command, shown)
            elif language not in ("", "sh"):  # what is for a cluster is in `sh`
                self._write(text)

    def _write(self, text: str) -> None:
        """A block begins with a comment that names its file, or is an excerpt of one."""
        named = COMMENT.match(text)
        if named is None:
            sources = [file.read_text() for file in self.folder.rglob("*.py")]
            assert any(text in source for source in sources), f"is in no file: {text}"
            return
        file = self.folder / named[1]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        if file.suffix == ".py":
            compile(text, file, "exec")

    def _run(self, command: str, shown: list[str]) -> None:
        self.ran.append(command)
        first, *arguments = shlex.split(command)
        if first == "cd":
            self.folder = (self.folder / arguments[0]).resolve()
            return
        code, output = self._done(command)
        fails = any(line.startswith("error:") for line in shown)
        assert code == (2 if fails else 0), f"{command}:\n{output}"
        flat = " ".join(output.split())
        for line in shown:
            assert " ".join(line.split()) in flat, f"{command} does not print {line!r}:\n{output}"

    def _done(self, command: str) -> tuple[int, str]:
        """Its exit code, and what it printed; Python's programs are forked."""
        words = shlex.split(command)
        if words[0] == "recd":
            words[:1] = ["python", "-m", "recd_plugins"]
        if words[0] == "python" and words[1:] and words[1].endswith(".py"):
            words[1:2] = ["-m", words[1].removesuffix(".py")]
        if words[:2] == ["python", "-m"]:
            forked = run_module(*words[2:], folder=self.folder, environment=self._environment)
            return forked.code, forked.out + forked.err
        done = subprocess.run(
            ["/bin/sh", "-c", command],
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
        return done.returncode, done.stdout + done.stderr


def _commands(text: str) -> Iterator[tuple[str, list[str]]]:
    """The commands of a console block, each with the lines that it is shown to print."""
    first, *rest = re.split(r"^\$ ", text, flags=re.MULTILINE)
    assert not first.strip(), f"a console block begins with `$ `: {text}"
    for one in rest:
        command, *shown = one.splitlines()
        yield command, [line for line in shown if line.strip()]

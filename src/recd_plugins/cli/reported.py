"""How errors reach a person: as one message each, with an exit code."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from recd_plugins.cli.commands import UNDECODED
from recd_plugins.cli.standard_streams import UTF_8
from recd_plugins.compat.build import missing_library, not_loaded
from recd_plugins.errors import RecdError, cure_of, is_of_memory, shortened, shown
from recd_plugins.hooks.blame import blamed, raised_by_a_line, who_exits

__all__ = ["reported", "reported_trial"]


@contextmanager
def reported(debug: bool) -> Iterator[None]:
    """Print an error that a user can fix as one message, and exit with code 2. So does what a
    plugin ends the process with, which would else be the command's own end: success, or Ctrl-C.
    That the output cannot be written, the command line says as it ends."""
    try:
        os.getcwd()  # torch's libraries would end the process without a word of what is missing
        yield
    except BaseException as error:
        message = _message(error)
        if message is None or (isinstance(error, OSError) and _cannot_print()):
            raise
        if debug:
            traceback.print_exc()
        print(f"error: {shortened(message)}", file=sys.stderr, flush=True)
        raise typer.Exit(2) from None


@contextmanager
def reported_trial() -> Iterator[None]:
    """Print how a trial failed, other than for lack of memory, and exit with its code if a user
    can fix it, else with 1."""
    from recd_plugins.trainer.tuning.trials import TrialFailed

    try:
        yield
    except TrialFailed as error:
        user_error = error.failure.code == 2
        print(error.failure.output if user_error else f"error: {error}", file=sys.stderr)
        raise typer.Exit(2 if user_error else 1) from None


def _message(error: BaseException) -> str | None:
    """The message for the user; None for a defect of ours, which keeps its traceback, and for an
    end that no plugin asks for."""
    if isinstance(error, SystemExit):
        return None if who_exits(error) is None else blamed(error)
    if isinstance(error, KeyboardInterrupt):
        return blamed(error) if raised_by_a_line(error) else None
    if isinstance(error, RecdError):
        return str(error)
    if missing_library(error) is not None:
        return f"{not_loaded(error)}. recd doctor says whether torch loads here, and what to do."
    if isinstance(error, UnicodeEncodeError):
        text = error.object[error.start : error.end]
        if error.encoding != "utf-8":
            return f"{shown(text)} has no place in {error.encoding}. {UTF_8}"
        if UNDECODED.search(text):  # Arrow takes no such path
            return f"{shown(error.object)}: this name is no text of UTF-8. Rename it."
    if isinstance(error, FileNotFoundError) and (message := _missing_folder(error)):
        return message
    cure = cure_of(error)
    if not cure:
        return blamed(error)
    if isinstance(error, OSError):
        where = f"{os.fsdecode(error.filename)}: " if error.filename else ""
        return f"{where}{os.strerror(error.errno or 0)}. {cure}"
    why = str(error).strip().partition("\n")[0]
    if is_of_memory(error):
        return f"there is not enough memory for what was asked{f' ({why})' if why else ''}. {cure}"
    return f"{why.partition('. ')[0]}. {cure}"


def _cannot_print() -> bool:
    """Whether standard output takes no more of what was printed to it."""
    try:
        sys.stdout.flush()
    except OSError:
        return True
    return False


def _missing_folder(error: FileNotFoundError) -> str:
    """The message for an error about a missing folder that every command needs; empty if it is
    about another file."""
    if (error.strerror or "").startswith("No usable temporary directory"):
        return f"{error.strerror}. Let TMPDIR name a folder that can be written to, and has room."
    try:
        os.getcwd()
    except FileNotFoundError:
        return "the folder in which the command was called has been removed. Go to another one."
    return ""

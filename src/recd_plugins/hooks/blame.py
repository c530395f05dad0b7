"""The plugin whose code raised an unexpected error, found from the error's frames.

Most calls of what a record built name the record themselves. A forward, a loader's iteration or an
optimizer's step is called by torch, deep below the host; a neighbour by the record that uses it.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from opcode import opmap
from pathlib import Path
from signal import getsignal, valid_signals
from types import CodeType, ModuleType, TracebackType
from typing import TYPE_CHECKING, NamedTuple

from recd_plugins.compat.packages import DISTRIBUTION
from recd_plugins.errors import without_frames
from recd_plugins.hooks.plugin_files import files_of

if TYPE_CHECKING:
    from recd_plugins.hooks.imported import Provider

__all__ = [
    "Raised",
    "blamed",
    "is_of_a_signal",
    "line_on_import",
    "raised_by",
    "raised_by_a_line",
    "remember",
    "who_exits",
]

HOST = Path(__file__).resolve().parents[1]
IMPORTS = Path(importlib.__file__).resolve().parent
TRAINERS = HOST / "planning" / "access"
"""The host's code that reads a trainer's batches: code that it calls belongs to the trainer."""
EXITS = ("_sitebuiltins", "argparse", "optparse")
"""Python's own modules that end the process where they are asked to: `exit()`, a parser."""


class _Plugin(NamedTuple):
    """A plugin that this process has imported, or the host."""

    name: str
    provider: Provider | None
    """None of those that come with the host: what they raise is a defect of ours."""
    names: frozenset[str]
    """All names that registries have used for it."""
    module: ModuleType | None = None
    """None of those that come with the host."""


_imported: dict[Path, _Plugin] = {HOST: _Plugin("recd_plugins", None, frozenset())}
"""The plugins, by their file or the folder of their package."""


class _Frame(NamedTuple):
    """A frame of the host or of a plugin."""

    plugin: _Plugin
    file: Path
    place: str
    """`MyLog.read (my_log.py:12)`."""


class Raised(NamedTuple):
    """The plugin that raised an error, or called what did."""

    plugin: str
    place: str
    """Where, as `MyLog.read (my_log.py:12)`."""
    names: frozenset[str]
    """All names that registries have used for the plugin."""


def remember(name: str, plugin: object, provider: Provider) -> None:
    """Remember which files belong to a plugin: a module, or an object in one."""
    module = inspect.getmodule(plugin) or inspect.getmodule(type(plugin))
    if module is not None and module.__file__ is not None:
        file = Path(module.__file__).resolve()
        whole = file.parent if file.name == "__init__.py" else file
        before = _imported[whole].names if whole in _imported else frozenset()
        stranger = None if provider.distribution == DISTRIBUTION else provider
        its_module = None if stranger is None else module
        _imported[whole] = _Plugin(name, stranger, before | {name}, its_module)


def blamed(error: BaseException) -> str | None:
    """The message for an error raised by a stranger's plugin, or by code that it called and that
    is neither ours nor a plugin's; None for any other error."""
    frame = next(_raising(error), None)
    if frame is None or frame.plugin.provider is None:
        return None
    what = without_frames(error)
    return (
        f"plugin {frame.plugin.name!r} ({frame.plugin.provider}) raised {type(error).__name__} in "
        f"{frame.place}{f': {what}' if what else ''}. Run recd with --debug for its traceback."
    )


def raised_by(error: BaseException) -> Raised | None:
    """The plugin that has the innermost frame of an error but for the host's; None where no plugin
    has any, or where it came while a trainer's batches were read."""
    for frame in _raising(error):
        if frame.file.is_relative_to(TRAINERS):
            return None
        if not frame.file.is_relative_to(HOST):
            return Raised(frame.plugin.name, frame.place, frame.plugin.names)
    return None


def who_exits(error: SystemExit) -> Raised | None:
    """The plugin that ends the process by a line of its own; None where another's line does, as a
    trainer's answer to a signal that came meanwhile."""
    answers = _answers()
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        after = at.tb_next.tb_frame
        if after.f_code in answers:
            return None
        if after.f_globals.get("__name__") in EXITS:
            break
        at = at.tb_next
    own = next(_frames(at and _alone(at)), None)
    if own is None or own.file.is_relative_to(HOST):
        return None
    return Raised(own.plugin.name, own.place, own.plugin.names)


def raised_by_a_line(error: BaseException) -> bool:
    """Whether a `raise` that somebody wrote raised it; Ctrl-C comes between any two others."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    return at is not None and at.tb_frame.f_code.co_code[at.tb_lasti] == opmap["RAISE_VARARGS"]


def is_of_a_signal(error: BaseException) -> bool:
    """Whether an answer to a signal raised it, Python's own or another one: nobody's line did."""
    if isinstance(error, KeyboardInterrupt) and not raised_by_a_line(error):
        return True
    answers, at = _answers(), error.__traceback__
    while at is not None and at.tb_frame.f_code not in answers:
        at = at.tb_next
    return at is not None


def line_on_import(error: BaseException) -> str:
    """The line of a plugin that raised an error as it was imported, as ` (my_log.py:12)`: one that
    is not known yet. Nothing where no code of it ran, or where the message says it."""
    found: tuple[Path, int] | None = None
    at = None if isinstance(error, SyntaxError) else error.__traceback__
    while at is not None:
        name = at.tb_frame.f_code.co_filename
        file = Path(name).resolve()
        is_own = not name.startswith("<") and not any(map(file.is_relative_to, (HOST, IMPORTS)))
        if is_own and (found is None or file.is_relative_to(found[0].parent)):
            found = file, at.tb_lineno
        at = at.tb_next
    return "" if found is None else f" ({_short(found[0])}:{found[1]})"


def _answers() -> set[CodeType | None]:
    """The code that answers signals."""
    return {getattr(getsignal(one), "__code__", None) for one in valid_signals()}


def _raising(error: BaseException) -> Iterator[_Frame]:
    """The frames of the host and of plugins in which an error was raised, the innermost first.

    A StopIteration that leaves a generator becomes an error of whoever asked that for its next one:
    the generator's own frames are those of what it left by.
    """
    ended = error.__cause__
    if isinstance(error, RuntimeError) and isinstance(ended, StopIteration | StopAsyncIteration):
        yield from _frames(ended.__traceback__)
    yield from _frames(error.__traceback__)


def _alone(at: TracebackType) -> TracebackType:
    """One frame of a traceback, without the frames that it called."""
    return TracebackType(None, at.tb_frame, at.tb_lasti, at.tb_lineno)


def _short(file: Path) -> str:
    """A file as messages have it: of a package's first file its folder too."""
    is_package = file.name == "__init__.py"
    return f"{file.parent.name}/{file.name}" if is_package else file.name


def _frames(at: TracebackType | None) -> Iterator[_Frame]:
    """The frames of the host and of plugins, the innermost first."""
    every, beside = list[_Frame](), _files_beside()
    while at is not None:
        code = at.tb_frame.f_code
        file = Path(code.co_filename).resolve()
        whole = [_imported[path] for path in (file, *file.parents) if path in _imported]
        if found := whole[:1] or beside.get(file, []):
            callers = (one.plugin for one in reversed(every) if one.plugin in found)
            place = f"{code.co_qualname} ({_short(file)}:{at.tb_lineno})"
            every.append(_Frame(next(callers, found[0]), file, place))
        at = at.tb_next
    yield from reversed(every)


def _files_beside() -> dict[Path, list[_Plugin]]:
    """The files of plugins that are more than one file, with the plugins that import each."""
    beside: dict[Path, list[_Plugin]] = {}
    for plugin in _imported.values():
        if plugin.module is not None and (found := files_of(plugin.module)) is not None:
            for file in found.files:
                beside.setdefault(file.resolve(), []).append(plugin)
    return beside

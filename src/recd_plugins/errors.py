"""The errors that the host raises at its users.

Every message says what is wrong, who is concerned and how to fix it. The command
line prints these without a traceback and exits with code 2; anything else that
escapes is a defect of ours and keeps its traceback.
"""

from __future__ import annotations

import errno
import re
import reprlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any

__all__ = [
    "CapabilityError",
    "DataError",
    "FailedOnRank0",
    "PluginError",
    "RecdError",
    "RegistryError",
    "VersionError",
    "called",
    "check_made",
    "cure_of",
    "is_of_memory",
    "is_of_the_system",
    "listed",
    "naming",
    "nearest",
    "on_one_line",
    "shortened",
    "shown",
    "so_many",
    "who_raised",
    "with_type",
    "without_frames",
]


class RecdError(Exception):
    """Base of every error that is a user's to fix.

    What a user wrote may be anything, so a message shows no word whole that is longer than
    `MOST_SHOWN`: wherever it is read, not in `recd` alone.
    """

    def __str__(self) -> str:
        return shortened(super().__str__())


class RegistryError(RecdError, ValueError):
    """registry.yaml, an override or an option is not what it should be.

    `where` is the path of the value in question (`train.batch_size`), kept apart so that
    the registry can put a file and a line in front of it.
    """

    def __init__(self, message: str, where: str = "") -> None:
        super().__init__(f"{where}: {message}" if where else message)
        self.message = message
        self.where = where


class PluginError(RecdError):
    """A plugin cannot be found, imported, believed or built."""


class CapabilityError(RecdError):
    """A record needs a device, a package or a neighbour that is not there."""

    def __init__(self, message: str, also: str = "") -> None:
        """`also` is one more way to fix it, which stands behind the `message`: who knows that it
        does not help says the message alone."""
        super().__init__(f"{message} {also}" if also else message)
        self.message = message
        self.also = also


class VersionError(RecdError):
    """torch, fbgemm and torchrec do not belong together."""


class DataError(RecdError, ValueError):
    """A table, file or batch breaks its schema."""


class FailedOnRank0(RecdError):
    """Code that is not ours failed on rank 0, which alone has its traceback: what the other ranks
    raise."""

    def __init__(self, message: str, kind: str = "", what: str = "") -> None:
        """`kind` is the type of rank 0's error, `what` its message."""
        super().__init__(message)
        self.kind = kind
        self.what = what


REFUSED = frozenset(
    {
        errno.EACCES,
        errno.EPERM,
        errno.EROFS,
        errno.ENOSPC,
        errno.EDQUOT,
        errno.ENOTDIR,
        errno.EISDIR,
        errno.EEXIST,
        errno.ENAMETOOLONG,
        errno.ELOOP,
        errno.ENXIO,
        errno.ENODEV,
        errno.EBUSY,
        errno.EIO,
    }
)
"""The answers of a system to a path that a user named and that cannot be read or written."""
OUT_OF_MEMORY = re.compile("can't allocate memory|out of memory")
"""The words of torch's RuntimeErrors for it."""
ANOTHER_PATH = "Name another path, or check its permissions and the free space on its disk."
LARGER_FILES = (
    "Have the system let a process write larger files (`ulimit -f unlimited`, or what limits a "
    "container or a job here), or name a path on a disk that takes them."
)
MORE_FILES = (
    "Have the system let a process open more files (`ulimit -n 4096`, or what limits a container "
    "or a job here), or take fewer ranks and workers."
)
MORE_PROCESSES = (
    "Have the system let this user run more processes and threads (`ulimit -u`, or `ulimit -v`, "
    "since each thread takes memory, or what limits a container or a job here), or take fewer "
    "ranks, threads and workers."
)
MORE_MEMORY = (
    "Ask for fewer or smaller rows, tables or batches, or see what else takes memory here."
)
CURES = {
    **dict.fromkeys(REFUSED, ANOTHER_PATH),
    errno.EFBIG: LARGER_FILES,
    errno.EMFILE: MORE_FILES,
    errno.ENFILE: MORE_FILES,
    errno.EAGAIN: MORE_PROCESSES,
    errno.ENOMEM: MORE_MEMORY,
}
"""What to do about the answers of a system for which nobody's code is to blame."""
CURES_BY_WORDS = {
    "can't start new thread": MORE_PROCESSES,
    "Failed to launch worker thread": MORE_PROCESSES,
    "Too many open files": MORE_FILES,
    "Failed to init uv loop": MORE_FILES,
    "Symlink loop from": ANOTHER_PATH,
}
"""The same for such as have words alone: Python's and Arrow's of threads, torch's of its
workers and of the store at which ranks meet, and of Python before 3.13 what `Path.resolve` says."""


def cure_of(error: BaseException) -> str:
    """What to do about an error which says that the system refuses a path, or has not as much of
    something as was asked; nothing for any other error."""
    if isinstance(error, OSError):
        return CURES.get(error.errno or 0, "")
    if is_of_memory(error):
        return MORE_MEMORY
    return next((cure for words, cure in CURES_BY_WORDS.items() if words in str(error)), "")


def is_of_memory(error: BaseException) -> bool:
    """Whether there was not enough memory."""
    return isinstance(error, MemoryError) or OUT_OF_MEMORY.search(str(error)) is not None


def is_of_the_system(error: BaseException) -> bool:
    """Whether an error is of the system: nobody's code is to blame for it, whoever met it."""
    return bool(cure_of(error))


@contextmanager
def naming(who: str, when: str, *, also_data: bool = False) -> Iterator[None]:
    """Inside, an error that is neither the project's nor the system's becomes one that names `who`
    raised it, and `when`; so does what the other ranks learn of such a one. With `also_data` so
    does a `DataError`: it is about what `who` makes of a batch, which no file of a user's has."""
    try:
        yield
    except FailedOnRank0 as error:
        raise PluginError(who_raised(who, error.kind, when, error.what)) from error
    except RecdError as error:
        if also_data and type(error) is DataError:
            raise PluginError(f"{who} failed {when}: {error}") from error
        raise
    except Exception as error:
        if is_of_the_system(error):
            raise
        kind, what = type(error).__name__, without_frames(error)
        raise PluginError(who_raised(who, kind, when, what)) from error


def without_frames(error: BaseException) -> str:
    """The message of an error, without the frames that C++ lists behind it."""
    return str(error).partition("\nException raised from ")[0].strip()


def who_raised(who: str, kind: str, when: str, what: str) -> str:
    """The message of an error that somebody raised who is known."""
    why = f": {what.rstrip('.')}" if what else ""
    return f"{who} raised {kind} {when}{why}. Run recd with --debug for its traceback."


def check_made(made: Any, kind: type[Any], whose: str, fix: str) -> None:
    """`PluginError` where something that a plugin made is none of a type; `whose` opens the
    message, and `fix` ends it."""
    if not isinstance(made, kind):
        raise PluginError(f"{whose} {called(made)}, whose type must be {kind.__name__}. {fix}")


def called(made: object) -> str:
    """What somebody made, as a message has it.

    >>> called(None), called(3), called([]), called(dict)
    ('None', 'the int 3', 'a list', 'the class dict itself')
    """
    if made is None:
        return "None"
    if isinstance(made, type):
        return f"the class {made.__name__} itself"
    kind = type(made).__name__
    return f"the {kind} {shown(made)}" if isinstance(made, str | int | float) else f"a {kind}"


def nearest(name: str, known: Iterable[str]) -> str:
    """The tail of an "unknown name" message: the nearest right name, then all of them.

    >>> nearest("exat", ["none", "exact", "none"])
    "did you mean 'exact'? Known: exact, none."
    """
    names = sorted(set(known))
    if not names:
        return "there are none to choose from."
    close = get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}Known: {', '.join(map(on_one_line, names))}."


def listed(names: Iterable[object], most: int = 4, *, kind: str = "") -> str:
    """The first few names behind the word for what they are, and how many more there are.

    >>> listed("abcdef", kind="table"), listed([3], kind="rank"), listed("abc", 2)
    ('tables a, b, c, d and 2 more', 'rank 3', 'a, b and 1 more')
    """
    every = [on_one_line(str(name)) for name in names]
    word = f"{kind}{'s' * (len(every) != 1)} " if kind else ""
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return f"{word}{', '.join(every[:most])}{more}"


def so_many(count: float, kind: str) -> str:
    """A number of things, with the word for what they are.

    >>> so_many(1, "rank"), so_many(0, "batch"), so_many(12_345.6, "row")
    ('1 rank', '0 batches', '12,346 rows')
    """
    number = f"{count:,.0f}"
    many = "" if number == "1" else "es" if kind.endswith(("ch", "s", "x")) else "s"
    return f"{number} {kind}{many}"


MOST_SHOWN = 200
"""Characters of a value that a message shows."""


def shown(value: object) -> str:
    """A value as a message has it: as Python writes it, what is long cut in its middle.

    >>> shown("exat"), len(shown("x" * 5_000))
    ("'exat'", 200)
    """
    try:
        text = _Cut().repr(value)
    except ValueError:  # Python refuses to write integers of thousands of digits
        text = f"a value of type {type(value).__name__} that is too large to show"
    text = re.sub(r"\s*\n\s*", " ", text)  # as of a tensor
    return text if len(text) <= MOST_SHOWN else f"{text[: MOST_SHOWN - 3]}..."


def with_type(value: object) -> str:
    """What somebody passed, as a message has it; `called` is for what code returned.

    >>> with_type(None), with_type([3]), with_type(dict)
    ('None', '[3] (list)', 'the class dict')
    """
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return f"{shown(value)} ({type(value).__name__})"


def shortened(message: str) -> str:
    """A message, each word of it cut in its middle that has more characters than are shown of a
    value: what a user wrote may be anything. A terminal obeys no character of it but line ends and
    tabs.

    >>> shortened(f"--ranks {'9' * 5_000} is too large") == (
    ...     f"--ranks {'9' * 100}[4,800 characters]{'9' * 100} is too large")
    True
    """
    lines = ("\t".join(map(on_one_line, line.split("\t"))) for line in message.split("\n"))
    return re.sub(rf"\S{{{MOST_SHOWN + 1},}}", _cut_in_the_middle, "\n".join(lines))


def on_one_line(text: str) -> str:
    """A text that somebody wrote, as a column's name, with escapes for what would end a line, or
    what a terminal obeys instead of showing it.

    >>> print(on_one_line("item\\n\\x1b[2Jé"))
    item\\n\\x1b[2Jé
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def _cut_in_the_middle(word: re.Match[str]) -> str:
    text, half = word.group(), MOST_SHOWN // 2
    return f"{text[:half]}[{len(text) - MOST_SHOWN:,} characters]{text[-half:]}"


class _Cut(reprlib.Repr):
    """Writes no more of a value than is shown of it, be it as large as it may."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = self.maxlong = MOST_SHOWN
        self.maxlist = self.maxdict = self.maxtuple = self.maxset = 20

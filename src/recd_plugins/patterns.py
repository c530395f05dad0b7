"""Names and globs of names, as registry.yaml and arguments give them.

A pattern fits its own name, and any name that it matches as a glob (`user_*`), letter case
included. `*` means all that there are, even if there are none.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from recd_plugins.errors import RegistryError, nearest, shown

__all__ = ["check_patterns", "fitting", "matching"]


def fitting(name: str, patterns: Iterable[str]) -> list[str]:
    """The patterns that `name` fits, in their own order."""
    return [pattern for pattern in patterns if name == pattern or fnmatchcase(name, pattern)]


def matching(patterns: Iterable[str], names: Iterable[str]) -> list[str]:
    """The names that one of the patterns fits, in the names' own order."""
    patterns = tuple(patterns)
    return [name for name in names if fitting(name, patterns)]


def check_patterns(
    patterns: Iterable[str], names: Iterable[str], *, kind: str, where: str = "", fix: str = ""
) -> None:
    """`RegistryError` for the first pattern that fits no name.

    `kind` says what the names are of ("table"); `where` opens the message, `fix` ends it.
    """
    names = tuple(names)
    itself = {"*", *names}
    for pattern in patterns:
        if pattern not in itself and not matching([pattern], names):
            known = nearest(pattern, names)
            raise RegistryError(
                f"no {kind} matches {shown(pattern)}; {known} {fix}".rstrip(), where
            )

"""What the host raises at its users.

Every message says what is wrong, who is concerned and how to fix it. The command
line prints these without a traceback and exits with code 2; anything else that
escapes is a defect of ours and keeps its traceback.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = [
    "CapabilityError",
    "DataError",
    "PluginError",
    "RecdError",
    "RegistryError",
    "VersionError",
    "nearest",
]


class RecdError(Exception):
    """Base of every error that is a user's to fix."""


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


class VersionError(RecdError):
    """torch, fbgemm and torchrec do not belong together."""


class DataError(RecdError, ValueError):
    """A table, file or batch breaks its schema."""


def nearest(name: str, known: Iterable[str]) -> str:
    """The tail of an "unknown name" message: the nearest right name, then all of them.

    >>> nearest("exat", ["exact", "none"])
    "did you mean 'exact'? Known: exact, none."
    """
    names = sorted(known)
    if not names:
        return "There are none to choose from."
    close = get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}Known: {', '.join(names)}."

"""The version that wrote a checkpoint: if this version refuses it, the error names both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from recd_plugins import __version__
from recd_plugins.errors import DataError, RegistryError, shown

__all__ = ["VERSION", "naming_version"]

VERSION = "recd_plugins"
"""The key of job.json for the version; checkpoints of older versions lack it."""


@contextmanager
def naming_version(saved: Mapping[str, Any]) -> Iterator[None]:
    """Inside, an error that a job does not fit its checkpoint also names the version that wrote the
    checkpoint, if that is another one: it may have kept the same thing in another way. `saved` is
    the content of job.json."""
    try:
        yield
    except (DataError, RegistryError) as error:
        before = saved.get(VERSION)
        if before == __version__ or type(error) not in (DataError, RegistryError):
            raise
        who = "an older version of recd-plugins" if before is None else f"version {shown(before)}"
        raise type(error)(
            f"{error} If that is what it was: {who} wrote the checkpoint, and this is "
            f"{__version__}, which may know the same by another name. The version that wrote it "
            "goes on with the run."
        ) from error

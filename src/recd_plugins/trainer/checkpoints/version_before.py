"""The version that wrote a checkpoint: where this one refuses it, both are named."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from recd_plugins import __version__
from recd_plugins.errors import DataError, RegistryError, shown

__all__ = ["VERSION", "naming_version"]

VERSION = "recd_plugins"
"""The key of job.json; checkpoints from before it was there have none."""


@contextmanager
def naming_version(saved: Mapping[str, Any]) -> Iterator[None]:
    """Inside, an error which says that a job is not what its checkpoint is for names the version
    that wrote the checkpoint, where that is another one: it may have kept the same thing in another
    way. `saved` is the content of job.json."""
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

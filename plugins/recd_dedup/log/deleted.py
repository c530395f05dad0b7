"""Errors for messages that were in a log and can no longer be read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from recd_plugins.api import DataError

__all__ = ["DeletedMessages", "ExpiredMessages", "readable"]


class DeletedMessages(DataError):
    """Requested messages are no longer there, so they cannot be compared with what was there
    before."""


class ExpiredMessages(DeletedMessages):
    """The log keeps messages for a limited time, which is over for these."""


@contextmanager
def readable() -> Iterator[None]:
    """Inside it, the error for a file that is gone, or that this process may not read, names the
    file."""
    try:
        yield
    except FileNotFoundError as error:
        raise DeletedMessages(
            f"{error.filename}: is not there, but was before, or should be. Restore it from a copy."
        ) from error
    except PermissionError as error:
        raise DataError(
            f"{error.filename}: this process may not read it ({error.strerror}). Give its user the "
            "permission to read the whole folder of the log."
        ) from error

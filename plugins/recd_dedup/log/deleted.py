"""Messages that were in a log and cannot be read any more: the errors that say so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from recd_plugins.api import DataError

__all__ = ["DeletedMessages", "ExpiredMessages", "readable"]


class DeletedMessages(DataError):
    """Messages that were asked for are not there any more: whether they were the same as others
    were, nobody can tell."""


class ExpiredMessages(DeletedMessages):
    """The log keeps messages for a time, which is over for these."""


@contextmanager
def readable() -> Iterator[None]:
    """Inside, a file that is gone, or not for this process, is named."""
    try:
        yield
    except FileNotFoundError as error:
        raise DeletedMessages(
            f"{error.filename}: is not there, and was there before, or should be. Take it from a "
            "copy."
        ) from error
    except PermissionError as error:
        raise DataError(
            f"{error.filename}: may not be read by this process ({error.strerror}). Give its user "
            "the right to read all of the log's folder."
        ) from error

"""A disk that takes no more bytes, as far as a process can have one."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["files_of_at_most"]


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Inside, the system takes no more bytes of a file."""
    before, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, most))

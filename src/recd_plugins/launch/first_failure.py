"""The rank of a job that failed first: when one fails, its peers fail because it is gone.

A rank that fails leaves its number at the launcher's store before its peers can notice, so that
their numbers come later. Which process ended first says nothing: the one that failed first may be
slower to end.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from recd_plugins.launch.environment import launchers_store

if TYPE_CHECKING:
    from torch.distributed import Store

__all__ = ["first_to_fail", "leave_failure", "left_failures"]

KEY = "failed first"
PATIENCE = 20.0
"""Seconds for which a rank that fails looks for the launcher's store, which may be gone."""


@contextlib.contextmanager
def left_failures() -> Iterator[None]:
    """A rank that leaves this by an exception leaves its number at the store first."""
    try:
        yield
    except BaseException:
        leave_failure()
        raise


def leave_failure() -> None:
    """Note that this rank fails; to be called while its peers can still reach it."""
    with contextlib.suppress(RuntimeError):  # whoever started the ranks is gone
        if (store := launchers_store(PATIENCE)) is not None:
            store.compare_set(KEY, "", os.environ["RANK"])


def first_to_fail(store: Store) -> int | None:
    """The rank; None as long as none has left its number."""
    return int(store.get(KEY)) if store.check([KEY]) else None

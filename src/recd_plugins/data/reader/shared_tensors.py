"""Memory that processes of a machine share, in which a worker hands a batch to its rank."""

from __future__ import annotations

import io
import multiprocessing
from multiprocessing.reduction import ForkingPickler
from typing import Any

from torch import Tensor

from recd_plugins.errors import CapabilityError

__all__ = ["check_shares_memory", "share_memory"]

CURE = (
    "Give this machine, or its container, a larger /dev/shm, as by `docker run --shm-size 8g`; or "
    "have a rank read by itself, by `reader.workers=0`."
)
LOCKS = 4
"""The locks and semaphores of a queue or an event between processes, rounded up. A loader has a
queue for each worker, and up to four for all of them."""


def share_memory(batch: object) -> None:
    """Move all tensors of a batch into memory that other processes see; raises `CapabilityError` if
    it has no room for them.

    A queue between processes would do this in its own thread and lose a batch that does not fit, so
    that a reader would wait for ever.
    """
    try:
        _Sharing(io.BytesIO()).dump(batch)
    except RuntimeError as error:
        if "shared memory" not in str(error):
            raise
        raise _refused(str(error).partition("\n")[0]) from None


def check_shares_memory(workers: int) -> None:
    """Raises `CapabilityError` if processes of this machine cannot share memory, or have no room
    there for the locks of so many workers' queues."""
    try:
        _ = [multiprocessing.Lock() for _ in range(LOCKS * (workers + 4))]
    except OSError as error:
        raise _refused(error.strerror or str(error)) from None


def _refused(why: str) -> CapabilityError:
    return CapabilityError(
        f"reader.workers: what a worker reads goes to its rank in shared memory, of which the "
        f"system gives none ({why}). {CURE}"
    )


class _Sharing(ForkingPickler):
    """A pickler that moves every tensor it meets into shared memory, whatever holds the tensor."""

    def persistent_id(self, value: Any) -> bool | None:
        if not isinstance(value, Tensor):
            return None
        value.share_memory_()
        return True

"""What every rank of a job does, or none: an error of one is an error of all."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import torch.distributed as dist

from recd_plugins.errors import RecdError

__all__ = ["on_every_rank"]

T = TypeVar("T")


def on_every_rank(attempt: Callable[[], T]) -> list[T]:
    """What each rank makes, by rank; every rank must call it.

    Where ranks fail, all raise what the first of them did: an error of a user, or of the system.
    An error of others' code is raised as it is where it happened; the other ranks learn what it
    says.
    """
    mine: T | Exception
    failure: Exception | None = None
    try:
        mine = attempt()
    except (RecdError, OSError) as error:
        mine = error
    except Exception as error:
        failure = error
        mine = RecdError(
            f"rank {dist.get_rank()} ended with {type(error).__name__}: {error} Its traceback is "
            "there; no rank goes on without it."
        )
    every: list[T | Exception] = [mine] * dist.get_world_size()
    dist.all_gather_object(every, mine)
    if failure is not None:
        raise failure
    for one in every:
        if isinstance(one, Exception):
            raise one
    return cast("list[T]", every)

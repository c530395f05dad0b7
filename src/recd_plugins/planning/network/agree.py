"""One rank decides, all have it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from recd_plugins.errors import RecdError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = ["from_rank_0"]

T = TypeVar("T")


def from_rank_0(group: ProcessGroup, make: Callable[[], T]) -> T:
    """What rank 0 makes, on every rank; or its error, for which the others wait as well."""
    from torchrec.distributed.collective_utils import invoke_on_rank_and_broadcast_result

    def attempt() -> T | RecdError:
        try:
            return make()
        except RecdError as error:
            return error

    found: T | RecdError = invoke_on_rank_and_broadcast_result(group, 0, attempt)
    if isinstance(found, RecdError):
        raise found
    return found

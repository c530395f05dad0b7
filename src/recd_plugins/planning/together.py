"""What all ranks of a group do together, or rank 0 does for all. Where it fails on one of them, it
fails on all."""

from __future__ import annotations

import hashlib
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar, cast
from weakref import WeakKeyDictionary

from recd_plugins.errors import (
    CapabilityError,
    DataError,
    FailedOnRank0,
    PluginError,
    RecdError,
    is_of_the_system,
)
from recd_plugins.notices import NoticeWarning, noticed_if_long

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = [
    "LeastOfRanks",
    "agreed",
    "alike",
    "check_alike",
    "from_rank_0",
    "meet",
    "on_every_rank",
    "planning_by",
    "ranks_where",
    "together",
    "unless_alike",
]

T = TypeVar("T")

PATIENCE = timedelta(seconds=60)
"""The time that a rank which fails waits for the others, until they hear of it; and after which a
rank that waits says so."""
LOOK = 0.001
"""Seconds between two looks whether all are there."""
_OWN_GLOO: WeakKeyDictionary[ProcessGroup, Any] = WeakKeyDictionary()
"""By group, the gloo by which its ranks hear of each other."""
_MADE: WeakKeyDictionary[ProcessGroup, dict[str, int]] = WeakKeyDictionary()
"""By group and purpose, how many gloos its ranks have made."""


@dataclass(frozen=True, kw_only=True)
class JointWork:
    """Something that all ranks do together, in words."""

    what: str
    """What a rank could not do: `count its batches`."""
    waits: str
    """Where the others may wait when one fails, and what to do."""
    without: str
    """What no rank does where one failed."""


COUNTING = JointWork(
    what="count its batches",
    waits="they wait in what the loader asks of all ranks. Where one rank reads for all, as by "
    "Accelerate's dispatch_batches, its default for an IterableDataset, have each rank read "
    "batches of its own: DataLoaderConfiguration(dispatch_batches=False).",
    without="no rank plans without them",
)


def planning_by(planner: str) -> JointWork:
    """To plan, by a planner as registry.yaml has it: `sharding: mine`."""
    return JointWork(
        what=f"plan by `{planner}`",
        waits="they wait in what the planner asks of all ranks. Have every rank make the same "
        "collectives there, or none: recd_plugins.api.planning.from_rank_0 has rank 0 plan for "
        "all.",
        without="no rank trains without a plan",
    )


def meet(group: ProcessGroup, call: str) -> None:
    """Wait until all ranks of a group have come to a `call`, and say so where some are late."""
    import torch
    import torch.distributed as dist

    if group.size() == 1:
        return
    seconds = PATIENCE.total_seconds()
    alone = "call it on every rank, outside of `if rank == 0:`."
    with noticed_if_long(
        seconds,
        f"{call}: for {seconds:g} s rank {group.rank()} has waited in it for the other ranks of "
        f"its process group. If it is called on some of them alone, they never come: {alone}",
    ):
        here = torch.zeros(1, device="cpu")
        try:
            _own_gloo(group).allreduce([here], dist.AllreduceOptions()).wait()
        except RuntimeError as error:  # the time is over, or one of them has ended
            _OWN_GLOO.pop(group, None)
            raise CapabilityError(
                f"{call}: rank {group.rank()} waited in it for the other ranks of its process "
                f"group, and not all came ({error}). A rank that failed prints why; if it was "
                f"called on some of them alone, {alone}"
            ) from error


def together(group: ProcessGroup, do: Callable[[], int], doing: JointWork = COUNTING) -> int:
    """The greatest number that any rank returns. If one rank raises, all do, instead of waiting for
    it.

    `do` may run collectives of the group, as a loader does where one rank reads for all. If it
    fails on one rank, the others may wait there. So ranks hear of each other by a gloo of their
    own, and a rank that fails waits for the others for at most `PATIENCE`.
    """
    import torch
    import torch.distributed as dist

    if group.size() == 1:
        return do()
    gloo = _own_gloo(group)  # first, since all of them must make it
    failure: Exception | None = None
    number = 0
    try:
        number = do()
    except Exception as error:
        failure = error
    status = torch.tensor([group.rank() + 1 if failure else 0, number], device="cpu")
    options: Any = dist.AllreduceOptions()
    options.reduceOp = dist.ReduceOp.MAX
    work = gloo.allreduce([status], options)
    if failure is not None:
        try:
            work.wait(PATIENCE)
        except RuntimeError:  # the time is over, or one of them has ended
            _OWN_GLOO.pop(group, None)
            raise DataError(
                f"rank {group.rank()} could not {doing.what} ({type(failure).__name__}: "
                f"{failure}), and for {PATIENCE.total_seconds():g} s no other rank came to learn "
                f"of it: {doing.waits}"
            ) from failure
        raise failure
    _wait_for(work, group, doing)
    failed, greatest = status.tolist()
    if failed:
        raise DataError(
            f"rank {failed - 1} could not {doing.what}, and prints why; {doing.without}."
        )
    return int(greatest)


def _wait_for(work: Any, group: ProcessGroup, doing: JointWork) -> None:
    """Wait for the other ranks, and say so once they are late; until then Ctrl-C is heard."""
    late = time.monotonic() + PATIENCE.total_seconds()
    while not work.is_completed() and time.monotonic() < late:
        time.sleep(LOOK)
    if not work.is_completed():
        warnings.warn(
            f"rank {group.rank()} has done what all ranks do together (to {doing.what}), and for "
            f"{PATIENCE.total_seconds():g} s not all of the others have. If they do not come any "
            f"more, {doing.waits}",
            NoticeWarning,
            stacklevel=3,
        )
    work.wait()


def _own_gloo(group: ProcessGroup) -> Any:
    """The gloo by which a group's ranks hear of failures, made once."""
    if group not in _OWN_GLOO:
        _OWN_GLOO[group] = _made_gloo(group, "failures")
    return _OWN_GLOO[group]


def _made_gloo(group: ProcessGroup, purpose: str, timeout: timedelta | None = None) -> Any:
    """A gloo of a group's ranks. It is not one of torch's groups: ranks name those by the number
    that each has made, and ranks with different numbers would wait for each other."""
    from recd_plugins.compat.pytorch import own_gloo

    made = _MADE.setdefault(group, {})
    number = made.get(purpose, 0)
    gloo = own_gloo(group, f"{purpose} {number}", timeout)
    made[purpose] = number + 1
    return gloo


class LeastOfRanks:
    """Finds the least of the ranks' numbers, again and again. The ranks have a gloo of their own
    for that, since the trainer's groups may be busy and the numbers are on the CPU."""

    def __init__(
        self, group: ProcessGroup | None, purpose: str, patience: timedelta | None = None
    ) -> None:
        """Every rank of the group, by default all of the job, must make one, and those of one
        `purpose` in one order. It waits for the others for `patience` at most, by default as torch
        does."""
        import torch.distributed as dist

        ranks = group or dist.GroupMember.WORLD
        assert ranks is not None
        self._gloo = _made_gloo(ranks, purpose, patience)

    def least(self, mine: Sequence[int], patience: timedelta | None = None) -> list[int]:
        """The least of the ranks' numbers at each place; every rank must call it equally often,
        with as many."""
        import torch
        import torch.distributed as dist

        numbers = torch.tensor(mine, device="cpu")
        options: Any = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.MIN
        self._gloo.allreduce([numbers], options).wait(*([patience] if patience else []))
        return [int(one) for one in numbers]


def alike(group: ProcessGroup, what: bytes) -> bool:
    """Whether all ranks of a group have the same bytes; each of them calls it."""
    import torch
    import torch.distributed as dist

    from recd_plugins.compat.pytorch import device_of

    # A number of 7 bytes, and its negative, fit into 64 bits.
    number = int.from_bytes(hashlib.blake2b(what, digest_size=7).digest(), "little")
    ends = torch.tensor([number, -number], device=device_of(group))
    dist.all_reduce(ends, dist.ReduceOp.MAX, group=group)
    return int(ends.sum()) == 0  # the greatest is the least


def check_alike(made: Mapping[str, str], group: ProcessGroup, cures: Mapping[str, str]) -> None:
    """`PluginError` on every rank of a group where one of them made something else of
    registry.yaml.

    `made` says in words what this rank made, for each part of registry.yaml, and `cures` what to do
    about each. A rank may lack what another has made; all of them call it.
    """
    each = unless_alike(made, group) or []
    for whose, first in (one for made in each for one in made.items()):
        for rank, other in enumerate(each):
            if other.get(whose, first) != first:
                has = next(at for at, one in enumerate(each) if one.get(whose) == first)
                raise PluginError(
                    f"{whose} differ on the ranks: rank {has} has {first}, and rank {rank} has "
                    f"{other[whose]}. {cures[whose]}"
                )


def unless_alike(mine: Mapping[str, str], group: ProcessGroup) -> list[Mapping[str, str]]:
    """What all ranks have, by rank; nothing where it is alike."""
    import torch.distributed as dist

    text = "\n".join(f"{name}: {what}" for name, what in mine.items())
    if group.size() == 1 or alike(group, text.encode()):
        return []
    every: list[Any] = [None] * group.size()
    dist.all_gather_object(every, dict(mine), group=group)
    return every


def ranks_where(group: ProcessGroup, here: bool) -> list[int]:
    """The ranks that have `here`; every rank of the group calls it."""
    import torch
    import torch.distributed as dist

    from recd_plugins.compat.pytorch import device_of

    marks = torch.zeros(group.size(), device=device_of(group), dtype=torch.int64)
    marks[group.rank()] = int(here)
    dist.all_reduce(marks, group=group)
    return [rank for rank, so in enumerate(marks.tolist()) if so]


def agreed(make: Callable[[], T], group: ProcessGroup | None = None) -> T:
    """The result of rank 0 of the group, by default the job's, on every rank of it; of a job of one
    rank, its own."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        ranks = group or dist.GroupMember.WORLD
        assert ranks is not None
        return from_rank_0(ranks, make)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise CapabilityError(
            "the ranks of this job must agree on what they see in batches, but there is no process "
            "group. Call torch.distributed.init_process_group first."
        )
    return make()


def from_rank_0(group: ProcessGroup, make: Callable[[], T]) -> T:
    """The result of rank 0, on every rank; or its error, which all of them raise.

    An error of others' code is raised as it is on rank 0; the other ranks learn what it says.
    """
    import torch.distributed as dist

    failure: Exception | None = None

    def attempt() -> T | RecdError:
        nonlocal failure
        try:
            return make()
        except RecdError as error:
            return error
        except Exception as error:
            failure = error
            kind = type(error).__name__
            message = (
                f"rank 0 ended with {kind}: {error} That rank prints its traceback; no rank goes "
                "on without what it was to make."
            )
            if is_of_the_system(error):
                return RecdError(message)
            return FailedOnRank0(message, kind, str(error))

    made = [attempt() if group.rank() == 0 else None]
    if group.size() > 1:
        # TorchRec's own function for this broadcasts from rank 0 of the job, whatever the group.
        dist.broadcast_object_list(made, group=group, group_src=0)
    if failure is not None:
        raise failure
    found = cast("T | RecdError", made[0])
    if isinstance(found, RecdError):
        raise found
    return found


def on_every_rank(attempt: Callable[[], T]) -> list[T]:
    """The results of all ranks, by rank; every rank must call it.

    Where ranks fail, all raise what the first of them did: an error of a user, or of the system.
    An error of others' code is raised as it is where it happened; the other ranks learn what it
    says.
    """
    import torch.distributed as dist

    mine: T | Exception
    failure: Exception | None = None
    try:
        mine = attempt()
    except (RecdError, OSError) as error:
        mine = error
    except Exception as error:
        failure = error
        mine = RecdError(
            f"rank {dist.get_rank()} ended with {type(error).__name__}: {error} That rank prints "
            "its traceback; no rank goes on without it."
        )
    every: list[T | Exception] = [mine] * dist.get_world_size()
    dist.all_gather_object(every, mine)
    if failure is not None:
        raise failure
    for one in every:
        if isinstance(one, Exception):
            raise one
    return cast("list[T]", every)

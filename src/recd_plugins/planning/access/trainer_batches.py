"""The basis of a trainer's plan: its own batches, or a profile; all ranks agree on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recd_plugins.errors import DataError, listed
from recd_plugins.planning.access.access_profile import Profile
from recd_plugins.planning.access.look import Look
from recd_plugins.planning.access.lookups import batch_lookups
from recd_plugins.planning.together import ranks_where, together

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from recd_plugins.sparse.own_batches import FeaturesOf

__all__ = ["TrainerBatches", "trainer_batches"]


@dataclass(frozen=True, kw_only=True)
class TrainerBatches:
    """A trainer's batches while a look at them is open, or its profile."""

    batches: Callable[[], Iterable[Any]] | None
    """Returns this rank's batches, which may be empty; None if no rank gave any."""
    features: FeaturesOf | None
    profile: Profile | None
    """The profile on rank 0; other ranks have an empty one if it is read from a file or was given
    only on rank 0. None if no rank gave one."""
    batch_size: int
    """The largest batch size of any rank; 0 if neither batches nor profile tell it."""


@contextmanager
def trainer_batches(
    group: ProcessGroup,
    batches: Iterable[Any] | None,
    features: FeaturesOf | None,
    profile: Profile | Path | str | None,
) -> Iterator[TrainerBatches]:
    """Look at the batches of every rank, for as long as the context is open. Every rank enters it.

    If one rank cannot read its batches, all ranks end with an error; so they do if only some ranks
    were given batches.
    """
    profiled = _check_given(group, batches, profile)
    looks: list[Look] = []
    found = profile if isinstance(profile, Profile) else None
    if profiled and found is None and group.rank():
        found = Profile(rows={})  # the file need not be where this rank is

    with ExitStack() as looking:

        def first() -> int:
            nonlocal found
            if features is not None and batches is None:
                raise DataError(
                    "stack.plan: `features` gives the place of a batch's sparse features, but "
                    "there are no `batches`. Pass both."
                )
            if profile is not None and found is None:
                found = Profile.load(Path(str(profile)))
            if batches is None:
                return 0
            looks.append(looking.enter_context(Look(batches)))
            one = looks[0].first
            return 0 if one is None else batch_lookups(one, features).samples

        size = together(group, first)
        in_profile = together(group, lambda: 0 if found is None else found.batch_size)
        yield TrainerBatches(
            batches=None if batches is None else lambda: looks[0],
            features=None if features is None else _called_here(features),
            profile=found,
            batch_size=size or in_profile,
        )


def _check_given(
    group: ProcessGroup, batches: Iterable[Any] | None, profile: Profile | Path | str | None
) -> list[int]:
    """`DataError` on every rank where only some were given batches, or rank 0 lacks a profile that
    others have; returns the ranks that have one."""
    counting = ranks_where(group, batches is not None)
    if counting and len(counting) < group.size():
        raise DataError(
            f"stack.plan: `batches` were given on {listed(counting, kind='rank')} of "
            f"{group.size()} alone. Pass each rank its own; `[]`, where a rank has none to count."
        )
    profiled = ranks_where(group, profile is not None)
    if profiled and 0 not in profiled:
        raise DataError(
            f"stack.plan: a `profile` was given on {listed(profiled, kind='rank')} of "
            f"{group.size()} alone, but rank 0 plans. Pass it there, or on all."
        )
    return profiled


def _called_here(features: FeaturesOf) -> FeaturesOf:
    """The same function, called through this file, so that an error in it is known to be the
    trainer's."""
    return lambda batch: features(batch)

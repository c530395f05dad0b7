"""The basis of a trainer's plan: its own batches, or a profile; all ranks agree on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recd_plugins.errors import DataError
from recd_plugins.planning.access.access_profile import Profile
from recd_plugins.planning.access.look import Look
from recd_plugins.planning.access.lookups import batch_lookups
from recd_plugins.planning.access.ranks import together

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from recd_plugins.sparse.own_batches import FeaturesOf

__all__ = ["TrainerBatches", "trainer_batches"]


@dataclass(frozen=True, kw_only=True)
class TrainerBatches:
    """A trainer's batches while they are looked at, or its profile."""

    batches: Callable[[], Iterable[Any]] | None
    """This rank's."""
    features: FeaturesOf | None
    profile: Profile | None
    """Rank 0's; on the others an empty one where it is read from a file."""
    batch_size: int
    """The batch size of the largest rank; 0 where neither batches nor profile say."""


@contextmanager
def trainer_batches(
    group: ProcessGroup,
    batches: Iterable[Any] | None = None,
    features: FeaturesOf | None = None,
    profile: Profile | Path | str | None = None,
) -> Iterator[TrainerBatches]:
    """Look at the batches of every rank, for as long as the context is open; every rank enters.

    What one rank cannot read ends all of them.
    """
    if features is not None and batches is None:
        raise DataError(
            "stack.plan: `features` says where a batch has its sparse features, but there are no "
            "`batches`. Pass both."
        )
    looks: list[Look] = []
    found = profile if isinstance(profile, Profile) else None
    if profile is not None and found is None and group.rank():
        found = Profile(rows={})  # the file need not be where this rank is

    with ExitStack() as looking:

        def first() -> int:
            nonlocal found
            if profile is not None and found is None:
                found = Profile.load(Path(str(profile)))
            if batches is None:
                return 0
            looks.append(looking.enter_context(Look(batches)))
            one = looks[0].first
            return 0 if one is None else batch_lookups(one, features).samples

        def check() -> int:
            if size and batches is None:
                raise DataError(
                    "stack.plan: this rank was given no `batches`, but others were. Pass each "
                    "rank its own."
                )
            return 0 if found is None else found.batch_size

        size = together(group, first)
        profiled = together(group, check)
        yield TrainerBatches(
            batches=None if batches is None else lambda: looks[0],
            features=features,
            profile=found,
            batch_size=size or profiled,
        )

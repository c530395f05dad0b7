"""The access distributions that a planner of tiers uses: the trainer's, saved ones, or those of
batches that all ranks count together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recd_plugins.errors import CapabilityError, nearest, so_many
from recd_plugins.planning.access.access_profile import Profile, Tally
from recd_plugins.planning.access.sample import count_sample
from recd_plugins.planning.together import together

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from recd_plugins.planning.tables.model_tables import ModelTable
    from recd_plugins.slots import Context

__all__ = ["TableProfiles"]


class TableProfiles:
    """One planner's profiles of a model's tables, one for each plan."""

    def __init__(self, options_in: str, path: Path | None, num_batches: int | None) -> None:
        """`path` is that of a saved profile, which the slot `options_in` names. Otherwise
        `num_batches` batches of each rank are counted, by default as many as it takes
        (`count_sample`)."""
        self._path, self._num_batches = path, num_batches
        self.variable: frozenset[str] = frozenset()
        """The features that were counted in KJTs whose keys differ in batch size."""
        self.weighted: frozenset[str] = frozenset()
        """The features that were counted with a weight for each id."""
        self._options_in = options_in
        self._tally: Tally | None = None
        """The counts of all ranks, on rank 0 while it plans."""
        self._counted = ""
        """The words on what was counted for the last profile."""
        self._no_row: Mapping[str, int] = {}
        """The ids that rank 0 counted of no row, by table."""
        self.strange: tuple[str, ...] = ()
        """The tables of which most ids that were counted are of no row."""
        self.alike = False
        """Whether all ranks counted the same batches."""
        self.epoch = 0.0
        """The number of batches, on all ranks, of the epoch from all over which the last profile
        was counted; 0 if it is not of a whole epoch."""

    def can_be_made(self, context: Context) -> bool:
        """Whether a profile is there, or batches that could be counted."""
        given = self._path or context.profile
        return bool(given or self._num_batches == 0 or context.batches)

    def needs_counts(self, context: Context) -> bool:
        """Whether batches are counted, which all ranks decide alike."""
        given = self._path or context.profile
        return bool(not given and self._num_batches != 0 and context.batches)

    def count(
        self,
        context: Context,
        tables: Mapping[str, ModelTable],
        group: ProcessGroup | None = None,
    ) -> None:
        """Count the batches that this process reads, for the profile that is asked for next; of a
        group, rank 0 then has the counts of all ranks."""
        opened = _opened(context, group)
        self._tally = count_sample(
            opened,
            {name: table.counted for name, table in tables.items()},
            most=self._num_batches,
            features=context.features,
            group=group,
        )

    def drop_counts(self) -> None:
        """Drop the counts that no profile was made of."""
        self._tally = None

    def forget_last(self) -> None:
        """Forget what was found for the last profile."""
        self._no_row, self._counted, self.strange, self.alike = {}, "", (), False
        self.epoch = 0.0
        self.variable = self.weighted = frozenset()

    def profile(self, context: Context, tables: Mapping[str, ModelTable]) -> Profile:
        """The trainer's profile, the saved one, or one of the context's batches."""
        if context.profile is not None:
            profile, named = context.profile, "stack.plan: the profile"
            again = "Profile this model: pass `batches` instead."
        elif self._path is not None:
            profile, named = Profile.load(self._path), f"{self._options_in}.profile: {self._path}"
            again = "Profile again: take `profile` out of registry.yaml."
        else:
            return self._of_counts(context, tables)
        for name, table in tables.items():
            if name not in profile.rows:
                raise CapabilityError(
                    f"{named} has no table {name!r}, as the model has; "
                    f"{nearest(name, profile.rows)} {again}"
                )
            if profile[name].num_rows != table.num_rows:
                raise CapabilityError(
                    f"{named} was made of a table {name!r} of "
                    f"{so_many(profile[name].num_rows, 'row')}, but the model's has "
                    f"{table.num_rows:,}. {again}"
                )
        return profile

    def _of_counts(self, context: Context, tables: Mapping[str, ModelTable]) -> Profile:
        if self._tally is None:
            self.count(context, tables)
        counts = self._tally
        assert counts is not None  # it was counted
        self._tally = None  # so that its counters can be freed
        self._no_row, self._counted = dict(counts.no_row), counts.explain()
        self.variable, self.weighted, self.alike = counts.variable, counts.weighted, counts.alike
        self.epoch = 0.0 if counts.in_order else counts.epoch
        profile = counts.profile()
        shares = counts.shares_of_no_row(profile)
        self.strange = tuple(name for name, share in shares.items() if share > 0.5)
        return profile

    def in_words(self) -> list[str]:
        """What was counted for the last profile, and ids of no row."""
        lines = [self._counted] if self._counted else []
        for name, ids in self._no_row.items():
            lines.append(f"{name}: {ids:,} of the ids that rank 0 counted are of no row")
        return lines


def _opened(context: Context, group: ProcessGroup | None) -> Iterable[Any]:
    """The batches; where one rank cannot open its own, all ranks end."""
    batches = context.batches
    assert batches is not None  # `needs_counts` asked
    if group is None:
        return batches()
    found: list[Iterable[Any]] = []

    def open_here() -> int:
        found.append(batches())
        return 1

    together(group, open_here)
    return found[0]

"""The notices of hot batches: why there are none, or fewer than there could be."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING

from recd_plugins.api import Context, DataError, Missed, Notice, Unused
from recd_plugins.api.planning import TablePlan
from recd_scars.config import ScarsConfig

if TYPE_CHECKING:
    from recd_scars.hot_batches import YieldedCounts

__all__ = ["HotNotices"]

HOT = "cache: hot_batches"
TRIED = 10
"""Windows without a hot batch after which a notice reports that there is none."""

Plans = Mapping[str, TablePlan]


class HotNotices:
    """What is noticed of the hot batches of one planner, in planning and while its model trains.

    `plans` are the tables with tiers in its last plan.
    """

    def __init__(self, config: ScarsConfig, *, more_rows: str) -> None:
        """`more_rows` names the options by which more rows get copies."""
        self._config = config
        self._more_rows = more_rows
        self.yielded: list[YieldedCounts] = []
        """What each loader of `order` has yielded since the last plan."""
        self._unmarked = ""
        """Why no batch of the last plan's could be marked as hot, on rank 0; "" if they could."""

    def begin(self) -> None:
        """Count what loaders yield from now on."""
        for one in self.yielded:
            one.begin()

    def look_at_first(self, context: Context) -> None:
        """Find out whether the trainer's first batch can be marked as hot, by the `features` that
        the plan was given."""
        self._unmarked = ""
        if not (self._config.hot_batches and context.features and context.batches):
            return
        from recd_plugins.api.batch import OwnBatches
        from recd_scars.hot_batches.batch_window import check_marks

        for batch in islice(context.batches(), 1):  # which a look has read already
            try:
                check_marks(batch, OwnBatches(features=context.features))
            except DataError as error:
                self._unmarked = str(error)

    def without_copies(self, plans: Plans, *, sized: bool) -> Iterator[Notice]:
        """A notice of hot batches without any row on every rank, where the tables were `sized`."""
        if self._config.hot_batches and sized and not any_replicated(plans):
            yield Unused(
                what=HOT,
                why="no row has a copy on every rank, so no batch can be hot",
                cure="Set `cache.hot_batches: false`, or give the cache more rows: "
                f"{self._more_rows}.",
            )

    def left_to_others(self, plans: Plans, beside: Collection[str]) -> Iterator[Notice]:
        """A notice of tables `beside` the cached ones that keep samples out of hot batches."""
        left = sorted(set(beside).difference(plans))
        if self._config.hot_batches and left and any_replicated(plans):
            yield Missed(
                what=HOT,
                why=f"the plan leaves {', '.join(left)} to others, so no sample that looks up a "
                "row there can be in a hot batch",
                cure="stack.explain() says why it is left. Have it planned: constraints allow that "
                "by `sharding_types: [row_wise, table_wise]`; or set `cache.hot_batches: false`.",
            )

    def cannot_be_marked(self, plans: Plans) -> Iterator[Notice]:
        """A notice of batches that do not hold what `features` makes of them, which `stack.order`
        refuses."""
        if self._unmarked and any_replicated(plans):
            why, _, cure = self._unmarked.partition(". ")
            yield Unused(what=HOT, why=f"no batch can be marked as hot: {why}", cure=cure)

    def unordered(self, plans: Plans) -> Iterator[Notice]:
        """A notice that the trainer takes its batches as they come."""
        if self._config.hot_batches and any_replicated(plans):
            yield Unused(
                what=HOT,
                why="the trainer's batches do not come from a loader that puts hot samples "
                "together",
                cure="Train with `stack.order(loader)`, or set `cache.hot_batches: false`.",
            )

    def in_vain(
        self, plans: Plans, never_hot: Collection[str], trained: int
    ) -> Iterable[Notice] | None:
        """The notices that no batch was hot, or that some tables were never handed a hot one
        (`never_hot`), after `trained` steps; None while that is not known yet."""
        if not self.yielded:
            return ()
        firsts = [one.first_hot for one in self.yielded if one.first_hot is not None]
        never, ahead = sorted(never_hot), 2 * self._config.window
        if firsts and not never:
            return ()
        if not firsts:
            return self._none_was_hot(plans)
        # Pipelines and loaders read ahead, though not by windows: enough batches after a hot one
        # show that it has come to the model. A trainer that keeps batches may have them all before
        # it trains on the first, so as many steps must have been made too.
        since = sum(one.since_hot for one in self.yielded)
        if since < ahead or trained < min(firsts) + ahead:
            return None
        kind = Missed if set(never) < plans.keys() else Unused
        return [
            kind(
                what=HOT,
                why="the model reads the ids of its batch itself and makes a KeyedJaggedTensor of "
                f"them, so hot batches are looked up like any others in {', '.join(never)}",
                cure="Pass the batch's own KeyedJaggedTensor to the collection, or set "
                "`cache.hot_batches: false`.",
            )
        ]

    def _none_was_hot(self, plans: Plans) -> Iterable[Notice] | None:
        """The notice that no batch was hot, once enough windows were read while rows had copies;
        None before."""
        if not any_replicated(plans):
            self.begin()  # rows may still be given copies
            return None
        window, count = self._config.window, sum(one.every for one in self.yielded)
        if count < TRIED * window:
            return None
        return [
            Unused(
                what=HOT,
                why=f"none of the first {count} batches was hot: among every {window} of a rank, "
                "some rank had no batch of samples all of whose rows have copies",
                cure=f"Set `cache.hot_batches: false`, which leaves batches in the loader's order; "
                f"or give the cache more rows, {self._more_rows}, or a larger `cache.window`.",
            )
        ]


def any_replicated(plans: Plans) -> bool:
    """Whether any row is on every rank by these plans."""
    return any(len(one.replicated) for one in plans.values())

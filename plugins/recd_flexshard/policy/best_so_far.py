"""The best plan so far of `goal: auto`: which plans may be taken, and which are worth it."""

from __future__ import annotations

from recd_flexshard.policy.candidates import Candidates
from recd_flexshard.policy.optimum import too_little
from recd_plugins.api.planning import Ledger, has_rows_on_all

__all__ = ["LEAVING", "WORTH", "BestSoFar"]

WORTH = 0.02
"""The share of a step that a plan must save to replace an earlier one, which is simpler."""
LEAVING = 0.05
"""The same, to replace TorchRec's own plan: then prices of two different mechanisms are
compared."""
COPYING_BAGS = 0.16
"""The same, for pooled tables to have replicas of rows where they had none: such plans took up to
20% more than their price, others 8% less to 2% more, so that a sixth by the prices is next to
nothing at worst."""
ROUNDING = 1e-9
"""The relative error of sums of floats."""


class BestSoFar:
    """The fastest of the plans that were weighed, simpler ones first, within a budget."""

    def __init__(
        self, own: Ledger, within_budget: Candidates, *, budget: float, knows_torchrec: bool
    ) -> None:
        """`own` is TorchRec's own plan, or, where that is not known, row-wise tables; `budget` is
        extra bytes a rank over it."""
        self.own = own
        self._within_budget = within_budget
        self._budget = budget
        self._knows_torchrec = knows_torchrec
        self._best: Ledger | None = None
        self._without_copies: Ledger | None = None
        """The last plan without replicas that was the best so far."""

    @property
    def ledger(self) -> Ledger:
        """The plan; an error if none of those that were weighed fits."""
        if self._best is None:
            raise too_little(self._within_budget.least, self._budget)
        return self._best

    def weigh(self, ledger: Ledger, worth: float = WORTH) -> bool:
        """Take a plan for the best if it fits, and saves the share `worth` of a step or, where it
        is less simple, more; whether it is the best now."""
        beaten = self._best is None or self._beats(self._best, ledger, worth)
        if beaten and self.fits(ledger):
            self._best = ledger
            if not _has_replicas(ledger):
                self._without_copies = ledger
        return self._best is ledger

    def fits(self, ledger: Ledger) -> bool:
        """Whether it is within the budget, and ranks hand collectives no more bytes than by
        TorchRec's own plan: nobody asked for more traffic, however fast the links are. Nor may a
        rank be without any row of the tables that TorchRec looks up in one kernel.
        """
        return self._may_be(ledger) and self._within_budget.extra(ledger) <= self._budget

    def needs(self, ledger: Ledger) -> float:
        """The budget that it would fit; 0 where it fits, or none would do."""
        extra = self._within_budget.extra(ledger)
        return extra if extra > self._budget and self._may_be(ledger) else 0.0

    def unworthy(self, ledger: Ledger) -> str:
        """Why it would not replace the best plan if it fits; empty where it would."""
        share, for_what = self._least_gain(self.ledger, ledger, WORTH)
        if ledger.ms >= (1 - share) * self.ledger.ms:
            return f"saves less than the {share:.0%} for which {for_what}"
        if self._slower_at_work(ledger):
            return "is no faster if ranks work while others wait for bytes"
        return ""

    def _may_be(self, ledger: Ledger) -> bool:
        """Whether it fits, the budget aside."""
        if not self._knows_torchrec:
            return True
        if _leaves_a_rank_empty(ledger):
            return False
        more = ledger.cost.exchanged - self.own.cost.exchanged
        return self._budget < 0 or more <= ROUNDING * self.own.cost.exchanged

    def _beats(self, best: Ledger, ledger: Ledger, worth: float) -> bool:
        share, _ = self._least_gain(best, ledger, worth)
        return ledger.ms < (1 - share) * best.ms and not self._slower_at_work(ledger)

    def _least_gain(self, best: Ledger, ledger: Ledger, worth: float) -> tuple[float, str]:
        """The share of a step that it must save to replace the best plan, and for what."""
        gains = [(worth, "a simpler plan is left")]
        if self._knows_torchrec and best is self.own:
            gains.append((LEAVING, "TorchRec's own plan is left"))
        if _copies_of_bags(ledger) and not _copies_of_bags(best):
            gains.append((COPYING_BAGS, "rows of pooled tables travel beside replicas"))
        return max(gains)

    def _slower_at_work(self, ledger: Ledger) -> bool:
        """Whether it takes longer where ranks work while others wait for bytes: than TorchRec's own
        plan, or, with replicas, than the best plan without. The bytes that a plan saves are worth
        less then, and what it computes costs as much: one that is not faster by both prices is no
        reliable gain."""
        if self._budget < 0:  # to save memory, steps may be slower
            return False
        simpler = [self.own] if self._knows_torchrec else []
        if self._without_copies is not None and _has_replicas(ledger):
            simpler.append(self._without_copies)
        return any(ledger.ms_working_meanwhile >= one.ms_working_meanwhile for one in simpler)


def _leaves_a_rank_empty(ledger: Ledger) -> bool:
    """Whether some rank has no row of all row-wise tables of a collection's dimension."""
    world_size = ledger.prices.cluster.world_size
    on_all: dict[tuple[str, int], bool] = {}
    for one in ledger.tables.values():
        if not one.sizes.as_torchrec:
            alike = one.table.collection, one.table.dim
            rows = one.table.rows.num_rows
            on_all[alike] = on_all.get(alike, False) or has_rows_on_all(rows, world_size)
    return not all(on_all.values())


def _has_replicas(ledger: Ledger) -> bool:
    return any(one.has_replicas for one in ledger.tables.values())


def _copies_of_bags(ledger: Ledger) -> bool:
    """Whether pooled tables whose rows travel have replicas."""
    return any(one.travels and one.has_replicas for one in ledger.tables.values())

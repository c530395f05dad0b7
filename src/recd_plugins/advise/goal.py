"""The goal of an advice, by which outlooks are compared: which one is better, and by how much it
must be better to be worth an addition."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from recd_plugins.additions import Objective
from recd_plugins.advise.outlook import Outlook
from recd_plugins.planning.cluster.topology import GB
from recd_plugins.planning.explain.words import in_bytes

__all__ = ["WORTH", "AdviceGoal"]

WORTH = 0.02
"""The share of a step that an addition must save. Forecasts of two plans are off against each other
by as much (1.3% in the median of 36 pairs, 2.7% in nine of ten), and the simpler registry is
preferred."""
COPYING = 0.15
"""The same share on a CPU for an addition that gives rows replicas where none had any: compared
with others, such steps took 11 to 20% longer than by their prices."""
BETTER = 0.01
"""The share that an addition must save in the place of another one, which is no simpler."""
ROUNDING = 1e-6


@dataclass(frozen=True, kw_only=True)
class AdviceGoal:
    """The goal of an advice: what it should improve, and within which memory."""

    objective: Objective = "samples_per_second"
    budget_gb: float = 0.0
    """The memory in GB that a rank may take beyond TorchRec's own plan."""
    steps_to_loss: Mapping[int, int] = field(default_factory=dict)
    """The steps that it takes to learn as much, by batch size; for time_to_loss."""

    def score(self, outlook: Outlook) -> float:
        """The number to minimise; infinite if memory has no room for the tables."""
        if outlook.lacks:
            return math.inf
        if self.objective == "memory":
            return outlook.memory
        if self.objective == "time_to_loss":
            return outlook.ms * self.steps_to_loss[outlook.batch_size]
        return 1 / outlook.samples_per_second

    def fits(self, outlook: Outlook, base: Outlook) -> bool:
        """Whether memory has room for the tables and the outlook is within the budget. If memory is
        the objective, it must also be as fast as the base, provided there is room for that."""
        if outlook.lacks:
            return False
        slower = outlook.ms > base.ms * (1 + ROUNDING)
        if self.objective == "memory" and slower and not base.lacks:
            return False
        return outlook.over(base) <= self.budget_gb * GB * (1 + ROUNDING)

    def why_not_fitting(self, outlook: Outlook, base: Outlook) -> str:
        """Why an outlook does not fit, in words."""
        if outlook.lacks:
            return "it makes no room for the tables in memory"
        over = outlook.over(base)
        if over > self.budget_gb * GB:
            return (
                f"it takes {in_bytes(over, sign=True)} a rank over TorchRec's own plan, and the "
                f"budget is {in_bytes(self.budget_gb * GB)}"
            )
        return f"a step would take {outlook.ms:.3g} ms, and the baseline takes {base.ms:.3g}"

    def gain(self, outlook: Outlook, before: Outlook) -> float:
        """The share that an outlook saves of one before it; below 0 if it costs more."""
        if before.lacks:
            return 0.0 if outlook.lacks else 1.0
        return 1 - self.score(outlook) / self.score(before)

    def pays(self, outlook: Outlook, best: Outlook) -> bool:
        """Whether an outlook saves enough of the best so far."""
        if self.slower_at_work(outlook, best):
            return False
        return self.gain(outlook, best) > self.worth(outlook, best)

    def is_better(self, outlook: Outlook, best: Outlook) -> bool:
        """Whether an outlook is better than the best so far, with as many additions."""
        worth = self.worth(outlook, best)
        if self.slower_at_work(outlook, best):
            return False
        return self.gain(outlook, best) > (BETTER if worth == WORTH else worth)

    def slower_at_work(self, outlook: Outlook, other: Outlook) -> bool:
        """Whether a step takes longer than another outlook's if ranks that share processors work
        while others wait for bytes. Then saved bytes are worth less, and saved compute is worth the
        same. It is unknown how much of a wait is used in this way, so no gain may depend on it.
        """
        if self.objective == "memory" or other.lacks:
            return False
        least = other.ms_working_meanwhile / other.batch_size
        return outlook.ms_working_meanwhile / outlook.batch_size > least * (1 + ROUNDING)

    def worth(self, outlook: Outlook, other: Outlook) -> float:
        """The share of another outlook that this one must save."""
        copies = outlook.copies and not other.copies and self.objective != "memory"
        return COPYING if copies else WORTH

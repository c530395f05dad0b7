"""A run of `recd train` says at its end what was forecast of it, and what came."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from recd_plugins.planning.access.sample import Spread
from recd_plugins.planning.planner_bases import OrdersBatches
from recd_plugins.slots import Callback
from recd_plugins.trainer.measure.beside import lines
from recd_plugins.trainer.measure.dedupe_ahead import FIRST, KeptIds, read_ahead
from recd_plugins.trainer.measure.facts import ONE_IN, Facts

if TYPE_CHECKING:
    from recd_plugins.stack import Stack
    from recd_plugins.trainer.training import Training

__all__ = ["ForecastMeter"]


class ForecastMeter(Callback):
    """Counts what tiers serve and which batches are hot, and says at the end what was forecast.

    Of one trained batch in `ONE_IN` the lookups are counted by tier: some
    milliseconds, and no collective before the end. Bytes are those that the run's `CostMeter` left
    in the summary.
    """

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._facts = Facts(stack)
        self._lot = np.random.default_rng(0)  # windows of hot batches have a period

    def at_start(self, training: Training) -> None:
        """Read some of the batches that will be delivered: what they show of deduplication, and of
        hot samples."""
        stack, planner = self._stack, self._stack.planner()
        orders = isinstance(planner, OrdersBatches) and stack.ordered
        if not orders and not stack.registry.chosen("dedup"):
            return
        steps = None if training.step else training.settings.steps
        loader = stack.read(training.rank, training.world_size)
        if stack.registry.chosen("dedup"):
            self._facts.ahead = read_ahead(loader, steps, training.world_size)
        if isinstance(planner, OrdersBatches) and orders and isinstance(loader, Spread):
            blocks = range(min(FIRST, loader.places))
            some = [batch for _, batch in loader.spread(blocks, 1, steps)]
            self._facts.hot_ahead = planner.hot_to_come(some, training.world_size)

    def after_step(self, training: Training) -> None:
        """Count what was trained; what is only read ahead, a resumed run reads again."""
        batch, facts = training.batch, self._facts
        assert batch is not None
        facts.batches += 1
        facts.hot += batch.hot
        if batch.dedup is not None:
            facts.came = facts.came.plus(KeptIds.each([batch.dedup.id_counts()]))
        if self._lot.integers(ONE_IN) == 0:
            facts.look_at(batch)

    def state_dict(self) -> dict[str, Any]:
        return {**self._facts.state_dict(), "lot": self._lot.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._facts.load_state_dict(state)
        self._lot.bit_generator.state = state["lot"]

    def at_end(self, training: Training, summary: dict[str, Any]) -> None:
        """Every rank calls it: the counts are those of all."""
        traffic = (summary.get("cost") or {}).get("traffic") or {}
        found = self._facts.beside(
            training.device,
            traffic={to: sum(phases.values()) for to, phases in traffic.items()},
            dense=sum(
                parameter.numel() * parameter.element_size()
                for group in training.dense.param_groups
                for parameter in group["params"]
            ),
            parts=summary.get("parts_ms") or {},
        )
        summary["forecasts"] = [one.values() for one in found]
        for line in lines(found):
            training.say(line)

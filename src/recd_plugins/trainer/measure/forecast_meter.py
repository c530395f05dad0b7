"""Has a run of `recd train` report at its end what was forecast and what came."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from recd_plugins.planning.access.sample import SpreadsBatches
from recd_plugins.planning.planner_bases import OrdersBatches
from recd_plugins.slots import Callback
from recd_plugins.trainer.measure.beside import lines
from recd_plugins.trainer.measure.dedupe_ahead import FIRST, KeptIds, read_ahead
from recd_plugins.trainer.measure.forecasts import Facts, is_counted

if TYPE_CHECKING:
    from recd_plugins.stack import Stack
    from recd_plugins.trainer.training import Training

__all__ = ["ForecastMeter"]


class ForecastMeter(Callback):
    """Counts what tiers serve and how many batches are hot, and reports at the end what was
    forecast.

    The lookups of one trained batch in `ONE_IN`, of hot ones and of others, are counted by tier,
    which takes some milliseconds.
    There is no collective before the end. Bytes and times come from the run's `CostMeter`, by the
    summary.
    """

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._facts = Facts(stack)

    def at_start(self, training: Training) -> None:
        """Read some of the batches that will be delivered, to forecast the dedupe factor and the
        hot batches."""
        stack, planner = self._stack, self._stack.planner()
        orders = isinstance(planner, OrdersBatches) and stack.ordered
        if not orders and not stack.registry.chosen("dedup"):
            return
        steps = None if training.step else training.settings.steps
        loader = stack.read(training.rank, training.world_size)
        if stack.registry.chosen("dedup"):
            self._facts.ahead = read_ahead(loader, steps, training.world_size)
        if isinstance(planner, OrdersBatches) and orders and isinstance(loader, SpreadsBatches):
            blocks = range(min(FIRST, loader.places))
            some = [batch for _, batch in loader.spread(blocks, 1, steps)]
            self._facts.hot_ahead = planner.hot_to_come(some, training.world_size)

    def after_step(self, training: Training) -> None:
        """Count the trained batch; a resumed run reads again what was only read ahead."""
        batch, facts = training.batch, self._facts
        assert batch is not None
        facts.batches += 1
        facts.hot += batch.hot
        if hasattr(batch.dedup, "id_counts"):
            facts.came = facts.came.plus(KeptIds.each([batch.dedup.id_counts()]))
        number = facts.hot if batch.hot else facts.batches - facts.hot
        facts.look_at(batch, drawn=is_counted(number, hot=bool(batch.hot)))

    def state_dict(self) -> dict[str, Any]:
        return self._facts.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._facts.load_state_dict(state)

    def at_end(self, training: Training, summary: dict[str, Any]) -> None:
        """Report forecasts and facts; every rank must call it, since the counts are of all
        ranks."""
        cost = summary.get("cost") or {}
        traffic = cost.get("traffic") or {}
        found = self._facts.beside(
            training.device,
            traffic={to: sum(phases.values()) for to, phases in traffic.items()},
            dense=self._stack.dense_handed,
            parts=summary.get("parts_ms") or {},
            step_ms=cost.get("step_ms") or 0.0,
        )
        summary["forecasts"] = [one.values() for one in found]
        for line in lines(found):
            training.say(line)

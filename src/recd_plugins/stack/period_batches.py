"""The batches of a dataset that grows: a loader whose epochs are its periods."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from recd_plugins.data.dataset import Split, Tables
from recd_plugins.data.growing import Together, Waiting
from recd_plugins.data.reader.period_loader import OpenPeriod, PeriodLoader, last_period
from recd_plugins.registry.feature_steps import FeatureSteps
from recd_plugins.registry.periods import Periods
from recd_plugins.registry.registry import Registry
from recd_plugins.stack.usage import Usage

if TYPE_CHECKING:
    from recd_plugins.slots import Loader

__all__ = ["PeriodBatches"]


class PeriodBatches:
    """The periods of a registry's dataset, as batches of one rank."""

    def __init__(
        self,
        registry: Registry,
        periods: Periods,
        features: FeatureSteps,
        usage: Usage,
        *,
        rank: int,
        world_size: int,
        read: Callable[[Tables, Split], Loader],
        waiting: Waiting,
    ) -> None:
        """`read` returns the batches of tables, for this rank; `waiting` is called with what is
        waited for."""
        self._registry, self._periods = registry, periods
        self._features, self._usage = features, usage
        self._rank, self._world_size = rank, world_size
        self._read, self._waiting = read, waiting

    def loader(self, together: Together) -> PeriodLoader:
        """The train split of one period after another; `together` as of `closed_period`."""
        return PeriodLoader(lambda number: self._opened(number, "train", together), self._verify)

    def within(self, state: Mapping[str, Any], split: Split) -> Loader:
        """A split of the period in which such a loader is."""
        found = self._opened(last_period(state), split, bool)
        assert found is not None  # it was trained
        assert found.loader is not None
        return found.loader

    def _opened(self, number: int, split: Split, together: Together) -> OpenPeriod | None:
        """A period as batches, once it is closed; None where the data end before it."""
        self._waiting(f"period {number}")
        period = self._periods.wait(number, speaks=self._rank == 0, together=together)
        if period is None:
            return None
        self._periods.hold(number, period)
        self._waiting(f"the tables of period {number}")
        tables = self._features.read_of(self._periods.tables(period))
        lacks = split == "train" and not tables.train.num_rows
        loader = None if lacks else self._read(tables, split)
        if loader is not None and split == "train":
            read = len(loader) * self._registry.train.batch_size * self._world_size
            self._usage.untrained(self._registry.one("reader"), tables.train.num_rows, read)
        return OpenPeriod(loader, period.fingerprint())

    def _verify(self, number: int) -> str | None:
        """The digest of a period; `DataError` where it is no longer what it was made of."""
        period = self._periods.wait(number)
        if period is not None and self._rank == 0:
            period.verify()
        return None if period is None else period.fingerprint()

"""One period after another: a rank's batches of a dataset that grows."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from recd_plugins.errors import DataError

if TYPE_CHECKING:
    from recd_plugins.data.batch import Batch
    from recd_plugins.slots import Loader

__all__ = ["OpenPeriod", "PeriodLoader", "last_period"]


class OpenPeriod(NamedTuple):
    """A period that is being read: its loader, and the digest of what it was made of."""

    loader: Loader | None
    """None if it has no rows to train on."""
    digest: str


def last_period(state: Mapping[str, Any]) -> int:
    """The period of the batch before the position in a loader's state."""
    return max(0, int(state["epoch"]) - (not state["batches"]))


class PeriodLoader:
    """The batches of one rank; a `slots.Loader` whose epochs are periods.

    The reader makes a loader for each period, and its first epoch is read. A period without a batch
    is skipped. Iterating yields the rest of a period, or nothing if the data have ended.
    """

    def __init__(
        self,
        opened: Callable[[int], OpenPeriod | None],
        verify: Callable[[int], str | None],
    ) -> None:
        """`opened` waits for a period and returns None if the data end before it. `verify` returns
        a period's digest, or raises if the period is no longer what it was made of."""
        self._opened, self._verify = opened, verify
        self._epoch = self._batch = 0
        self._digest: str | None = None
        """The digest of the period of the batch before the position."""
        self._within: dict[str, Any] | None = None
        """The reader's state within the period; None at its start."""
        self._current: tuple[int, str, Loader] | None = None

    def __len__(self) -> int:
        """The number of batches of the period in which the position is, once it is closed; 0 at the
        end."""
        found = self._open()
        return 0 if found is None else len(found)

    def __iter__(self) -> Iterator[Batch]:
        return self._read()

    @property
    def read_seconds(self) -> Mapping[str, float]:
        """Seconds of each part of reading the present period."""
        return {} if self._current is None else getattr(self._current[2], "read_seconds", {})

    def close(self) -> None:
        """Close the loader of the period under way."""
        if self._current is not None:
            close = getattr(self._current[2], "close", None)
            if close is not None:
                close()
            self._current = None

    def state_dict(self) -> dict[str, Any]:
        """The period and the batch, the digest of the latest batch's period, and the reader's own
        state."""
        return {
            "epoch": self._epoch,
            "batches": self._batch,
            "period": self._digest,
            "within": self._within,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from the state; raises `DataError` if the period has other rows than it had."""
        if set(state) != {"epoch", "batches", "period", "within"}:
            raise DataError(
                "the reader's state is from a dataset that does not grow: start a new run."
            )
        self.close()
        self._epoch, self._batch = state["epoch"], state["batches"]
        self._digest, self._within = state["period"], state["within"]
        if self._digest is not None:
            self._check(last_period(state), self._digest)
            if self._batch:
                self._open()

    def _check(self, number: int, digest: str) -> None:
        if (found := self._verify(number)) != digest:
            raise DataError(
                f"period {number} is not what it was when the checkpoint was made: its digest was "
                f"{digest}, and is {found}. Resume with the log and the folder of that run, or "
                "start a new run."
            )

    def _read(self) -> Generator[Batch, None, None]:
        loader = self._open()
        if loader is None:
            return
        assert self._current is not None  # it is open
        digest, length = self._current[1], len(loader)
        for batch in loader:
            self._batch += 1
            self._digest = digest
            if self._batch < length:
                self._within = loader.state_dict()
            else:
                self._epoch, self._batch, self._within = self._epoch + 1, 0, None
            yield batch
            if not self._batch:
                return

    def _open(self) -> Loader | None:
        """The loader of the period in which the position is, or of the next one with a batch; None
        if there is none."""
        if self._current is not None and self._current[0] == self._epoch:
            return self._current[2]
        while True:
            self.close()
            found = self._opened(self._epoch)
            if found is None:
                return None
            if found.loader is not None and len(found.loader):
                if self._within is not None:
                    found.loader.load_state_dict(self._within)
                self._current = self._epoch, found.digest, found.loader
                return found.loader
            self._epoch, self._digest = self._epoch + 1, found.digest

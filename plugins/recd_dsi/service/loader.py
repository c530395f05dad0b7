"""A rank's loader: the batches of the local reader, made by workers."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import replace
from typing import Any

from recd_dsi.service.fetching import Fetching, FetchingOptions, NobodyAnswers
from recd_dsi.service.fleet import Fleet
from recd_dsi.service.job import BatchJob
from recd_dsi.service.maker import TRIES
from recd_dsi.service.turns import Turns
from recd_plugins.api import DataError, NoticeWarning, RecdError, so_many
from recd_plugins.api.batch import Batch, LocalLoader
from recd_plugins.api.reading import DamagedStripe

__all__ = ["ServiceLoader"]

MOST_LEFT_OUT = 0.05
"""The share of stripes that may be left out (at least one may) while training goes on."""


class ServiceLoader:
    """The batches of one rank; its state is the same as that of a local reader without workers."""

    checks_ids = True
    """Workers check ids against the schema, as the local reader does."""

    def __init__(
        self,
        local: LocalLoader,
        job: BatchJob,
        rank: int,
        *,
        first_stream: int,
        fleet: Callable[[], Fleet],
        options: FetchingOptions,
        fall_back: bool,
        workers: int,
        leave_out: bool,
    ) -> None:
        """`fleet` starts or finds the workers; it is called when the first batch is requested."""
        self.job, self.fleet = job, fleet
        self.fetching: Fetching | None = None
        """The `Fetching` of the current epoch; None before the first."""
        self._local, self._rank = local, rank
        self._stream, self._options = first_stream, options
        self._fall_back, self._workers, self._leave_out = fall_back, workers, leave_out
        local.source.tries = TRIES
        self._epoch = self._batch = 0
        self._reading: weakref.ref[Generator[Batch, None, None]] | None = None
        self.read_here = 0
        """How many batches this process read itself because no worker answered."""
        self.taken = 0
        """How many batches workers made."""
        self.stalled = 0.0
        """Seconds in which the trainer waited for workers."""
        self._reported: set[str] = set()
        """The addresses of workers that make other batches, that it has reported."""

    def __len__(self) -> int:
        return len(self._local)

    def __iter__(self) -> Iterator[Batch]:
        self.close()
        reading = self._read()
        self._reading = weakref.ref(reading)
        return reading

    def spread(
        self, blocks: range, size: int, first: int | None = None
    ) -> Iterator[tuple[int, Batch]]:
        """Like the local reader's `spread`: reads in this process; the position does not change."""
        self._local.load_state_dict(self.state_dict())
        yield from self._local.spread(blocks, size, first)

    @property
    def places(self) -> int:
        """The same as the local reader's."""
        self._local.load_state_dict(self.state_dict())
        return self._local.places

    def close(self) -> None:
        """Request nothing more; workers stay for other loaders of this process."""
        reading = None if self._reading is None else self._reading()
        if reading is not None:
            reading.close()

    def about(self) -> dict[str, float]:
        """The work that this loader has done, for the coordinator's page."""
        return {
            "taken": self.taken,
            "stalled": round(self.stalled, 3),
            "read_here": self.read_here,
            "held_bytes": self.fetching.held_bytes if self.fetching is not None else 0,
            "filled": round(self.fetching.filled, 3) if self.fetching is not None else 1.0,
        }

    def state_dict(self) -> dict[str, Any]:
        """The position, in the form of the local reader's state."""
        made_for: Mapping[str, Any] = self._local.made_for
        left_out = self.job.left_out
        return {
            **({"left_out": list(left_out)} if left_out else {}),
            "epoch": self._epoch,
            "batches": self._batch,
            "made_for": dict(made_for),
            "torchdata": None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a position of this reader, or of a local one with as many streams."""
        self._local.load_state_dict(state)  # it refuses a state that was made for something else
        self._epoch, self._batch = state["epoch"], state["batches"]
        self.job = replace(self.job, left_out=self._local.source.left_out)

    def _read(self) -> Generator[Batch, None, None]:
        """The rest of the epoch: from workers, and read here while none of them answers."""
        epoch, here = self._epoch, False
        while True:
            source = self._from_here(epoch) if here else self._from_workers(epoch)
            try:
                for batch in source:
                    self._go_on()
                    yield batch
                    if self._epoch != epoch:
                        return
                if not here:
                    return
                here = False
            except NobodyAnswers:
                self._report_silence()
                here = True
            except DamagedStripe as error:
                self._leave_out_stripe(error)
                here = False
            finally:
                source.close()

    def _go_on(self) -> None:
        """Move to the next batch; after an epoch's last batch comes the start of the next epoch."""
        self._batch += 1
        if self._batch == len(self):
            self._epoch, self._batch = self._epoch + 1, 0

    def _from_workers(self, epoch: int) -> Generator[Batch, None, None]:
        """The epoch's batches from the position on; raises `NobodyAnswers` if workers are silent
        for too long."""
        order, first = self._local.source.order, self._batch
        turns = Turns(order, epoch, self._stream, self._workers)
        trains = self.job.split == "train"  # a test's next epoch may be long in coming
        afterwards = Turns(order, epoch + 1, self._stream, self._workers) if trains else None
        fetching = Fetching(
            self.job,
            self._rank,
            epoch,
            first,
            turns=turns,
            afterwards=afterwards,
            fleet=self.fleet(),
            options=self._options,
            served=self.taken > 0,
        )
        self.fetching = fetching
        self.fleet().readers.add(self)
        before = self.stalled
        try:
            for _ in range(first, order.num_batches):
                batch = fetching.get()
                self.taken, self.stalled = self.taken + 1, before + fetching.stalled
                if fetching.refused:
                    self._report_refused(fetching)
                yield batch
        finally:
            self.stalled = before + fetching.stalled
            fetching.close()

    def _from_here(self, epoch: int) -> Generator[Batch, None, None]:
        """The epoch's batches from the position on, read by this process until a worker answers."""
        assert self.fetching is not None  # no worker answered it
        with self.fetching.asking() as heard:
            for handed in self._local.source.batches(epoch, self._batch):
                batch = handed.batch
                if isinstance(batch, RecdError):
                    raise batch
                self.read_here += 1
                yield batch.pin_memory() if self._options.pin_memory else batch
                if heard.is_set():
                    return

    def _leave_out_stripe(self, error: DamagedStripe) -> None:
        """Leave a stripe out from now on, or end the epoch with an error."""
        if not self._leave_out:
            raise error
        left_out = tuple(sorted({*self.job.left_out, error.stripe}))
        stripes = len(self._local.source.order.stripe_rows)
        if len(left_out) > max(1, stripes * MOST_LEFT_OUT) or left_out == self.job.left_out:
            raise DataError(
                f"reader: {len(left_out)} of {so_many(stripes, 'stripe')} cannot be read, but "
                f"`damaged: skip` leaves out {MOST_LEFT_OUT:.0%} at most. The last: {error}"
            ) from error
        warnings.warn(
            f"reader: rank {self._rank} leaves out stripe {error.stripe} from batch {self._batch} "
            f"of epoch {self._epoch} on (`damaged: skip`): {error}",
            NoticeWarning,
            stacklevel=2,
        )
        self.job = replace(self.job, left_out=left_out)
        self._local.source.left_out = left_out

    def _report_refused(self, fetching: Fetching) -> None:
        """Warn, once of each, of workers that make other batches while others make these."""
        for remote, error in [*fetching.refused.items()]:
            if remote.address not in self._reported:
                self._reported.add(remote.address)
                warnings.warn(
                    f"reader: rank {self._rank} asks others alone: {error}",
                    NoticeWarning,
                    stacklevel=2,
                )

    def _report_silence(self) -> None:
        """Warn, once, that no worker answers, or end the epoch with an error."""
        assert self.fetching is not None
        refused = map(str, self.fetching.refused.values())
        why = self.fleet().trouble or next(refused, "").removesuffix(".")
        what = (
            f"no worker has answered for {self._options.patience:g} s{f' ({why})' if why else ''}"
        )
        if not self._fall_back:
            raise DataError(
                f"reader: {what}. Check whether they run, or let the rank read by itself in such a "
                "case (`when_none_answers: read`)."
            ) from None
        if not self.read_here:
            warnings.warn(
                f"reader: {what}: rank {self._rank} reads by itself until one does "
                "(`when_none_answers: fail` ends the run instead).",
                NoticeWarning,
                stacklevel=2,
            )

"""The local reader's loader: a rank's batches, one epoch after another, from a position that it
saves. torchdata's StatefulDataLoader runs workers and pins memory."""

from __future__ import annotations

import time
import warnings
import weakref
from collections.abc import Generator, Iterable, Iterator, Mapping
from multiprocessing import active_children
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from signal import Signals
from typing import Any

import torch
from torchdata.stateful_dataloader import StatefulDataLoader

from recd_plugins.data.batch import Batch
from recd_plugins.data.preprocess.batch_transform import BatchTransform
from recd_plugins.data.read_seconds import HAND_OVER, HandedOver, ReadSeconds
from recd_plugins.data.reader.rank_batches import RankBatches
from recd_plugins.data.reader.shared_tensors import check_shares_memory
from recd_plugins.errors import DataError, PluginError, RecdError, listed
from recd_plugins.launch.environment import die_with_parent
from recd_plugins.launch.fork_server import fork_server

__all__ = ["LocalLoader"]


class LocalLoader:
    """The batches of one rank; a `slots.Loader`.

    Iterating yields the rest of the epoch; after its last batch the position is the next epoch's
    start, so no state is ever at an epoch's end.
    """

    checks_ids = True
    """Ids are already checked against the schema: when a stripe is read, or by its footer."""

    def __init__(
        self,
        batches: RankBatches,
        *,
        workers: int,
        pin_memory: bool,
        made_for: Mapping[str, Any],
    ) -> None:
        """`made_for` is what a state depends on; a state made for anything else is refused."""
        self._batches = batches
        self._workers = workers
        self._pin_memory = pin_memory
        self._made_for = dict(made_for)
        self._length = batches.order.num_batches * max(1, workers)
        self._epoch = 0
        self._batch = 0
        self._seconds = ReadSeconds(dict.fromkeys(batches.parts, 0.0))
        self._within: dict[str, Any] | None = None
        """torchdata's state within the epoch, if it reads; None at its start."""
        self._reading: weakref.ref[Generator[Batch, None, None]] | None = None
        """The latest iterator. It ends its workers once nothing refers to it, so only a weak
        reference is kept here: a cycle would be collected some time later."""
        if workers:
            _check_picklable(batches)

    def __len__(self) -> int:
        return self._length

    @property
    def read_seconds(self) -> Mapping[str, float]:
        """Seconds of each part of reading so far: see `read_seconds.PARTS`."""
        return self._seconds.parts

    @property
    def is_read(self) -> bool:
        """Whether anybody in this process has begun to read it."""
        return self._reading is not None

    @property
    def source(self) -> RankBatches:
        """The batches by epoch and position, for code that reads them in another way."""
        return self._batches

    @property
    def made_for(self) -> Mapping[str, Any]:
        """The numbers that a state depends on."""
        return self._made_for

    def __iter__(self) -> Iterator[Batch]:
        reading = self._read()
        self._reading = weakref.ref(reading)
        return reading

    def _read(self) -> Generator[Batch, None, None]:
        self._batches.epoch, self._batches.first = self._epoch, self._batch
        # It runs workers and pins memory. Asking it for its state takes longer than cutting a batch
        # from its window.
        torchdata = self._open() if self._workers or self._pin_memory else None
        if torchdata is not None:
            if self._within or self._workers:
                self._batches.first = 0
            torchdata.load_state_dict(self._within or {})
        if self._workers:
            check_shares_memory(self._workers)
        others = {*active_children()}
        reading = iter(self._batches if torchdata is None else torchdata)
        workers = {*active_children()} - others
        try:
            asked = time.perf_counter()
            while (handed := self._next(reading, workers)) is not None:
                batch = handed.batch
                if isinstance(batch, RecdError):
                    raise batch
                waited = time.perf_counter() - max(asked, handed.finished)
                self._seconds.add_all(handed.seconds)
                self._seconds.add(HAND_OVER, waited)
                self._batch += 1
                self._within = None if torchdata is None else torchdata.state_dict()
                if self._batch == self._length:
                    self._epoch, self._batch, self._within = self._epoch + 1, 0, None
                yield batch
                asked = time.perf_counter()
        finally:
            del reading  # a traceback keeps local variables alive
            if torchdata is not None:
                # Ends the workers now: if it were collected in a cycle (an error and its traceback
                # make one), torchdata's iterator would wait 5 s for each.
                torchdata.load_state_dict({})

    def _next(
        self, reading: Iterator[HandedOver], workers: Iterable[BaseProcess]
    ) -> HandedOver | None:
        """What comes next; None at the end. Raises `PluginError` if one of the workers has
        ended."""
        try:
            return next(reading, None)
        except RuntimeError as error:
            codes = [worker.exitcode for worker in workers]
            code = next((code for code in codes if code is not None), None)
            if code is None:
                raise
            how = f"by {Signals(-code).name}" if code < 0 else f"with exit code {code}"
            ran = listed(self._batches.parts, len(self._batches.parts))
            raise PluginError(
                f"reader.workers: a worker was ended {how} while it made batches ({ran}). Check "
                "whether one of these plugins ends its process, as `sys.exit` does, or the system "
                "had no memory left; with `reader.workers: 0` the rank does the same itself, and "
                "`python -X faulthandler` shows where."
            ) from error

    def spread(
        self, blocks: range, size: int, first: int | None = None
    ) -> Iterator[tuple[int, Batch]]:
        """Randomly placed blocks of `size` batches from all over the epoch, or from its `first`
        batches; each batch comes with the number of its block. They are read in this process, and
        the position stays.

        All blocks are then equally far from those before them, so that blocks that are held out say
        what the others will be like.
        """
        yield from self._batches.spread(self._epoch, blocks, size, first)

    @property
    def places(self) -> int:
        """The number of places of the epoch where blocks may begin, given what it costs to read
        them."""
        return self._batches.places(self._epoch)

    def close(self) -> None:
        """End the workers, even if an epoch is under way."""
        reading = None if self._reading is None else self._reading()
        if reading is not None:
            reading.close()

    def state_dict(self) -> dict[str, Any]:
        """The position, as numbers and texts, and the stripes that are left out."""
        left_out = self._batches.left_out
        return {
            **({"left_out": list(left_out)} if left_out else {}),
            "epoch": self._epoch,
            "batches": self._batch,
            "made_for": dict(self._made_for),
            "torchdata": self._within,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        parts = {"epoch", "batches", "made_for", "torchdata"}
        if not isinstance(state, Mapping) or set(state) - {"left_out"} != parts:
            found = listed(sorted(state)) if isinstance(state, Mapping) else type(state).__name__
            raise DataError(
                f"the reader's state is not one of the local reader: it has {found}, as that of "
                "another reader or of hot batches (cache.hot_batches) has. Resume with the "
                "registry that made it (job.json of the checkpoint holds it), or start afresh."
            )
        theirs, ours = state["made_for"], self._made_for
        differing = [name for name in {**ours, **theirs} if theirs.get(name) != ours.get(name)]
        if differing:
            raise DataError(
                "the reader's state was made for "
                + ", ".join(f"{name} {theirs.get(name)}" for name in differing)
                + ", but here is "
                + ", ".join(f"{name} {ours.get(name)}" for name in differing)
                + ". Resume with the former, or start afresh."
            )
        if self._workers and state["batches"] and state["torchdata"] is None:
            raise DataError(
                "the reader's state, from within an epoch, is one of a reader without torchdata's "
                "workers. Resume with such a reader, or start afresh."
            )
        self._epoch, self._batch = state["epoch"], state["batches"]
        self._within = state["torchdata"]
        self._batches.left_out = tuple(state.get("left_out", ()))

    def _open(self) -> StatefulDataLoader[HandedOver]:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "'set_vital' is deprecated")  # torchdata 0.11
            return StatefulDataLoader(
                self._batches,
                batch_size=None,
                num_workers=self._workers,
                pin_memory=self._pin_memory,
                # Not this process: it has threads, so forking it could deadlock.
                multiprocessing_context=fork_server(__name__) if self._workers else None,
                worker_init_fn=_die_with_rank,
                generator=torch.Generator(),  # else it would draw from the trainer's random numbers
            )


def _die_with_rank(worker: int) -> None:
    """End a worker whose rank was killed: its own parent, the fork server, lives on."""
    die_with_parent(only=True)


def _check_picklable(batches: RankBatches) -> None:
    if (error := _why_it_stays(batches)) is None:
        return
    whose = ""
    if isinstance(batches.transform, BatchTransform):
        parts = ((who, _why_it_stays(part)) for who, part in batches.transform.by_record())
        whose = next((f"{who}: " for who, why in parts if why is not None), "")
    raise PluginError(
        f"{whose}the code that transforms batches cannot be sent to the reader's workers "
        f"({error}): make it picklable (no lambdas, no local functions, no locks, no open files), "
        "or set reader.workers to 0."
    ) from error


def _why_it_stays(part: object) -> Exception | None:
    """Why it cannot be pickled; None if it can be."""
    try:
        ForkingPickler.dumps(part)
    except Exception as error:
        return error
    return None

"""Fetches an epoch's batches from workers: ahead, in bounded memory, and from another worker if one
hangs."""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.flight as flight

from recd_dsi.service.calls import OtherTable, Refused, answered, reason
from recd_dsi.service.fleet import Fleet, Remote
from recd_dsi.service.job import MOST_RANGES, BatchJob, Request
from recd_dsi.service.shared_memory import NotShared, SharedReader, WrittenOver
from recd_dsi.service.turns import Turns
from recd_plugins.api import DataError, PluginError, RecdError
from recd_plugins.api.batch import Batch, batches_from_record

__all__ = ["Fetching", "FetchingOptions", "NobodyAnswers"]

LANES = 2
"""Calls to one worker at a time."""
BAND, BAND_BYTES = 32, 16 << 20
"""The most batches that one call asks for, and how large they may be together if there is more than
one."""
TICK = 0.1
"""Seconds between two checks for what is late."""
MOST_AHEAD = 512
"""The most batches that are requested ahead, however small they are."""
AGREEING = 2
"""How many workers must say that a batch cannot be made before that is believed; if the second one
is away, the client waits for it."""
MOST_ENDED = 5
"""How many workers may end, one after another, when they are asked for a batch."""


class NobodyAnswers(Exception):
    """No worker has answered for as long as the client waits."""


@dataclass(frozen=True, kw_only=True)
class FetchingOptions:
    """How a client asks workers."""

    prefetch_bytes: int = 64 << 20
    """How many bytes of batches may wait in the client."""
    hedge: float = 1.0
    """Seconds after which a batch that the trainer waits for is also requested from another
    worker."""
    deadline: float = 60.0
    """Seconds after which a call has failed."""
    patience: float = 5.0
    """Seconds without any worker after which `NobodyAnswers`."""
    pin_memory: bool = False
    shared_bytes: int = 64 << 20
    """Shared memory through which each worker on this machine may hand over batches; with 0 they
    come over the wire."""


class Fetching:
    """The batches of one consumer and epoch from a position on, in order."""

    def __init__(
        self,
        job: BatchJob,
        consumer: int,
        epoch: int,
        first: int,
        *,
        turns: Turns,
        afterwards: Turns | None = None,
        fleet: Fleet,
        options: FetchingOptions,
        served: bool = False,
    ) -> None:
        """`served` says that workers have made batches of this job already: those that refuse it
        are then none of its own."""
        self._served = served
        self._job, self._consumer, self._epoch = job, consumer, epoch
        self._turns, self._fleet, self._options = turns, fleet, options
        self._ranges = turns.ranges()
        self._afterwards = [] if afterwards is None else afterwards.ranges()
        self._length = self._ranges[-1][1] if self._ranges else 0
        self._client = uuid.uuid4().hex
        self._lock = threading.Lock()
        self._arrived = threading.Condition(self._lock)
        """Notified when the batch that the trainer waits for is there, or will not come."""
        self._room = threading.Condition(self._lock)
        """Notified when there may be something to request."""
        self._next = first
        """The position of the batch that the trainer takes next."""
        self._ready: dict[int, Batch] = {}
        self._bytes: dict[int, int] = {}
        self._begun: dict[int, int] = {}
        """By turn, its first position that was never requested."""
        self._again: set[int] = set()
        """Positions that were requested and must be requested again."""
        self._asked: dict[int, dict[Remote, float]] = {}
        """By position, which workers were asked for it, and when."""
        self._errors: dict[int, dict[str, RecdError]] = {}
        """By position, what workers answered on purpose."""
        self._ended: dict[int, set[str]] = {}
        """By position, the workers that were gone before they answered."""
        self.refused: dict[Remote, Refused] = {}
        """Workers that make other batches: they are not asked again in this epoch."""
        self._lanes: dict[Remote, int] = {}
        self._apart: set[str] = set()
        """Workers with which this process shares no memory."""
        self._over: set[int] = set()
        """Positions that were overwritten before they were read: they come over the wire."""
        self._recent: deque[int] = deque([1 << 20], maxlen=16)
        """Bytes of the latest batches."""
        self._closed = False
        self._alone_since = 0.0
        """When there last was a worker to ask."""
        self.stalled = 0.0
        """Seconds in which the trainer waited."""
        threading.Thread(target=self._watch, daemon=True, name="recd-watch").start()

    @property
    def held_bytes(self) -> int:
        """Bytes of the batches that wait here."""
        return sum(self._bytes.values())

    @property
    def filled(self) -> float:
        """How full the space for waiting batches is, as a share; 1 if nothing more is wanted."""
        with self._lock:
            most = min(self._depth, self._length - self._next)
            return 1.0 if self._closed or most <= 0 else len(self._ready) / most

    def get(self) -> Batch:
        """The next batch; raises `NobodyAnswers`, or the error of the batch."""
        position = self._next
        with self._lock:
            if position not in self._ready:
                self._wait_for(position)
            batch = self._ready.pop(position)
            self._bytes.pop(position)
            self._errors.pop(position, None)
            self._ended.pop(position, None)
            self._next, self._served = position + 1, True
            if self._next % self._band == 0 and not self._is_comfortable:
                self._room.notify_all()
        return batch

    @contextlib.contextmanager
    def asking(self) -> Iterator[threading.Event]:
        """Ask workers that have not refused, in a thread, while the trainer reads by itself,
        because a worker that hangs would block it for `PING`; the event is set once one answers."""
        heard, ended = threading.Event(), threading.Event()

        def ask() -> None:
            while not ended.is_set():
                there = [one for one in self._fleet.remotes() if one not in self.refused]
                if any(remote.up and remote.answers() for remote in there):
                    heard.set()
                    return
                ended.wait(TICK)

        threading.Thread(target=ask, daemon=True, name="recd-ask").start()
        try:
            yield heard
        finally:
            ended.set()

    def close(self) -> None:
        """Request nothing more."""
        with self._lock:
            self._closed = True
            self._ready.clear()
            self._bytes.clear()
            self._room.notify_all()

    def _wait_for(self, position: int) -> None:
        began = time.monotonic()
        try:
            while position not in self._ready:
                self._raise_what_is_wrong(position, began)
                self._arrived.wait(TICK)
        finally:
            self.stalled += time.monotonic() - began

    def _raise_what_is_wrong(self, position: int, began: float) -> None:
        remotes = self._fleet.remotes()
        if remotes and self.refused.keys() >= {*remotes}:
            refused = [self.refused[one] for one in remotes]
            changed = next((one for one in refused if isinstance(one, OtherTable)), None)
            if changed or not self._served:
                raise changed or refused[0]
        if len(self._ended.get(position, ())) >= MOST_ENDED:
            raise DataError(
                f"reader: {MOST_ENDED} workers ended, one after another, when they were asked for "
                f"batch {position} of epoch {self._epoch}. What `dedup` or `preprocess` runs there "
                "may end the process, or its memory may not suffice: with `reader: local` the "
                "rank itself would end, and say where."
            )
        answers = self._errors.get(position, {})
        if len(answers) >= min(AGREEING, self._fleet.seats):
            raise next(iter(answers.values()))
        others = [
            remote
            for remote in remotes
            if remote not in self.refused and remote.address not in answers
        ]
        # A worker that hangs counts as up again after each pause, but has not answered since it
        # failed.
        if any(remote.up and not remote.failures for remote in others):
            self._alone_since = time.monotonic()
        elif time.monotonic() - max(began, self._alone_since) > self._options.patience:
            raise next(iter(answers.values()), NobodyAnswers())

    def _watch(self) -> None:
        """Open lanes to new workers, and find those that hang or are gone."""
        while True:
            with self._lock:
                if self._closed:
                    return
                there = self._fleet.remotes()
                self._open_lanes(there)
                late = self._late(there)
                gone = self._lanes.keys() - {*there}
            for remote in late:
                if not remote.answers():
                    self._forget(remote)
            for remote in gone:  # its address may have another worker by now
                self._forget(remote)
            time.sleep(TICK)

    def _open_lanes(self, there: Sequence[Remote]) -> None:
        for remote in there:
            while remote not in self.refused and self._lanes.get(remote, 0) < LANES:
                self._lanes[remote] = self._lanes.get(remote, 0) + 1
                threading.Thread(
                    target=self._lane, args=(remote,), daemon=True, name="recd-lane"
                ).start()

    def _late(self, there: Sequence[Remote]) -> list[Remote]:
        """Workers from which something has been wanted for longer than `hedge`."""
        since = time.monotonic() - self._options.hedge
        late = {
            remote
            for asked in self._asked.values()
            for remote, began in asked.items()
            if began < since
        }
        return [remote for remote in there if remote in late and remote.up]

    def _forget(self, remote: Remote) -> None:
        """Request from others what was requested from a worker that hangs or is gone."""
        with self._lock:
            self._not_asked([*self._asked], remote)
            # Its lanes may hang until their deadline: new ones are opened once it is back.
            self._lanes.pop(remote, None)

    def _not_asked(self, positions: Iterable[int], remote: Remote) -> None:
        """Batches that were requested from no other worker are requested again."""
        for position in positions:
            asked = self._asked.get(position, {})
            if asked.pop(remote, None) is not None and not asked:
                del self._asked[position]
                self._again.add(position)
        self._room.notify_all()

    def _lane(self, remote: Remote) -> None:
        """Ask one worker for one band of batches after another."""
        memory = SharedReader()
        try:
            while (band := self._take(remote)) is not None:
                self._fetch(band, remote, memory)
        finally:
            memory.close()

    def _fetch(self, band: range, remote: Remote, memory: SharedReader) -> None:
        position, error, is_gone = band.start, None, False
        try:
            request = self._request(band, remote)
            answers = remote.caller.get(request.to_bytes(), self._options.deadline * len(band))
            with contextlib.closing(answers):
                for record, places in answers:
                    if record.num_rows > band.stop - position:
                        raise DataError(
                            f"{remote.address} answered {record.num_rows} batches where "
                            f"{band.stop - position} were asked for. Check which version it runs."
                        )
                    bodies = None if places is None else memory.bodies(places)
                    found = batches_from_record(record, bodies)
                    remote.worked()
                    self._deliver(range(position, band.stop), found, remote)
                    position += len(found)
                    if self._closed or position == band.stop:
                        return
            is_gone = True
            remote.failed("it ended in the middle of an answer")
        except WrittenOver:
            with self._lock:
                self._over.update(range(position, band.stop))
        except NotShared:
            self._apart.add(remote.address)
        except RecdError as found:  # damaged on its way: ask another worker
            error = found
        except (pa.ArrowException, flight.FlightError, OSError) as found:
            error = answered(found)
            if is_gone := error is None:
                remote.failed(reason(found))
        except Exception as found:  # otherwise the error would be lost
            kind = type(found).__name__
            error = PluginError(f"a batch of {remote.address} raised {kind}: {found}.")
        self._failed(range(position, band.stop), remote, error, is_gone)

    def _take(self, remote: Remote) -> range | None:
        """The next positions that this worker is to make; None once there are none."""
        with self._lock:
            while True:
                gone = all(other is not remote for other in self._fleet.remotes())
                over = self._closed or self._next >= self._length
                if over or gone or remote in self.refused:
                    if remote in self._lanes:
                        self._lanes[remote] -= 1
                    return None
                band = self._wanted(remote) if remote.up else None
                if band is not None:
                    now = time.monotonic()
                    for position in band:
                        self._asked.setdefault(position, {})[remote] = now
                        self._again.discard(position)
                    return band
                self._room.wait(TICK)

    def _wanted(self, remote: Remote) -> range | None:
        """What this worker is to make next, if anything."""
        return self._wanted_again(remote) or self._straggler(remote) or self._wanted_ahead(remote)

    def _wanted_again(self, remote: Remote) -> range | None:
        """A batch that another worker was asked for in vain."""
        for position in sorted(self._again):
            errors = self._errors.get(position, {})
            if remote.address in errors:
                continue
            if errors or self._of_turn(self._turns.turn(position)) is remote:
                return range(position, position + 1)
        return None

    def _straggler(self, remote: Remote) -> range | None:
        """The batch that the trainer waits for, if another worker takes too long: any worker may
        make it."""
        asked = self._asked.get(self._next, {})
        if len(asked) != 1 or remote in asked:
            return None
        tried = remote.address in self._errors.get(self._next, {})
        late = time.monotonic() - min(asked.values()) > 2 * self._options.hedge
        return range(self._next, self._next + 1) if late and not tried else None

    def _wanted_ahead(self, remote: Remote) -> range | None:
        """The first batches of the worker's turns that were never requested, as far ahead as there
        is room."""
        most, limit = self._band, min(self._length, self._next + self._depth)
        for turn in range(self._turns.turn(self._next), len(self._ranges)):
            first, stop = self._ranges[turn]
            if first >= limit:
                break
            first = max(self._begun.get(turn, first), self._next)
            last = min(first + most, stop, limit)
            # Few long bands are better than many short ones.
            enough = last - first == most or last == stop or first == self._next
            if first < last and enough and self._of_turn(turn) is remote:
                self._begun[turn] = last
                return range(first, last)
        return None

    def _of_turn(self, turn: int) -> Remote | None:
        return self._fleet.of_turn(turn, self.refused)

    @property
    def _mean(self) -> int:
        return max(1, sum(self._recent) // len(self._recent))

    @property
    def _depth(self) -> int:
        """The number of batches that are requested ahead."""
        return max(2, min(MOST_AHEAD, self._options.prefetch_bytes // self._mean))

    @property
    def _is_comfortable(self) -> bool:
        """Whether enough small batches wait that the trainer need not wake lanes, because they look
        again by themselves (`TICK`) soon enough."""
        return self._band == BAND and 2 * len(self._ready) >= self._depth

    @property
    def _band(self) -> int:
        """The number of batches that a call asks for: those of all lanes lie in shared memory at a
        time."""
        room = self._options.shared_bytes // (2 * LANES) or BAND_BYTES
        return max(1, min(BAND, self._depth // (2 * LANES), min(room, BAND_BYTES) // self._mean))

    def _request(self, band: range, remote: Remote) -> Request:
        turn = self._turns.turn(band.start)
        first, stop = self._ranges[turn]
        with self._lock:  # what another lane requests comes before it, whichever is heard first
            asked = [
                at
                for at, workers in self._asked.items()
                if first <= at < band.start and remote in workers
            ]
            wired = remote.address in self._apart or band.start in self._over
        ahead = [(min(asked, default=band.start), stop)]
        workers = max(1, len(self._fleet.remotes()))
        soon = 4 * workers
        later = range(turn + 1, min(turn + 1 + soon, len(self._ranges)))
        ahead += [self._ranges[one] for one in later if self._of_turn(one) is remote]
        afterwards: list[tuple[int, int]] = []
        if band.stop == ahead[-1][1]:  # nothing else of this epoch is asked for
            begins = enumerate(self._afterwards[:soon])
            afterwards = [one for number, one in begins if self._of_turn(number) is remote]
        return Request(
            job=self._job,
            consumer=self._consumer,
            epoch=self._epoch,
            batch=band.start,
            stop=band.stop,
            client=self._client,
            awaited=band.start == self._next,
            shared=self._options.shared_bytes > 0 and not wired,
            ahead=tuple(ahead[:MOST_RANGES]),
            afterwards=tuple(afterwards[:MOST_RANGES]),
        )

    def _deliver(self, band: range, found: Sequence[tuple[Batch, int]], remote: Remote) -> None:
        """The first batches of a band are there; the others are waited for from now on."""
        if self._options.pin_memory:
            found = [(batch.pin_memory(), size) for batch, size in found]
        with self._lock:
            for position, (batch, size) in zip(band, found, strict=False):
                self._recent.append(size)
                self._asked.pop(position, None)
                self._again.discard(position)
                self._over.discard(position)
                if position >= self._next and position not in self._ready and not self._closed:
                    self._ready[position] = batch
                    self._bytes[position] = size
            now = time.monotonic()
            for later in band[len(found) :]:
                asked = self._asked.get(later, {})
                if remote in asked:
                    asked[remote] = now
            if self._next in band[: len(found)]:
                self._arrived.notify()

    def _failed(self, band: range, remote: Remote, error: RecdError | None, is_gone: bool) -> None:
        """The first batch of a band was not answered, or with an error, and the others not at all;
        `is_gone`: the worker no longer is where it was asked."""
        with self._lock:
            if is_gone:
                self._ended.setdefault(band.start, set()).add(remote.address)
            if isinstance(error, Refused):
                self.refused[remote] = error
            elif error is not None:
                self._errors.setdefault(band.start, {})[remote.address] = error
            self._not_asked(band, remote)
            self._arrived.notify()

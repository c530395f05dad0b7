"""An epoch's batches from workers: asked ahead, in bounded memory, elsewhere where one hangs."""

from __future__ import annotations

import threading
import time
import uuid
from collections import deque
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.flight as flight

from recd_dsi.service.calls import Refused, answered
from recd_dsi.service.fleet import Fleet, Remote
from recd_dsi.service.job import MOST_RANGES, BatchJob, Request, Turns
from recd_plugins.api import PluginError, RecdError
from recd_plugins.api.batch import Batch, batch_from_record

__all__ = ["Fetching", "FetchingOptions", "NobodyAnswers"]

LANES = 3
"""Calls to one worker at a time."""
TICK = 0.1
"""Seconds between two looks at what is late."""
MOST_AHEAD = 512
"""Batches asked for ahead at most, however small."""
TRIES = 2
"""Workers that must say that a batch cannot be made, before it is believed."""


class NobodyAnswers(Exception):
    """No worker has answered for as long as a client is patient."""


@dataclass(frozen=True, kw_only=True)
class FetchingOptions:
    """How a client asks."""

    prefetch_bytes: int = 64 << 20
    """Batches that wait in the client, in bytes."""
    hedge: float = 1.0
    """Seconds after which a batch that the trainer waits for is asked of another worker too."""
    deadline: float = 60.0
    """Seconds after which a call has failed."""
    patience: float = 5.0
    """Seconds without any worker after which `NobodyAnswers`."""
    pin_memory: bool = False


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
        fleet: Fleet,
        options: FetchingOptions,
    ) -> None:
        self._job, self._consumer, self._epoch = job, consumer, epoch
        self._turns, self._fleet, self._options = turns, fleet, options
        self._ranges = turns.ranges()
        self._length = self._ranges[-1][1] if self._ranges else 0
        self._client = uuid.uuid4().hex
        self._change = threading.Condition()
        self._next = first
        """What the trainer takes next."""
        self._ready: dict[int, Batch] = {}
        self._bytes: dict[int, int] = {}
        self._asked: dict[int, dict[str, float]] = {}
        """By position, who was asked for it, and when."""
        self._errors: dict[int, dict[str, RecdError]] = {}
        """By position, what workers answered on purpose."""
        self._lanes: dict[str, int] = {}
        self._recent: deque[int] = deque([1 << 20], maxlen=16)
        """Bytes of the latest batches."""
        self._closed = False
        self._alone_since = 0.0
        """When there was somebody to ask."""
        self.stalled = 0.0
        """Seconds in which the trainer waited."""
        threading.Thread(target=self._watch, daemon=True, name="recd-watch").start()

    @property
    def held_bytes(self) -> int:
        """Bytes of the batches that wait here."""
        return sum(self._bytes.values())

    def get(self) -> Batch:
        """The next batch; `NobodyAnswers`, or what is wrong with it."""
        began = time.monotonic()
        position = self._next
        with self._change:
            self._open_lanes()
            while position not in self._ready:
                self._raise_what_is_wrong(position, began)
                self._change.wait(TICK)
            batch = self._ready.pop(position)
            self._bytes.pop(position)
            self._errors.pop(position, None)
            self._next = position + 1
            self._change.notify_all()
        self.stalled += time.monotonic() - began
        return batch

    def close(self) -> None:
        """Ask for nothing any more."""
        with self._change:
            self._closed = True
            self._ready.clear()
            self._change.notify_all()

    def _raise_what_is_wrong(self, position: int, began: float) -> None:
        remotes = self._fleet.remotes()
        refusals = [remote.refusal for remote in remotes if remote.refusal is not None]
        if remotes and len(refusals) == len(remotes):
            raise refusals[0]
        answers = self._errors.get(position, {})
        up = [remote.address for remote in remotes if remote.up]
        if answers and (len(answers) >= TRIES or not set(up) - answers.keys()):
            raise next(iter(answers.values()))
        # One that hangs is up again after each pause, but has not answered since it failed.
        if any(remote.up and not remote.failures for remote in remotes):
            self._alone_since = time.monotonic()
        elif time.monotonic() - max(began, self._alone_since) > self._options.patience:
            raise NobodyAnswers

    def _watch(self) -> None:
        """Open lanes to workers that came, and find out who hangs."""
        while True:
            with self._change:
                if self._closed:
                    return
                self._open_lanes()
                late = self._late()
                self._change.notify_all()
            for remote in late:
                if not remote.answers():
                    self._forget(remote)
            time.sleep(TICK)

    def _open_lanes(self) -> None:
        for remote in self._fleet.remotes():
            while remote.refusal is None and self._lanes.get(remote.address, 0) < LANES:
                self._lanes[remote.address] = self._lanes.get(remote.address, 0) + 1
                threading.Thread(
                    target=self._lane, args=(remote,), daemon=True, name="recd-lane"
                ).start()

    def _late(self) -> list[Remote]:
        """Workers of whom something is wanted for longer than `hedge`."""
        since = time.monotonic() - self._options.hedge
        late = {
            address
            for asked in self._asked.values()
            for address, began in asked.items()
            if began < since
        }
        return [remote for remote in self._fleet.remotes() if remote.address in late and remote.up]

    def _forget(self, remote: Remote) -> None:
        """Whatever was asked of a worker that hangs is asked of others."""
        with self._change:
            for position in [*self._asked]:
                self._asked[position].pop(remote.address, None)
                if not self._asked[position]:
                    del self._asked[position]
            # Its lanes may hang until their deadline: others are opened once it is back.
            self._lanes.pop(remote.address, None)
            self._change.notify_all()

    def _lane(self, remote: Remote) -> None:
        """Ask one worker for one batch after another."""
        while True:
            position = self._take(remote)
            if position is None:
                return
            try:
                request = self._request(position, remote)
                record = remote.caller.get(request.to_bytes(), self._options.deadline)
                batch = batch_from_record(record)
                if self._options.pin_memory:
                    batch = batch.pin_memory()
                remote.worked()
                self._deliver(position, batch, record.nbytes, remote)
            except RecdError as error:  # damaged on its way: ask another
                self._failed(position, remote, error)
            except (pa.ArrowException, flight.FlightError, OSError, StopIteration) as error:
                self._failed(position, remote, answered(error))
            except Exception as error:  # nobody else would hear of it
                kind = type(error).__name__
                where = f"a batch of {remote.address}"
                self._failed(position, remote, PluginError(f"{where} raised {kind}: {error}."))

    def _take(self, remote: Remote) -> int | None:
        """The next position that is this worker's to make; None once there is none."""
        with self._change:
            while True:
                gone = all(other is not remote for other in self._fleet.remotes())
                if self._closed or gone or self._next >= self._length or remote.refusal:
                    self._lanes[remote.address] = self._lanes.get(remote.address, 1) - 1
                    return None
                position = self._wanted(remote) if remote.up else None
                if position is not None:
                    self._asked.setdefault(position, {})[remote.address] = time.monotonic()
                    return position
                self._change.wait(TICK)

    def _wanted(self, remote: Remote) -> int | None:
        mean = max(1, sum(self._recent) // len(self._recent))
        depth = max(2, min(MOST_AHEAD, self._options.prefetch_bytes // mean))
        now = time.monotonic()
        for position in range(self._next, min(self._length, self._next + depth)):
            if position in self._ready or remote.address in self._errors.get(position, {}):
                continue
            asked = self._asked.get(position, {})
            if not asked:
                whose = self._fleet.of_turn(self._turns.turn(position))
                if whose is remote or position in self._errors:
                    return position
                continue
            # A straggler, for which the trainer waits: whoever is first.
            awaited = position == self._next and len(asked) == 1 and remote.address not in asked
            if awaited and now - min(asked.values()) > 2 * self._options.hedge:
                return position
        return None

    def _request(self, position: int, remote: Remote) -> Request:
        turn = self._turns.turn(position)
        ahead = [(position + 1, self._ranges[turn][1])]
        workers = max(1, len(self._fleet.remotes()))
        later = range(turn + 1, min(turn + 1 + 4 * workers, len(self._ranges)))
        ahead += [self._ranges[one] for one in later if self._fleet.of_turn(one) is remote]
        return Request(
            job=self._job,
            consumer=self._consumer,
            epoch=self._epoch,
            batch=position,
            client=self._client,
            ahead=tuple(ahead[:MOST_RANGES]),
        )

    def _deliver(self, position: int, batch: Batch, size: int, remote: Remote) -> None:
        with self._change:
            self._recent.append(size)
            self._asked.pop(position, None)
            if position >= self._next and position not in self._ready and not self._closed:
                self._ready[position] = batch
                self._bytes[position] = size
            self._change.notify_all()

    def _failed(self, position: int, remote: Remote, error: RecdError | None) -> None:
        if isinstance(error, Refused):
            remote.refusal = error
        elif error is None:
            remote.failed()
        with self._change:
            asked = self._asked.get(position, {})
            asked.pop(remote.address, None)
            if not asked:
                self._asked.pop(position, None)
            if error is not None and not isinstance(error, Refused):
                self._errors.setdefault(position, {})[remote.address] = error
            self._change.notify_all()

"""The `growing_log` dataset: a log that services still write, joined period by period.

Period e consists of the requests with a time in [origin + e P, origin + (e + 1) P), with their
events. A part of the log has come past it once a message is later than the period's end by the
join's window and disorder; what comes after that place is late, and in no period. So which messages
belong to a period depends only on what lies in each part, not on who looks when.

A closed period has a manifest beside the prepared tables, written by the first process that looked:
its places in each part, and a digest of the messages between them, against which each join is
checked. A process that goes on with closed periods first checks whether their last messages are the
log's: a topic may have been made again, or be in another cluster. A writer that begins later is in
the periods that close later.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import pyarrow.compute as pc

from recd_dedup.log.checked_log import CheckedGrowingLog
from recd_dedup.log.deleted import DeletedMessages
from recd_dedup.log.digested import digested, undigested
from recd_dedup.log.kafka import KafkaLog
from recd_dedup.log.log_period import LogPeriod, MessagesDigest, PeriodManifest
from recd_dedup.log.logged_dataset import LoggedConfig
from recd_dedup.log.shards import ZstdShards
from recd_plugins.api import (
    Context,
    DataError,
    GrowingLog,
    NoticeWarning,
    Range,
    RegistryError,
)
from recd_plugins.api.data import (
    Cuts,
    GrowingDataset,
    Location,
    NotClosed,
    Placed,
    Schema,
    write_whole,
)

__all__ = ["GrowingLogConfig", "GrowingLogDataset", "build_growing_log"]

ENDED = "ended.json"
NEVER = 1 << 62
"""A time that no message has."""

LOOKED_AT = 4
"""How many shards' last messages are compared to see whether a log is still the same."""
SECONDS = 10**8, 10**11
"""Times between these may be meant in s since 1970; in ms they would be before 1973."""
MANY_EMPTY = 1_000
"""This many periods without rows, from the first one on, cause no warning."""
AHEAD_MS = 24 * 60 * 60_000
"""How far a message may be ahead of this machine's clock."""


@dataclass(frozen=True, kw_only=True)
class GrowingLogConfig(LoggedConfig):
    """Samples from raw logs that are still being written, one period after another."""

    origin: int
    """The time at which period 0 begins, in ms since 1970. Earlier messages count as late."""
    period_ms: Annotated[int, Range(ge=1)] = 60 * 60_000
    """The length of a period in ms, by default an hour. A period is an epoch of training, and its
    rows are shuffled together."""
    until: int | None = None
    """The time at which the data end, in ms since 1970: no period begins then or later; by default
    the data have no end. Messages close the last period, as any other, and no clock does: if nobody
    writes, a rank waits for it for `patience` seconds."""
    ends_when_sealed: bool = False
    """Whether the data end once nobody writes any more and the writer that came furthest has
    closed. Otherwise, the default, a rank waits for other writers."""
    patience: Annotated[float, Range(gt=0)] = 600.0
    """The seconds for which a rank waits for a period that has not closed while no writer comes
    nearer to its end. Raise it if your writers pause for longer."""
    keep: Annotated[int, Range(ge=1)] = 8
    """The number of periods before that of the latest checkpoint whose tables are kept. Earlier
    periods keep only their manifests, from which the log gives the same tables again."""

    def start_of(self, number: int) -> int:
        """The time at which a period begins."""
        return self.origin + number * self.period_ms

    def idle_options(self) -> Mapping[str, str]:
        why = "a period knows the ids of all of its requests"
        found = {f"join.{option}": why for option in self.join.set_among("remember_ms")}
        return {**super().idle_options(), **found}


class GrowingLogDataset(GrowingDataset):
    """The periods of a log; their manifests lie in one of the registry's folders."""

    def __init__(
        self,
        config: GrowingLogConfig,
        log: GrowingLog | CheckedGrowingLog,
        folder: Path,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`clock` returns this machine's time, in seconds since 1970."""
        self.config = config
        self._clock = clock
        self.patience, self.keep = config.patience, config.keep
        self._log = log
        join = dataclasses.asdict(config.join)
        decides = [config.origin, config.period_ms, join, log.name, log.route]
        name = hashlib.sha256(json.dumps(decides).encode()).hexdigest()[:12]
        self._folder = folder / f"periods-{name}"
        self._is_same = False
        """Whether the periods found at the start have been checked to be this log's."""
        self._reported = False
        """Whether a search has been made for messages after the end of the data."""

    @property
    def schema(self) -> Schema:
        return self.config.schema

    def fingerprint(self) -> str:
        return self._folder.name

    def period(self, number: int) -> LogPeriod | None:
        """The period of a manifest; if it has none yet, it is looked for in the log, by one process
        at a time. None if the data end before it."""
        if self._ends_before(number):
            self._warn_of_later()
            return None
        if (there := self._manifest(number)) is not None:
            self._check_once(there)
        else:
            from filelock import FileLock

            self._folder.mkdir(parents=True, exist_ok=True)
            with FileLock(self._folder / ".lock"):
                last = number
                while last and self._manifest(last - 1) is None:
                    last -= 1
                for missing in range(last, number + 1):
                    if self._ends_before(missing):
                        return None
                    there = self._manifest(missing) or self._close(missing)
        if there is None:
            return None
        return LogPeriod(self.config, self._log, there, self._ends_of, self._vocabularies)

    def _close(self, number: int) -> PeriodManifest | None:
        """Write the manifest of a closed period and return it; None if the data end before it."""
        before = self._manifest(number - 1) if number else None
        begins: Mapping[str, int] = {} if before is None else before.next
        closed_before: Mapping[str, int] = {} if before is None else before.ends
        cuts = self._cuts(number, begins)
        if before is not None:
            self._check(before)
        places = (begins, closed_before, cuts.past) if cuts.ended else (begins, cuts.past)
        found = self._counted(places)
        earliest = min(found.earliest, NEVER if cuts.latest is None else cuts.latest)
        if before is None and earliest != NEVER:
            self._check_origin(earliest)
        # Messages that came after the last request's period had closed are counted in one more
        # period.
        adds = any(place >= closed_before.get(part, 0) for part, (place, _) in found.last.items())
        if cuts.ended and not adds and found.latest < self.config.start_of(number):
            write_whole(self._folder / ENDED, digested("before", number))
            return None
        manifest = PeriodManifest(
            number=number,
            begins=found.first | dict(begins),
            ends=cuts.past,
            next=cuts.before,
            messages=found.digest.messages,
            digest=found.digest.hex(),
            log=self._identity,
            last=found.last,
            before="" if before is None else before.identity,
        )
        write_whole(self._file(number), digested("period", dataclasses.asdict(manifest)))
        return manifest

    def _cuts(self, number: int, begins: Mapping[str, int]) -> Cuts:
        """The log's cuts at the end of a period, `ended` if the data end there; raises `NotClosed`
        if the period has not closed."""
        end, join = self.config.start_of(number + 1), self.config.join
        past = end + join.window_ms + join.disorder_ms
        # An event may be this much earlier than its request, which is in the next period.
        cuts = self._log.cuts(begins, end - join.disorder_ms, past)
        self._check_clock(cuts)
        ended = self.config.ends_when_sealed and cuts.ended
        if not ended and (cuts.behind or cuts.latest is None or cuts.latest < past):
            raise NotClosed(self._waits_for(cuts, past), cuts.behind)
        return dataclasses.replace(cuts, ended=ended)

    def _counted(self, places: Sequence[Mapping[str, int]]) -> _Counted:
        """The messages between the first of these places and the last, in all shards."""
        found = _Counted()
        for shard in range(self._log.shards):
            last: dict[str, Placed] = {}
            for placed in self._log.between(shard, *places):
                found.add(placed)
                last[placed.part] = placed
            found.last |= {
                part: (one.place, MessagesDigest.of([one]).hex()) for part, one in last.items()
            }
        return found

    def _check_once(self, there: PeriodManifest) -> None:
        """`_check` the last closed period among those that were there at the first look."""
        if self._is_same:
            return
        found = (file.stem.removeprefix("period-") for file in self._folder.glob("period-*.json"))
        # Others are drafts, of a process that is writing one now or was killed while writing it.
        closed = [int(number) for number in found if number.isdecimal()]
        self._check(self._manifest(max(closed)) or there)
        self._is_same = True

    def _check(self, there: PeriodManifest) -> None:
        """Raises `DataError` if the log has other messages in place of a period's last ones."""
        if there.log and (log := self._identity) and log != there.log:
            raise self._another(there, f"it was log {there.log}, and is {log}: it began anew")
        begins = {part: place for part, (place, _) in there.last.items()}
        ends = {part: there.ends[part] for part in begins}
        looked_at = 0
        for shard in range(self._log.shards):
            found: dict[str, MessagesDigest] = {}
            try:
                for placed in self._log.between(shard, begins, ends):
                    found.setdefault(placed.part, MessagesDigest()).add(placed)
            except DeletedMessages:  # the next period reports what it needs
                continue
            except DataError as error:
                raise self._another(there, str(error).rstrip(".")) from error
            for part, counted in found.items():
                place, digest = there.last[part]
                if counted.hex() != digest:
                    raise self._another(
                        there, f"in part {part!r} other messages lie from place {place:,} on"
                    )
            looked_at += bool(found)
            if looked_at == LOOKED_AT:
                return

    def _another(self, there: PeriodManifest, why: str) -> DataError:
        return DataError(
            f"{self._folder}: its periods were not made from {self._log.name} as it is now. Where "
            f"period {there.number} closed, {why}. Give this run another `folder`; or, to go on "
            "with these periods, give it the log from which they were made."
        )

    @property
    def _identity(self) -> str:
        """The identity of the log that is now in its place; not every kind of log has one."""
        return str(getattr(self._log, "identity", ""))

    def _check_origin(self, earliest: int) -> None:
        """Report a first period that begins long before the first message, or whose origin is in
        s."""
        origin = self.config.origin
        if _counts_seconds(origin, earliest):
            raise RegistryError(
                f"is {origin}, in ms since 1970, and messages come at {earliest}: it seems to be "
                "in s. Write it in ms.",
                "dataset.origin",
            )
        empty = (earliest - origin) // self.config.period_ms
        if empty >= MANY_EMPTY:
            warnings.warn(
                f"period 0 begins at {origin}, and the first messages are {empty:,} periods later: "
                "a run goes through the empty periods one by one. Set `origin` to the time at "
                "which messages begin.",
                NoticeWarning,
                stacklevel=2,
            )

    def _waits_for(self, cuts: Cuts, past: int) -> str:
        behind = "; ".join(cuts.behind[:3])
        if len(cuts.behind) > 3:
            behind += f" and {len(cuts.behind) - 3} more"
        if cuts.latest is None:
            come = f"no writer has come to {self._log.name}"
        else:
            come = f"messages come up to {cuts.latest}, and nobody writes any more: "
            come += (
                "the writer that came furthest was killed, and the next one has not begun"
                if self.config.ends_when_sealed
                else "have a writer go on, or set `ends_when_sealed`"
            )
        unit = ""
        if cuts.latest is not None and _counts_seconds(cuts.latest, past):
            unit = ": these times seem to be in s, and must be in ms"
        return f"{behind or come}; it closes at {past}{unit}"

    def _check_clock(self, cuts: Cuts) -> None:
        """Raises `DataError` if a message would close all coming periods too early."""
        now = int(self._clock() * 1000)
        if cuts.latest is not None and cuts.latest > now + AHEAD_MS:
            raise DataError(
                f"{self._log.name}: a message has the time {cuts.latest}, but by this machine's "
                f"clock it is {now}, in ms since 1970. It would close all coming periods, and what "
                "its writer adds later would be in none. Let the service write ms, and take what "
                "it wrote out of the log (of shard files: all files of the writer whose "
                "marks/*.log has that time), or begin a new log. If this clock is wrong, set it: "
                "no period has closed because of it."
            )

    def _ends_before(self, number: int) -> bool:
        config = self.config
        if config.until is not None and config.start_of(number) >= config.until:
            return True
        before = self._ended()
        return before is not None and number >= before

    def _warn_of_later(self) -> None:
        """Warn, once, that more was written after the data had ended, which is in no period."""
        ended = self._ended()
        if self._reported or ended is None:
            return
        self._reported = True
        last = self._manifest(ended - 1)
        try:
            cuts = self._log.cuts({}, NEVER, NEVER)
        except DataError:  # no more of the log is needed
            return
        if last and (cuts.behind or any(n > last.ends.get(one, 0) for one, n in cuts.past.items())):
            warnings.warn(
                f"{self._log.name}: more was written after the data had ended, and is in no "
                f"period. To read it, remove {self._folder / ENDED}, which says that they ended; "
                "to wait for writers that come later, leave out `ends_when_sealed`.",
                NoticeWarning,
                stacklevel=2,
            )

    @staticmethod
    def _held_by(file: Path, what: str) -> Any:
        """What a file of the periods holds; None if it is not there."""
        if not file.exists():
            return None
        try:
            return undigested(what, file.read_bytes())
        except ValueError as error:
            raise _unreadable(file, str(error)) from error

    def _ended(self) -> int | None:
        """The number of the period before which the data ended, if they have."""
        before: int | None = self._held_by(self._folder / ENDED, "before")
        return before

    def _manifest(self, number: int) -> PeriodManifest | None:
        file = self._file(number)
        found = self._held_by(file, "period")
        try:
            manifest = None if found is None else PeriodManifest(**found)
        except TypeError as error:  # of another version
            raise _unreadable(file, str(error)) from error
        if manifest is not None and manifest.number != number:
            raise _unreadable(file, f"it is of period {manifest.number}")
        return manifest

    @cached_property
    def _vocabularies(self) -> Mapping[Location, str]:
        """The vocabularies as they were when the first period was asked for."""
        return self.config.vocabulary_digests()

    def _ends_of(self, number: int) -> Mapping[str, int]:
        if (found := self._manifest(number)) is None:
            raise DataError(
                f"{self._file(number)}: is not there, but a later period needs it to count which "
                "events came when. Take it from a copy, or start a new run, with another `folder`."
            )
        return found.ends

    def _file(self, number: int) -> Path:
        return self._folder / f"period-{number:06}.json"


class _Counted:
    """Messages of a period, counted block by block."""

    def __init__(self) -> None:
        self.digest = MessagesDigest()
        self.first: dict[str, int] = {}
        """By part, the place of its first block."""
        self.last: dict[str, tuple[int, str]] = {}
        """By part, the place of its last block, and that block's digest."""
        self.earliest, self.latest = NEVER, -NEVER
        """The times of messages."""

    def add(self, placed: Placed) -> None:
        self.digest.add(placed)
        self.first.setdefault(placed.part, placed.place)
        times = pc.min_max(placed.messages["timestamp"]).as_py()
        self.earliest = min(self.earliest, times["min"])
        self.latest = max(self.latest, times["max"])


def _counts_seconds(time: int, other: int) -> bool:
    """Whether a time seems to be in s, compared with one in ms."""
    low, high = SECONDS
    return low <= time < high <= other


def _unreadable(file: Path, why: str) -> DataError:
    return DataError(
        f"{file}: is damaged, or of another version ({why}). Restore it from a copy, or remove it: "
        "it is then made again from the log, and a resumed run reports if that period differs."
    )


def build_growing_log(config: GrowingLogConfig, context: Context) -> GrowingLogDataset:
    log = context.neighbours["log"]
    if not isinstance(log, GrowingLog):
        raise RegistryError(
            f"{type(log).__name__} can only be read as it is now: it has no `cuts` and `between` "
            "of recd_plugins.api.GrowingLog. Choose zstd_shards, or `dataset: logged`.",
            "log",
        )
    ours = isinstance(log, KafkaLog | ZstdShards)
    return GrowingLogDataset(config, log if ours else CheckedGrowingLog(log), context.folder)

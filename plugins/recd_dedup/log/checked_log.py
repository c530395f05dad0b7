"""Checks that a log from another plugin keeps to what the `log` slot says: other answers would make
wrong samples, or fail later, in the join."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from numbers import Integral
from typing import Any, TypeVar, get_args

import pyarrow as pa

from recd_plugins.api import GrowingLog, LogStore, PluginError
from recd_plugins.api.data import MESSAGES, Cuts, LogRoute, Placed

__all__ = ["CheckedGrowingLog", "CheckedLog"]

T = TypeVar("T")


class CheckedLog:
    """Is read like the log itself, whose answers it checks: a `PluginError` says which is wrong."""

    def __init__(self, log: LogStore) -> None:
        self._log = log
        self._who = f"log: {type(log).__name__}"

    @property
    def shards(self) -> int:
        found: Any = self._log.shards
        if type(found) is not int or found < 1:
            raise self._wrong("shards", f"is {found!r}", "Let it be how many log shards there are.")
        return found

    @property
    def route(self) -> LogRoute:
        found: Any = self._log.route
        known = get_args(LogRoute)
        if found not in known:
            raise self._wrong("route", f"is {found!r}", f"Let it be one of {', '.join(known)}.")
        route: LogRoute = found
        return route

    def fingerprint(self) -> str:
        found: Any = self._log.fingerprint()
        if not isinstance(found, str):
            raise self._wrong(
                "fingerprint",
                f"returned {_called(found)}",
                "Return a text that changes with what can be read.",
            )
        return found

    def read(self, shard: int) -> Iterator[pa.RecordBatch]:
        """The messages of a shard, block by block; empty blocks are left out."""
        for messages in self._each("read", self._log.read(shard), pa.RecordBatch):
            self._check_messages("read", messages)
            if messages.num_rows:
                yield messages

    def _each(self, part: str, found: Any, kind: type[T]) -> Iterator[T]:
        fix = f"Yield them, each a {kind.__name__}."
        if not isinstance(found, Iterable):
            raise self._wrong(part, f"returned {_called(found)}", fix)
        for one in found:
            if not isinstance(one, kind):
                raise self._wrong(part, f"yielded {_called(one)}", fix)
            yield one

    def _check_messages(self, part: str, messages: pa.RecordBatch) -> None:
        fix = "Take the schema MESSAGES of recd_plugins.api.data."
        schema = messages.schema
        if schema.names != MESSAGES.names or schema.types != MESSAGES.types:
            columns = ", ".join(f"{one.name}: {one.type}" for one in schema)
            raise self._wrong(part, f"yielded the columns {columns}", fix)
        for name, column in zip(schema.names, messages.columns, strict=True):
            if column.null_count:
                raise self._wrong(
                    part, f"yielded {column.null_count} messages without {name!r}", "Give each one."
                )

    def _wrong(self, part: str, how: str, fix: str) -> PluginError:
        return PluginError(f"{self._who}: its `{part}` {how}. {fix} docs/slots.md says more.")


class CheckedGrowingLog(CheckedLog):
    """The same for a log that is read while others write to it."""

    def __init__(self, log: GrowingLog) -> None:
        super().__init__(log)
        self._growing = log

    @property
    def name(self) -> str:
        found: Any = self._growing.name
        if not isinstance(found, str):
            raise self._wrong("name", f"is {found!r}", "Let it be a text.")
        return found

    @property
    def identity(self) -> str:
        """What distinguishes it from a log that may be in its place later; empty if nothing
        does."""
        return str(getattr(self._growing, "identity", ""))

    def cuts(self, begins: Mapping[str, int], first: int, second: int) -> Cuts:
        found: Any = self._growing.cuts(begins, first, second)
        if not isinstance(found, Cuts):
            raise self._wrong("cuts", f"returned {_called(found)}", "Return Cuts.")
        for part in ("before", "past"):
            places: Any = getattr(found, part)
            if not isinstance(places, Mapping) or not all(map(_is_place, places.items())):
                raise self._wrong_cut(part, places, "Let it be a number by the name of each part.")
        behind: Any = found.behind
        if not isinstance(behind, tuple | list) or not all(isinstance(one, str) for one in behind):
            raise self._wrong_cut("behind", behind, "Let it be a tuple of texts.")
        if found.latest is not None and not _is_whole(found.latest):
            raise self._wrong_cut("latest", found.latest, "Let it be a time in ms, or None.")
        if not isinstance(found.ended, bool):
            raise self._wrong_cut("ended", found.ended, "Let it be true or false.")
        return Cuts(
            before={part: int(place) for part, place in found.before.items()},
            past={part: int(place) for part, place in found.past.items()},
            behind=tuple(behind),
            latest=None if found.latest is None else int(found.latest),
            ended=found.ended,
        )

    def between(self, shard: int, *places: Mapping[str, int]) -> Iterator[Placed]:
        for placed in self._each("between", self._growing.between(shard, *places), Placed):
            if not _is_place(placed[:2]) or not isinstance(placed.messages, pa.RecordBatch):
                kinds = ", ".join(map(_called, placed))
                fix = "Give a part's name, a number and a RecordBatch."
                raise self._wrong("between", f"yielded Placed of {kinds}", fix)
            self._check_messages("between", placed.messages)
            if placed.messages.num_rows:
                yield placed

    def _wrong_cut(self, part: str, found: object, fix: str) -> PluginError:
        return self._wrong("cuts", f"returned Cuts whose `{part}` is {found!r:.80}", fix)


def _is_place(place: tuple[object, object]) -> bool:
    """Whether this is the name of a part, and a place in it."""
    part, number = place
    return isinstance(part, str) and _is_whole(number)


def _is_whole(number: object) -> bool:
    return isinstance(number, Integral) and not isinstance(number, bool)


def _called(found: object) -> str:
    return "None" if found is None else f"a {type(found).__name__}"

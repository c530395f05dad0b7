"""The workers that a coordinator knows: a pure record of what it hears, without a clock."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeGuard

from recd_dsi.service.addresses import host_and_port
from recd_plugins.api import DataError, RecdError

__all__ = ["INTERVAL", "MOST_INTERVAL", "SILENCE", "Members", "facts_of", "interval_of"]

INTERVAL = 1.0
"""Seconds between two calls of a worker, or of a client, if there are few."""
MOST_INTERVAL = 40.0
"""Seconds between these calls if there are many."""
A_SECOND = 25
"""The most calls a second of workers, and of clients, up to that interval."""
SILENCE = 3.0
"""A worker is gone after this many intervals without a heartbeat."""
MOST_WORKERS = 1 << 16
MOST_FACTS, MOST_NAME, MOST_TEXT = 32, 32, 270
"""How much of a worker's or client's description of itself is kept, which bounds memory: the number
of facts, and the characters of a name and of a text."""


class Members:
    """Who is there, by heartbeats."""

    def __init__(self, now: float) -> None:
        self._began = self._forgot = now
        self._members: dict[str, _Member] = {}
        """By address: a worker that is started again at its address gets its old seat."""
        self._chosen: dict[str, list[dict[str, Any]]] = {}
        """The lists of workers for clients, by delivery; emptied by each change."""

    def __len__(self) -> int:
        return len(self._members)

    @property
    def interval(self) -> float:
        """Seconds until a worker should call again."""
        return interval_of(len(self._members))

    def hear(self, about: dict[str, Any], now: float) -> int:
        """Note that a worker is there; returns its seat: the one that it has, unless another worker
        has that."""
        who, address = about.get("id"), about.get("address")
        if not (isinstance(who, str) and 0 < len(who) <= 64 and _is_address(address)):
            raise DataError("a heartbeat has neither a worker's name nor its address.")
        about = {**facts_of(about), "id": who, "address": address}
        known = self._members.get(address)
        if known is None:
            known = self._add(about, about.get("seat"))
        elif known.about.get("delivery") != about.get("delivery"):
            self._chosen.clear()
        known.about, known.until = about, now + SILENCE * self.interval
        return known.seat

    def believe(self, workers: Any, delivery: str, now: float) -> None:
        """Note the workers that a client says it has: a coordinator that has just started does not
        know them."""
        if now > self._began + SILENCE * INTERVAL or not isinstance(workers, list):
            return
        taken = {member.seat for member in self._members.values()}
        for one in (one for one in workers if isinstance(one, dict)):
            address, seat = one.get("address"), one.get("seat")
            if not (isinstance(address, str) and isinstance(seat, int)):
                continue
            is_new = address not in self._members and seat not in taken
            if is_new and len(address) <= MOST_TEXT:
                about = {"id": address[:64], "address": address, "delivery": delivery}
                known = self._add(about, seat)
                taken.add(known.seat)
                known.until = now + SILENCE * MOST_INTERVAL

    def forget(self, now: float) -> None:
        """Remove workers that have been silent for too long, which frees their seats."""
        if now < self._forgot + INTERVAL / 4:
            return
        self._forgot = now
        for address in [at for at, member in self._members.items() if member.until < now]:
            self.drop(address)

    def drop(self, address: str) -> None:
        """Remove a worker."""
        if self._members.pop(address, None) is not None:
            self._chosen.clear()

    def there(self) -> list[dict[str, Any]]:
        """All of them, by seat."""
        members = sorted(self._members.values(), key=lambda member: member.seat)
        return [{**member.about, "seat": member.seat} for member in members]

    def chosen(self, delivery: str, rank: int, most: int) -> list[dict[str, Any]]:
        """The workers that a rank should ask: of its delivery, and other ones than its neighbours
        ask.

        If all present workers make other batches, it gets these: a worker refuses by digest.
        """
        able = self._able(delivery) or self._able("")
        if not able:
            return []
        first = (zlib.crc32(delivery.encode()) + rank * most) % len(able)
        return (able[first:] + able[:first])[:most]

    def _able(self, delivery: str) -> list[dict[str, Any]]:
        if not self._chosen:
            self._chosen[""] = []
            for one in self.there():
                entry = {name: one.get(name) for name in ("seat", "address", "delivery")}
                self._chosen[""].append(entry)
                self._chosen.setdefault(str(one.get("delivery")), []).append(entry)
        return self._chosen.get(delivery, [])

    def _add(self, about: dict[str, Any], seat: Any) -> _Member:
        taken = {member.seat for member in self._members.values()}
        if len(taken) >= MOST_WORKERS:
            raise DataError(f"{MOST_WORKERS} workers are there: no more may join.")
        wanted = seat if isinstance(seat, int) and 0 <= seat < MOST_WORKERS else None
        if wanted is None or wanted in taken:
            wanted = next(n for n in range(len(taken) + 1) if n not in taken)
        self._chosen.clear()
        found = self._members[about["address"]] = _Member(about, wanted, 0.0)
        return found


@dataclass
class _Member:
    about: dict[str, Any]
    seat: int
    until: float
    """The time when it counts as gone, if it says nothing before."""


def interval_of(count: int) -> float:
    """Seconds until one of this many callers should call again."""
    return min(MOST_INTERVAL, max(INTERVAL, count / A_SECOND))


def facts_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """What a worker or a client says of itself, reduced to numbers and short texts."""
    kept = {
        name: one
        for name, one in given.items()
        if len(name) <= MOST_NAME
        and (isinstance(one, int | float) or (isinstance(one, str) and len(one) <= MOST_TEXT))
    }
    return dict(islice(kept.items(), MOST_FACTS))


def _is_address(found: Any) -> TypeGuard[str]:
    """Whether it is a HOST:PORT that clients can be given."""
    if not isinstance(found, str) or len(found) > MOST_TEXT:
        return False
    try:
        host_and_port(found)
    except RecdError:
        return False
    return True

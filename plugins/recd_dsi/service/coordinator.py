"""The coordinator: knows which workers are there by their heartbeats every second. It stores
nothing.

If it is killed and started again, it knows them again at once: each client that asks says which
workers it had, and these count as there until they have been silent for too long. Clients keep the
list that they were given, so they can do without a coordinator for a while.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeGuard

import pyarrow.flight as flight

from recd_dsi.service.addresses import HOST, address_of, host_and_port, without_brackets
from recd_dsi.service.calls import (
    Server,
    flight_error,
    json_result,
    listening,
    server_options,
    starting,
)
from recd_dsi.service.credentials import NO_CREDENTIALS, Credentials
from recd_dsi.service.job import read_json
from recd_dsi.service.scaling import Scaling
from recd_plugins.api import DataError, RecdError

__all__ = ["INTERVAL", "MOST_INTERVAL", "TIMEOUT", "Coordinator", "Members"]

INTERVAL = 1.0
"""Seconds between two calls of a worker, or of a client, if there are few."""
MOST_INTERVAL = 40.0
"""Seconds between these calls if there are many."""
A_SECOND = 25
"""The most calls a second of workers, and of clients, up to that interval."""
SILENCE = 3.0
"""A worker is gone after this many intervals without a heartbeat."""
TIMEOUT = 2.0
"""Seconds within which a coordinator answers."""
MOST_WORKERS = 1 << 16
MOST_CLIENTS = 1 << 12
"""How many clients its page shows."""
MOST_FACTS, MOST_NAME, MOST_TEXT = 32, 32, 270
"""How much of a worker's or client's description of itself is kept, which bounds memory: the number
of facts, and the characters of a name and of a text."""


class Coordinator(Server):
    """Hears workers, and tells clients of them."""

    def __init__(
        self, host: str = HOST, port: int = 0, credentials: Credentials = NO_CREDENTIALS
    ) -> None:
        host = without_brackets(host)
        credentials.check(host)
        self.members = Members(time.monotonic())
        self.scaling: Scaling | None = None
        """What says how many workers there should be, if anything does."""
        self._started: set[str] = set()
        self._clients: dict[str, tuple[float, dict[str, Any]]] = {}
        self._lock = threading.Lock()
        options = server_options(credentials)
        with starting(host, port, credentials):
            super().__init__(listening(host, port, credentials), **options)
        self.address = address_of(host, self.port)

    def do_action(self, context: Any, action: flight.Action) -> list[flight.Result]:
        """`heartbeat` of a worker; `workers` for a client."""
        try:
            body, now = read_json(action.body.to_pybytes()), time.monotonic()
            with self._lock:
                self.members.forget(now)
                if action.type == "heartbeat":
                    seat = self.members.hear(body, now)
                    return json_result({"seat": seat, "interval": self.members.interval})
                if action.type == "workers":
                    return json_result(self._workers_for(body, now))
            raise DataError(f"there is no action {action.type[:40]!r}: heartbeat or workers.")
        except DataError as error:
            raise flight_error(error) from None

    def known(self) -> dict[str, Any]:
        """Workers and clients, as they describe themselves, and scaling, for its page."""
        scaling = {} if self.scaling is None else {"scaling": self.scaling.about()}
        clients = self.clients()
        with self._lock:
            self.members.forget(time.monotonic())
            return {"workers": self.members.there(), "clients": clients, **scaling}

    def clients(self) -> list[dict[str, Any]]:
        """The clients, as they describe themselves."""
        with self._lock:
            self._forget_clients(time.monotonic())
            return [client for _, client in self._clients.values()]

    def has_started(self, there: dict[int, str]) -> None:
        """Note the processes of its own workers, by seat: those that ended are removed at once."""
        with self._lock:
            for address in self._started - {*there.values()}:
                self.members.drop(address)
            self._started = {*there.values()}

    def _workers_for(self, client: dict[str, Any], now: float) -> dict[str, Any]:
        facts = _facts(client)
        who, delivery = facts.get("id"), str(facts.get("delivery", ""))
        rank, most = client.get("rank", 0), client.get("most", 1)
        if not (isinstance(rank, int) and isinstance(most, int) and min(rank, most) >= 0):
            raise DataError(
                "a client gives neither its rank nor the number of workers that it asks."
            )
        self.members.believe(client.get("workers"), delivery, now)
        # A client also describes itself; nothing depends on that.
        if isinstance(who, str) and 0 < len(who) <= 64:
            if who not in self._clients:
                self._forget_clients(now)
            if who in self._clients or len(self._clients) < MOST_CLIENTS:
                self._clients[who] = (now, facts)
        workers = self.members.chosen(delivery, rank, most)
        return {"workers": workers, "interval": _interval_of(len(self._clients))}

    def _forget_clients(self, now: float) -> None:
        since = now - SILENCE * (_interval_of(len(self._clients)) + TIMEOUT)
        self._clients = {who: one for who, one in self._clients.items() if one[0] >= since}

    def list_actions(self, context: Any) -> list[tuple[str, str]]:
        """The actions that may be requested."""
        return [("heartbeat", "A worker is there."), ("workers", "Who is there.")]


class Members:
    """Who is there: a pure record of heartbeats, with the clock passed in."""

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
        return _interval_of(len(self._members))

    def hear(self, about: dict[str, Any], now: float) -> int:
        """Note that a worker is there; returns its seat: the one that it has, unless another worker
        has that."""
        who, address = about.get("id"), about.get("address")
        if not (isinstance(who, str) and 0 < len(who) <= 64 and _is_address(address)):
            raise DataError("a heartbeat has neither a worker's name nor its address.")
        about = {**_facts(about), "id": who, "address": address}
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


def _interval_of(count: int) -> float:
    """Seconds until one of this many callers should call again."""
    return min(MOST_INTERVAL, max(INTERVAL, count / A_SECOND))


def _facts(given: Mapping[str, Any]) -> dict[str, Any]:
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

"""The coordinator: which workers are there, by what they say every second. It writes nothing down.

Killed and started again it knows as much after one interval: workers say which slot they have. Who
asked before keeps the list that it was given, so a coordinator that is away is missed by nobody.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from recd_dsi.service.calls import (
    HOST,
    NO_CREDENTIALS,
    Caller,
    Credentials,
    flight_error,
    json_result,
    listening,
    server_options,
)
from recd_dsi.service.fleet import Fleet
from recd_dsi.service.job import read_json
from recd_dsi.service.worker import Worker
from recd_plugins.api import DataError

__all__ = ["Coordinator", "Members", "join", "watch_members"]

INTERVAL = 1.0
"""Seconds between two heartbeats of a worker, where there are few."""
A_SECOND = 50
"""Heartbeats a second at most: more workers say less often that they are there."""
SILENCE = 3.0
"""Intervals without a word after which a worker is gone."""
TIMEOUT = 2.0
"""Seconds in which a coordinator answers."""
MOST_WORKERS = 1 << 16
MOST_CLIENTS = 1 << 12
"""Clients that its page shows."""


@dataclass
class _Member:
    about: dict[str, Any]
    slot: int
    heard: float


class Members:
    """Who is there: a pure record of heartbeats, by a clock that is handed in."""

    def __init__(self) -> None:
        self._members: dict[str, _Member] = {}

    def __len__(self) -> int:
        return len(self._members)

    @property
    def interval(self) -> float:
        """Seconds until a worker is to speak again."""
        return max(INTERVAL, len(self._members) / A_SECOND)

    def hear(self, about: dict[str, Any], now: float) -> int:
        """A worker is there; its slot: the one that it has, unless another one has it."""
        who, address, slot = about.get("id"), about.get("address"), about.get("slot")
        if not (isinstance(who, str) and isinstance(address, str) and 0 < len(who) <= 64):
            raise DataError("a heartbeat says neither who it is nor where.")
        known = self._members.get(who)
        if known is None:
            taken = {member.slot for member in self._members.values()}
            if len(taken) >= MOST_WORKERS:
                raise DataError(f"{MOST_WORKERS} workers are there: no more may join.")
            wanted = slot if isinstance(slot, int) and 0 <= slot < MOST_WORKERS else None
            if wanted is None or wanted in taken:
                wanted = next(n for n in range(len(taken) + 1) if n not in taken)
            known = self._members[who] = _Member(about, wanted, now)
        known.about, known.heard = about, now
        return known.slot

    def forget(self, now: float) -> None:
        """Those that were silent for too long are gone, and their slots free."""
        since = now - SILENCE * self.interval
        for who in [who for who, member in self._members.items() if member.heard < since]:
            del self._members[who]

    def there(self) -> list[dict[str, Any]]:
        """All of them, by slot."""
        members = sorted(self._members.values(), key=lambda member: member.slot)
        return [{**member.about, "slot": member.slot} for member in members]


class Coordinator(flight.FlightServerBase):
    """Hears workers, and tells clients of them."""

    def __init__(
        self, host: str = HOST, port: int = 0, credentials: Credentials = NO_CREDENTIALS
    ) -> None:
        credentials.check(host)
        self.members = Members()
        self._clients: dict[str, tuple[float, dict[str, Any]]] = {}
        self._lock = threading.Lock()
        super().__init__(listening(host, port, credentials), **server_options(credentials))
        self.address = f"{host}:{self.port}"

    def do_action(self, context: Any, action: flight.Action) -> list[flight.Result]:
        """`heartbeat` of a worker; `workers` for a client."""
        try:
            body = read_json(action.body.to_pybytes())
            with self._lock:
                self.members.forget(time.monotonic())
                if action.type == "heartbeat":
                    slot = self.members.hear(body, time.monotonic())
                    return json_result({"slot": slot, "interval": self.members.interval})
                if action.type == "workers":
                    self._note_client(body.get("client"))
                    return json_result({"workers": self.members.there()})
            raise DataError(f"there is no action {action.type[:40]!r}: heartbeat or workers.")
        except DataError as error:
            raise flight_error(error) from None

    def known(self) -> dict[str, list[dict[str, Any]]]:
        """Workers and clients, as they describe themselves: what its page shows."""
        with self._lock:
            now = time.monotonic()
            self.members.forget(now)
            self._forget_clients(now)
            clients = [client for _, client in self._clients.values()]
            return {"workers": self.members.there(), "clients": clients}

    def _note_client(self, client: Any) -> None:
        """A client asks, and describes itself; nothing depends on it."""
        now = time.monotonic()
        self._forget_clients(now)
        who = client.get("id") if isinstance(client, dict) else None
        if isinstance(who, str) and 0 < len(who) <= 64 and len(self._clients) < MOST_CLIENTS:
            self._clients[who] = (now, client)

    def _forget_clients(self, now: float) -> None:
        since = now - SILENCE * (INTERVAL + TIMEOUT)
        self._clients = {who: one for who, one in self._clients.items() if one[0] >= since}

    def list_actions(self, context: Any) -> list[tuple[str, str]]:
        """What may be asked."""
        return [("heartbeat", "A worker is there."), ("workers", "Who is there.")]


def join(worker: Worker, coordinator: str, credentials: Credentials) -> None:
    """Have a worker say for as long as it lives that it is there."""
    caller = Caller(coordinator, credentials)

    def speak() -> None:
        slot = None
        while True:
            try:
                about = {**worker.about(), "slot": slot}
                answer = caller.act("heartbeat", about, TIMEOUT)
                slot, pause = answer["slot"], float(answer["interval"])
            except (pa.ArrowException, flight.FlightError, OSError, KeyError, ValueError):
                pause = INTERVAL
            time.sleep(pause)

    threading.Thread(target=speak, daemon=True, name="recd-heartbeat").start()


def watch_members(
    fleet: Fleet, coordinator: str, credentials: Credentials, delivery: str, most: int
) -> None:
    """Keep a fleet to the workers that a coordinator knows: of one registry, at most so many.

    Where all that are there make other batches, the fleet has those: one refuses, by digest.
    """
    caller = Caller(coordinator, credentials)

    def look() -> None:
        while not fleet.closed:
            try:
                client = {**fleet.about(), "delivery": delivery}
                there = caller.act("workers", {"client": client}, TIMEOUT)["workers"]
                able = [one for one in there if one.get("delivery") == delivery] or there
                if able:
                    first = int(delivery, 16) % len(able)
                    chosen = (able[first:] + able[:first])[:most]
                    fleet.now({int(one["slot"]): str(one["address"]) for one in chosen})
            except (pa.ArrowException, flight.FlightError, OSError, KeyError, ValueError):
                pass  # the list that we have stands
            time.sleep(INTERVAL)

    threading.Thread(target=look, daemon=True, name="recd-members").start()

"""The coordinator: knows which workers are there by their heartbeats every second. It stores
nothing.

If it is killed and started again, it knows them again at once: each client that asks says which
workers it had, and these count as there until they have been silent for too long. Clients keep the
list that they were given, so they can do without a coordinator for a while.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import pyarrow.flight as flight

from recd_dsi.service.addresses import HOST, address_of, without_brackets
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
from recd_dsi.service.members import SILENCE, Members, facts_of, interval_of
from recd_dsi.service.scaling import Scaling
from recd_plugins.api import DataError

__all__ = ["TIMEOUT", "Coordinator"]

TIMEOUT = 2.0
"""Seconds within which a coordinator answers."""
MOST_CLIENTS = 1 << 12
"""How many clients its page shows."""


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
        facts = facts_of(client)
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
        return {"workers": workers, "interval": interval_of(len(self._clients))}

    def _forget_clients(self, now: float) -> None:
        since = now - SILENCE * (interval_of(len(self._clients)) + TIMEOUT)
        self._clients = {who: one for who, one in self._clients.items() if one[0] >= since}

    def list_actions(self, context: Any) -> list[tuple[str, str]]:
        """The actions that may be requested."""
        return [("heartbeat", "A worker is there."), ("workers", "Who is there.")]

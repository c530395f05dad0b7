"""Callers of a coordinator: a worker reports that it is there, and a rank asks which workers
are."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.flight as flight

from recd_dsi.service.addresses import host_and_port, is_loopback
from recd_dsi.service.calls import Caller, reason
from recd_dsi.service.coordinator import TIMEOUT
from recd_dsi.service.credentials import Credentials
from recd_dsi.service.fleet import Fleet
from recd_dsi.service.members import INTERVAL, MOST_INTERVAL
from recd_plugins.api import DataError, RecdError

__all__ = ["MANY_FAILURES", "join", "watch_members"]

TROUBLES = (pa.ArrowException, flight.FlightError, OSError, RecdError)
"""The errors of a call that brought no useful answer."""


MANY_FAILURES = 5
"""After this many failed calls, which take over a second, a worker that never answered is
reported."""


class Joins(Protocol):
    """A worker, or whatever reports that one is there."""

    def about(self) -> Mapping[str, Any]:
        """The content of a heartbeat: its id, its address, and what it delivers."""


def join(worker: Joins, coordinator: str, credentials: Credentials) -> None:
    """Make a worker report for as long as it lives that it is there; and write to standard error if
    the coordinator does not hear it."""
    caller = Caller(coordinator, credentials)
    address = str(worker.about()["address"])
    hosts = [host_and_port(one)[0] for one in (address, coordinator)]
    if [*map(is_loopback, hosts)] == [True, False]:
        _say(
            f"only ranks of this machine can call this worker at {address}, and the coordinator at "
            f"{coordinator} names it to all of them: if others are on other machines, give a "
            "`--host` by which they reach this one"
        )

    def speak() -> None:
        seat, reasons = None, set[str]()
        while True:
            try:
                about = {**worker.about(), "seat": seat}
                answer = caller.act("heartbeat", about, TIMEOUT)
                seat, pause = answer.get("seat"), _pause(answer)
                if reasons:
                    _say(f"the coordinator at {coordinator} hears this worker now")
                reasons.clear()
            except (*TROUBLES, ValueError) as error:
                pause = INTERVAL
                if (why := reason(error)) not in reasons:
                    _say(
                        f"the coordinator at {coordinator} does not hear this worker ({why}); "
                        "it tries on"
                    )
                reasons.add(why)
            time.sleep(pause)

    threading.Thread(target=speak, daemon=True, name="recd-heartbeat").start()


def watch_members(
    fleet: Fleet, coordinator: str, credentials: Credentials, delivery: str, rank: int, most: int
) -> None:
    """Keep a fleet up to date with the workers that a coordinator knows: of one registry, at most
    this many."""
    caller = Caller(coordinator, credentials)

    def look() -> None:
        reported = {""}
        while not fleet.closed:
            try:
                client = {"delivery": delivery, "rank": rank, "most": most}
                had = [{"seat": one.seat, "address": one.address} for one in fleet.remotes()]
                answer = caller.act("workers", {**fleet.about(), **client, "workers": had}, TIMEOUT)
                pause = _pause(answer)
                there, left_out = _callable(answer.get("workers"), credentials)
                if there:
                    fleet.set_workers(there)
                nobody = f"the coordinator at {coordinator} knows no worker"
                fleet.unknown = "" if there else left_out or nobody
                for why in (left_out, *_silent(fleet)):
                    if why not in reported:
                        _say(f"reader: rank {rank} leaves out a worker that was announced: {why}")
                        reported.add(why)
            except (*TROUBLES, ValueError) as error:
                pause = INTERVAL  # the present list stays
                fleet.unknown = f"the coordinator at {coordinator}: {reason(error)}"
            time.sleep(pause)

    threading.Thread(target=look, daemon=True, name="recd-members").start()


def _silent(fleet: Fleet) -> list[str]:
    """The workers that have answered none of several calls, each with why the latest one failed."""
    return [
        f"{one.address}: {one.trouble}"
        for one in fleet.remotes()
        if one.failures >= MANY_FAILURES and not one.has_answered
    ]


def _pause(answer: Mapping[str, Any]) -> float:
    """Seconds until a coordinator wants to be called again; raises `DataError` if it does not
    say."""
    found = answer.get("interval")
    if not isinstance(found, int | float):
        raise DataError("its answer does not say when to call again; see which version it runs")
    return min(MOST_INTERVAL, max(INTERVAL, found))


def _callable(there: Any, credentials: Credentials) -> tuple[dict[int, str], str]:
    """The workers, by seat, that a coordinator names and this process can and may call; and why
    another one is left out, or an empty text."""
    if not isinstance(there, list):
        raise DataError("its answer has no list of workers; see which version it runs")
    found, left_out = {}, ""
    for one in there:
        worker = one if isinstance(one, dict) else {}
        seat, address = worker.get("seat"), worker.get("address")
        try:
            if not (isinstance(seat, int) and isinstance(address, str)):
                raise DataError("it has neither seat nor address.")
            credentials.check(host_and_port(address)[0])
        except RecdError as error:
            left_out = str(error)
        else:
            found[seat] = address
    return found, left_out


def _say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)

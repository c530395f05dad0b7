"""`backend: ray`: workers as actors of Ray core, spread over the nodes of a cluster.

If an actor ends, Ray restarts it, on another node if its own has ended. It then has another port,
so the backend keeps asking each actor for its address. Only texts go through Ray: the worker in an
actor is the same as with any other backend.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recd_dsi.service.addresses import HOST, host_and_port, is_loopback
from recd_dsi.service.coordinator_callers import join
from recd_dsi.service.credentials import Credentials
from recd_dsi.service.worker import Worker, WorkerOptions, settle
from recd_plugins.api import CapabilityError, RecdError, so_many
from recd_plugins.api.reading import Delivery

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["RayBackend", "WorkerActor", "host_of"]

LOOK = 0.25
"""Seconds between two checks that all actors are there."""
LISTENS = 5.0
"""Seconds within which Ray must answer."""
SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""The frame with which both sides begin in HTTP/2, and so in gRPC."""
HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SETTINGS
START = 300.0
"""Seconds within which the first worker must serve: a cluster may have to make room for it."""


class RayBackend:
    """N workers of one registry; `changed` is called with those that are there, by seat."""

    def __init__(
        self,
        delivery: Delivery,
        options: WorkerOptions,
        workers: int,
        changed: Callable[[dict[int, str]], None],
        *,
        address: str | None,
    ) -> None:
        """`address` is that of a running Ray; if it is None, this process starts one."""
        self._ray = joined(address)
        self._changed = changed
        # Beyond loopback, ranks on any machine also call the workers of this node.
        alone = is_loopback(options.host)
        here = self._ray.util.get_node_ip_address() if alone else ""
        kind = self._ray.remote(max_restarts=-1, num_cpus=1, scheduling_strategy="SPREAD")(
            WorkerActor
        )
        given = (delivery.text(), options_text(options), here)
        self._start = lambda: kind.remote(*given)
        self._lock = threading.Lock()
        self._actors = [self._start() for _ in range(workers)]
        self._found: dict[Any, dict[str, str]] = {}
        """By actor, how it describes itself; empty while it is not there."""
        self._closed = threading.Event()
        self._error: RecdError | None = None
        self._first = threading.Event()
        self._thread = threading.Thread(target=self._keep, daemon=True, name="recd-backend")
        self._thread.start()

    def wait(self) -> None:
        """Return once a worker serves; raises an error if none can."""
        if not self._first.wait(START):
            self.close()
            free = self._ray.available_resources().get("CPU", 0)
            raise CapabilityError(
                f"reader: none of {so_many(len(self._actors), 'actor')} served within {START:g} s. "
                f"Each takes one CPU of Ray's, of which {free:g} are free: lower reader.workers, "
                "or add nodes."
            )
        if self._error is not None:
            self.close()
            raise self._error

    @property
    def pids(self) -> list[int | None]:
        """The process ids, by seat, each as its own machine counts; None if there is no worker."""
        return [int(one["pid"]) if one else None for one in self._by_seat()]

    @property
    def nodes(self) -> list[str | None]:
        """The Ray node of each worker, by seat; None if there is no worker."""
        return [one.get("node") for one in self._by_seat()]

    def resize(self, workers: int) -> None:
        """Run this many workers from now on; surplus workers in the last seats are ended."""
        with self._lock:
            gone = self._actors[workers:]
            del self._actors[workers:]
            self._actors += [self._start() for _ in range(workers - len(self._actors))]
        self._end(gone)

    def close(self) -> None:
        """End all workers."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._thread.join(5 * LOOK)
        self._end(self._actors)

    def _end(self, actors: list[Any]) -> None:
        for actor in actors:
            with contextlib.suppress(Exception):  # Ray has ended already
                self._ray.kill(actor)

    def _by_seat(self) -> list[dict[str, str]]:
        with self._lock:
            return [self._found.get(actor, {}) for actor in self._actors]

    def _keep(self) -> None:
        asked: dict[Any, Any] = {}
        before: dict[int, str] = {}
        while not self._closed.wait(LOOK):
            try:
                with self._lock:
                    waiting = [one for one in self._actors if one not in asked.values()]
                asked |= {actor.where.remote(): actor for actor in waiting}
                ready, _ = self._ray.wait([*asked], num_returns=len(asked), timeout=LOOK)
                for reference in ready:
                    found = self._answered(reference)
                    with self._lock:
                        self._found[asked.pop(reference)] = found
                        self._found = {one: self._found.get(one, {}) for one in self._actors}
            except Exception as error:  # otherwise it would go unnoticed that Ray itself ended
                if not self._closed.is_set():
                    self._error = CapabilityError(
                        f"reader: Ray does not answer ({error}). Start it again, or choose "
                        "`backend: local`."
                    )
                    self._first.set()
                return
            there = {seat: one["address"] for seat, one in enumerate(self._by_seat()) if one}
            if there != before:
                self._changed(there)
                before = there
            if there:
                self._first.set()

    def _answered(self, reference: Any) -> dict[str, str]:
        """An actor's description of itself; empty while the actor is away."""
        try:
            found: dict[str, str] = json.loads(self._ray.get(reference, timeout=0))
        except self._ray.exceptions.RayError:
            return {}
        if "error" in found:
            self._error = CapabilityError(found["error"])
            self._first.set()
            return {}
        return found


class WorkerActor:
    """The code that runs in an actor: a worker, made when its address is first asked for."""

    def __init__(self, delivery: str, options: str, trainer: str) -> None:
        """All arguments are texts: an actor that is restarted gets the same ones."""
        self._delivery, self._options, self._trainer = delivery, options, trainer
        self._answer = ""

    def where(self) -> str:
        """The worker's address, process and node as JSON, or the error why there is none."""
        if not self._answer:
            self._answer = json.dumps(self._served())
        return self._answer

    def _served(self) -> dict[str, str]:
        import ray

        settle()
        try:
            options = options_of(self._options)
            host = host_of(ray.util.get_node_ip_address(), self._trainer, options.credentials)
            worker = Worker(Delivery.from_text(self._delivery), replace(options, host=host))
        except RecdError as error:
            return {"error": str(error)}
        if options.join is not None:
            join(worker, options.join, options.credentials)
        threading.Thread(target=worker.serve, daemon=True, name="recd-worker").start()
        node = ray.get_runtime_context().get_node_id()
        return {"address": worker.address, "pid": str(os.getpid()), "node": node}


def host_of(node: str, trainer: str, credentials: Credentials) -> str:
    """The host on which a node's worker listens: loopback if it is on the trainer's machine.

    Raises `CapabilityError` if it is on another machine, and the token or TLS is missing.
    """
    if node == trainer:
        return HOST
    credentials.check(node)
    return node


def options_text(options: WorkerOptions) -> str:
    """The options as JSON; certificate and key are paths that must exist on each node, too."""
    credentials = options.credentials
    return json.dumps(
        {
            "buffer_bytes": options.buffer_bytes,
            "disk": None if options.disk is None else str(options.disk.resolve()),
            "disk_bytes": options.disk_bytes,
            "shared_bytes": options.shared_bytes,
            "join": options.join,
            "token": credentials.token,
            "certificate": None
            if credentials.certificate is None
            else str(credentials.certificate.resolve()),
            "key": None if credentials.key is None else str(credentials.key.resolve()),
        }
    )


def options_of(text: str) -> WorkerOptions:
    """The options from the text that `options_text` made."""
    found = json.loads(text)
    paths = {
        name: None if found[name] is None else Path(found[name])
        for name in ("disk", "certificate", "key")
    }
    return WorkerOptions(
        buffer_bytes=found["buffer_bytes"],
        disk=paths["disk"],
        disk_bytes=found["disk_bytes"],
        shared_bytes=found["shared_bytes"],
        join=found["join"],
        credentials=Credentials(
            token=found["token"], certificate=paths["certificate"], key=paths["key"]
        ),
    )


def joined(address: str | None) -> ModuleType:
    """The module of Ray, after this process has joined it as a driver."""
    # Ray reports each start to its makers unless this is set.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray

    except ImportError:
        raise CapabilityError(
            "reader.backend: ray needs the package 'ray', which is not installed. Install it with "
            "pip install 'recd-plugins[ray]', or choose `backend: local`."
        ) from None
    if address is not None and address != "auto":
        _check_that_it_listens(address)
    if ray.is_initialized():
        return ray
    alone: dict[str, Any] = {"include_dashboard": False, "_node_ip_address": HOST}
    try:
        ray.init(
            address or "local",
            log_to_driver=False,
            configure_logging=False,
            **({} if address else alone),
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise _absent(address, error) from None
    return ray


def _check_that_it_listens(address: str) -> None:
    """Raise `CapabilityError` if nothing listens, or something other than Ray does, such as its
    dashboard: Ray itself would try for minutes."""
    try:
        with socket.create_connection(host_and_port(address), timeout=LISTENS) as connection:
            if os.environ.get("RAY_USE_TLS", "0") != "0":
                return
            connection.sendall(HTTP2)
            if connection.recv(len(SETTINGS))[3:4] != SETTINGS[3:4]:
                raise OSError("the server there does not speak gRPC")
    except OSError as error:
        raise _absent(address, error) from None


def _absent(address: str | None, error: Exception) -> CapabilityError:
    why = str(error).partition("\n")[0].rstrip(".")
    return CapabilityError(
        f"reader.ray_address: there is no Ray at {address} ({why}). Start one with `ray start "
        "--head` and name its HOST:PORT, or leave ray_address out to have one started."
    )

"""A proxy whose connections can die without notice and stay half-open, as when a cable is cut."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

from recd_dsi.service.addresses import HOST

__all__ = ["Proxy"]


class Proxy:
    """Forwards connections to an address, until they are cut."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._server = socket.create_server((HOST, 0))
        self.target = target
        self.address = f"{HOST}:{self._server.getsockname()[1]}"
        self._cuts, self._silent_until = 0, 0.0
        self._kept: list[socket.socket] = []
        """All connections. None is closed, so that neither side notices their end."""
        threading.Thread(target=self._accept, daemon=True, name="recd-proxy").start()

    def cut(self, seconds: float) -> None:
        """Connections that exist now carry nothing any more; new ones do after a while."""
        self._cuts, self._silent_until = self._cuts + 1, time.monotonic() + seconds

    def close(self) -> None:
        """End all threads and connections."""
        self._cuts += 1
        for one in (self._server, *self._kept):
            with contextlib.suppress(OSError):
                one.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._server.accept()
            except OSError:
                return
            self._kept.append(near)
            threading.Thread(target=self._connect, args=(near,), daemon=True).start()

    def _connect(self, near: socket.socket) -> None:
        cuts = self._cuts
        time.sleep(max(0.0, self._silent_until - time.monotonic()))
        try:
            far = socket.create_connection(self._target)
        except OSError:
            near.close()
            return
        self._kept.append(far)
        for source, sink in ((near, far), (far, near)):
            given = (source, sink, cuts)
            threading.Thread(target=self._forward, args=given, daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket, cuts: int) -> None:
        try:
            while data := source.recv(1 << 16):
                if self._cuts != cuts:
                    return
                sink.sendall(data)
        except OSError:
            pass
        if self._cuts == cuts:
            for one in (source, sink):
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)

"""Nodes as network namespaces on one bridge, each behind a link that `tc tbf` shapes."""

from __future__ import annotations

import os
import subprocess
from itertools import count
from pathlib import Path

__all__ = ["DEVICE", "Network", "available", "bytes_sent"]

PREFIX = "recd-"
DEVICE = "eth0"
"""A node's link, within its namespace."""
BURST = "72kb"
"""What a link lets through at once after a pause: hardly more than a segment that a virtual link
carries whole (64 KB). Of 256 KB steps at 50 mbit would be 42 ms faster than their bytes."""
QUEUE = "64mb"
"""Room for what all peers send at once: a full queue drops, and TCP sends again."""
TCP = {
    "tcp_congestion_control": "reno",
    "tcp_slow_start_after_idle": 0,
    "tcp_limit_output_bytes": 1 << 17,
}
"""Senders that keep a link busy as long as there is something to send, and queue little before it,
where what others send waits. BBR, the default of some machines, paces each connection by what it
got before: steps then take up to 1.5 times what their bytes need, one more than the next."""

NUMBERS = count()


class Network:
    """`n_nodes` namespaces with `mbit` megabits a second out of each and into each.

    A context manager: on leaving, all that it made is gone. What a killed process left behind
    is removed by the next one.
    """

    def __init__(self, n_nodes: int, mbit: int) -> None:
        self.n_nodes = n_nodes
        self.mbit = mbit
        self._name = f"{PREFIX}{os.getpid()}-{next(NUMBERS)}-"
        self._switch = f"{self._name}switch"

    def namespace(self, node: int) -> str:
        return f"{self._name}{node}"

    def address(self, node: int) -> str:
        return f"10.77.0.{node + 1}"

    def shape(self, mbit: int) -> None:
        """Let so many megabits a second through from now on."""
        self.mbit = mbit
        rate = ["tbf", "rate", f"{mbit}mbit", "burst", BURST, "limit", QUEUE]
        for node in range(self.n_nodes):
            for end in ((self.namespace(node), DEVICE), (self._switch, _port(node))):
                _call("tc", "-n", end[0], "qdisc", "replace", "dev", end[1], "root", *rate)

    def __enter__(self) -> Network:
        _remove_abandoned()
        try:
            self._build()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._remove()

    def _build(self) -> None:
        switch = self._switch
        _ip("netns", "add", switch)
        _ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", switch, "link", "set", "bridge", "up")
        for node in range(self.n_nodes):
            name, port = self.namespace(node), _port(node)
            _ip("netns", "add", name)
            link = ["link", "add", DEVICE, "type", "veth", "peer", "name", port, "netns", switch]
            _ip("-n", name, *link)
            _ip("-n", switch, "link", "set", port, "master", "bridge", "up")
            _ip("-n", name, "addr", "add", f"{self.address(node)}/24", "dev", DEVICE)
            _ip("-n", name, "link", "set", DEVICE, "up")
            for setting, value in TCP.items():
                write = f"echo {value} > /proc/sys/net/ipv4/{setting}"
                _ip("netns", "exec", name, "sh", "-c", write)
            _ip("-n", name, "link", "set", "lo", "up")
        self.shape(self.mbit)

    def _remove(self) -> None:
        for name in _namespaces():
            if name.startswith(self._name):
                _ip("netns", "del", name)


def available() -> str:
    """What is missing to emulate a cluster here; nothing if it can be."""
    if os.geteuid() != 0:
        return "root, who alone makes network namespaces"
    try:
        with Network(1, 100):
            return ""
    except (OSError, subprocess.CalledProcessError) as error:
        return f"network namespaces with veth, bridge and tbf ({error})"


def bytes_sent() -> int:
    """What has left this process's node, by the counter of its link: headers and all."""
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        device, _, counters = line.partition(":")
        if device.strip() == DEVICE:
            return int(counters.split()[8])
    raise OSError(f"this process is in no node: it has no {DEVICE}")


def _remove_abandoned() -> None:
    for name in _namespaces():
        owner = name.removeprefix(PREFIX).split("-")[0]
        if name.startswith(PREFIX) and owner.isdigit() and not Path(f"/proc/{owner}").exists():
            _ip("netns", "del", name)


def _port(node: int) -> str:
    """The switch's end of a node's link."""
    return f"port{node}"


def _namespaces() -> list[str]:
    return [line.split()[0] for line in _ip("netns", "list").splitlines() if line]


def _ip(*arguments: str) -> str:
    return _call("ip", *arguments)


def _call(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout

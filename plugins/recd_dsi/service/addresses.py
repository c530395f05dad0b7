"""HOST:PORT, as a user names a server."""

from __future__ import annotations

import ipaddress
import re
import socket

from recd_plugins.api import CapabilityError, RegistryError

__all__ = [
    "HOST",
    "address_of",
    "called_at",
    "check_callable",
    "host_and_port",
    "is_loopback",
    "without_brackets",
]

HOST = "127.0.0.1"
"""This machine, for calls from this machine only."""
NAME = re.compile(r"[\w.-]+", re.ASCII)
"""A host's name, or its address of IPv4."""
MOST_SHOWN = 60
"""How many characters of an invalid address a message shows."""


def host_and_port(address: str) -> tuple[str, int]:
    """The host, without the brackets of IPv6, and the port; raises `RegistryError` if one is
    missing."""
    host, _, port = address.rpartition(":")
    known = port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 1 << 16
    host = without_brackets(host)
    if not known or not (NAME.fullmatch(host) or _is_ipv6(host)):
        raise RegistryError(
            f"{address[:MOST_SHOWN]!r} is no HOST:PORT. Write both, as 10.0.0.7:8815, and nothing "
            "before them."
        )
    return host, int(port)


def address_of(host: str, port: int) -> str:
    """HOST:PORT as `host_and_port` reads it: an IPv6 address gets brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def without_brackets(host: str) -> str:
    """An IPv6 address as sockets and certificates have it."""
    return host.removeprefix("[").removesuffix("]")


def is_loopback(host: str) -> bool:
    """Whether only this machine receives what is sent to this host; `localhost` counts if it
    resolves so."""
    try:
        found = socket.getaddrinfo(host, None) if host == "localhost" else []
        addresses = {address[0] for *_, address in found} or {host}
        return all(ipaddress.ip_address(one).is_loopback for one in addresses)
    except (OSError, ValueError):
        return False


def check_callable(host: str) -> None:
    """Raises `CapabilityError` for a worker's host that no rank could call."""
    if _is_everywhere(host):
        raise CapabilityError(
            f"--host: {host!r} stands for all addresses of this machine, but ranks call workers by "
            "their host. Give the one by which ranks reach this machine, for example its name, "
            "which must also be in the certificate."
        )


def called_at(address: str) -> str:
    """The address by which another machine calls a server: where that listens at all addresses of
    this machine, by the machine's name."""
    host, port = host_and_port(address)
    return address_of(socket.gethostname(), port) if _is_everywhere(host) else address


def _is_everywhere(host: str) -> bool:
    """Whether a host stands for all addresses of a machine."""
    try:
        return not host or ipaddress.ip_address(without_brackets(host)).is_unspecified
    except ValueError:
        return False


def _is_ipv6(host: str) -> bool:
    try:
        return ipaddress.IPv6Address(host).scope_id is None  # with one it stands in no location
    except ValueError:
        return False

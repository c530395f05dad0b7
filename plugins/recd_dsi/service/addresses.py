"""HOST:PORT, as a user names a server."""

from __future__ import annotations

import ipaddress
import re

from recd_plugins.api import RegistryError

__all__ = ["host_and_port"]

NAME = re.compile(r"[\w.-]+", re.ASCII)
"""A host's name, or its address of IPv4."""
MOST_SHOWN = 60
"""Characters of what is no address that a message shows."""


def host_and_port(address: str) -> tuple[str, int]:
    """The host, without the brackets of IPv6, and the port; `RegistryError` where one lacks."""
    host, _, port = address.rpartition(":")
    known = port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 1 << 16
    host = host.removeprefix("[").removesuffix("]")
    if not known or not (NAME.fullmatch(host) or _is_ipv6(host)):
        raise RegistryError(
            f"{address[:MOST_SHOWN]!r} is no HOST:PORT. Write both, as 10.0.0.7:8815, and nothing "
            "before them."
        )
    return host, int(port)


def _is_ipv6(host: str) -> bool:
    try:
        return ipaddress.IPv6Address(host).scope_id is None  # with one it stands in no location
    except ValueError:
        return False

"""HOST:PORT, as a user names a server."""

from __future__ import annotations

from recd_plugins.api import RegistryError

__all__ = ["host_and_port"]

MOST_SHOWN = 60
"""Characters of what is no address that a message shows."""


def host_and_port(address: str) -> tuple[str, int]:
    """The host, without the brackets of IPv6, and the port; `RegistryError` where one lacks."""
    host, _, port = address.rpartition(":")
    known = port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 1 << 16
    if not host or not known or "/" in host:
        raise RegistryError(
            f"{address[:MOST_SHOWN]!r} is no HOST:PORT. Write both, as 10.0.0.7:8815, and nothing "
            "before them."
        )
    return host.strip("[]"), int(port)

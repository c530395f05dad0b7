"""The credentials of the service: a token and TLS, which its processes need beyond loopback."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from recd_dsi.service.addresses import is_loopback
from recd_plugins.api import CapabilityError

__all__ = ["NO_CREDENTIALS", "Credentials", "credentials_of"]

TOKEN_CURE = "`openssl rand -hex 32 > FILE` writes one; all processes of the service have the same."
PEM_CURE = "Name a file of PEM, which begins `-----BEGIN`."


@dataclass(frozen=True, kw_only=True)
class Credentials:
    """What keeps strangers out, the same in all processes of a service."""

    token: str = ""
    """The token that callers must have."""
    certificate: Path | None = None
    """PEM: a server's own certificate; for callers, the certificates that they trust."""
    key: Path | None = None
    """PEM: the private key of the certificate, for servers."""

    def check(self, host: str) -> None:
        """Raises `CapabilityError` if a process may not listen at, or call, this host."""
        if is_loopback(host) or (self.token and self.certificate):
            return
        raise CapabilityError(
            f"{host} is reached from other machines too, where the service needs both a token "
            "(`token_file`) and TLS (`certificate`): name them, or stay on 127.0.0.1."
        )

    def pair(self) -> tuple[bytes, bytes] | None:
        """A server's certificate and key, or None without TLS; raises `CapabilityError` for files
        that hold none."""
        if self.certificate is None:
            return None
        if self.key is None:
            raise CapabilityError("a server needs the key of its certificate: name it as `key`.")
        return _pem(self.certificate, "certificate"), _pem(self.key, "key")

    def trusted(self) -> bytes | None:
        """The certificates that a caller trusts, or None without TLS. Raises `CapabilityError` if
        the file holds none: gRPC would report an `empty address list`."""
        if self.certificate is None:
            return None
        found = _pem(self.certificate, "certificate")
        try:
            trusts = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            trusts.load_verify_locations(cadata=found.decode("ascii"))
        except (ssl.SSLError, ValueError):
            raise CapabilityError(
                f"{self.certificate}: is named as `certificate`, but holds no certificate that can "
                "be read. Name the certificate of the servers, which begins `-----BEGIN "
                "CERTIFICATE-----`."
            ) from None
        return found


NO_CREDENTIALS = Credentials()
"""The credentials of a service on this machine only."""


def credentials_of(
    token_file: Path | None, certificate: Path | None, key: Path | None
) -> Credentials:
    """Credentials as options name them; raises `CapabilityError` for a file that cannot be what its
    option says."""
    token = "" if token_file is None else _token(token_file)
    for path, what in ((certificate, "certificate"), (key, "key")):
        if path is not None:
            _pem(path, what)
    return Credentials(token=token, certificate=certificate, key=key)


def _token(path: Path) -> str:
    token = _read(path, "token", TOKEN_CURE).decode("latin-1").strip()
    if not token or not (token.isascii() and token.isprintable()):
        what = "no line of ASCII" if token else "empty"
        raise CapabilityError(f"{path}: is named as `token_file`, but is {what}. {TOKEN_CURE}")
    return token


def _pem(path: Path, what: str) -> bytes:
    """The file of a certificate, or of a key."""
    found = _read(path, what, PEM_CURE)
    if b"-----BEGIN " not in found:
        raise CapabilityError(f"{path}: is named as `{what}`, but is no PEM. {PEM_CURE}")
    return found


def _read(path: Path, what: str, cure: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        if isinstance(error, PermissionError):  # a new file would not be the one that others have
            cure = "Let the user of this process read it."
        named = f"the {what} of the reader service"
        raise CapabilityError(
            f"{path}: {named} cannot be read ({error.strerror}). {cure}"
        ) from None

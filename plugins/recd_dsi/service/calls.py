"""How processes of the service call each other: Arrow Flight, with a token and TLS beyond loopback.

An error's type travels with its text: `DataError` and the like come out as they went in; any other
error counts as a worker that does not answer.
"""

from __future__ import annotations

import hmac
import json
import os
import re
import socket
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.flight as flight

from recd_dsi.service.addresses import address_of, host_and_port
from recd_dsi.service.credentials import Credentials
from recd_dsi.service.job import read_json
from recd_plugins.api import CapabilityError, DataError, PluginError, RecdError, RegistryError
from recd_plugins.api.reading import DamagedStripe

__all__ = [
    "LARGEST_ANSWER",
    "Caller",
    "OtherTable",
    "Refused",
    "Server",
    "answered",
    "flight_error",
    "json_result",
    "listening",
    "reason",
    "server_options",
    "starting",
]


class Refused(RegistryError):
    """A worker makes other batches than those it is asked for."""


class OtherTable(Refused):
    """It is of the same registry, and reads the table as it is by now, which is another one."""


ERRORS: dict[str, type[RecdError]] = {
    kind.__name__: kind
    for kind in (
        OtherTable,
        Refused,
        DataError,
        RegistryError,
        PluginError,
        CapabilityError,
        RecdError,
    )
}
"""The errors that come out as they went in; a plugin's own subclass of one comes out as that
one."""
MOST_BYTES = 1 << 20
"""The longest answer to an action."""
LARGEST_ANSWER = 1 << 30
"""Bytes of a message: the largest batch."""
CURES = {
    "wrong version number": "the server there has no TLS: start it with `--certificate` and "
    "`--key`, or call it without `certificate`",
    "failed to connect.*Socket closed": "if the server there has TLS, name its `certificate`",
    "not in peer certificate": "give it a certificate whose subjectAltName has that",
    "certificate has expired": "make a new one for all processes of the service",
    "certificate verify failed": "name the `certificate` that the server has, or that signed it",
}
"""What to do, by a pattern of gRPC's message about a failed call; the first pattern that matches
counts."""
BEFORE = re.compile(
    r"^Flight returned \w+ error, with message: "
    r"(failed to connect to all addresses; last error: (UNKNOWN|UNAVAILABLE): )?"
)
"""What comes before the reason in the message of a failed call."""
STRIPE = re.compile("[0-9]{1,18}")
"""The number of a stripe, as an error names it."""


def listening(host: str, port: int, credentials: Credentials) -> str:
    """The location of a server."""
    scheme = "grpc+tls" if credentials.certificate else "grpc"
    return f"{scheme}://{address_of(host, port)}"


def server_options(credentials: Credentials) -> dict[str, Any]:
    """The options of a `FlightServerBase` besides its location; raises `CapabilityError` for bad
    files."""
    options: dict[str, Any] = {}
    if credentials.token:
        options["middleware"] = {"token": _AsksForToken(credentials.token)}
    if (pair := credentials.pair()) is not None:
        options["tls_certificates"] = [pair]
    return options


def _hide_grpcs_log() -> None:
    """From now on, if gRPC has not begun yet, it writes nothing to standard error, unless the user
    has it do so: whoever calls says why a call failed."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")


class Server(flight.FlightServerBase):
    """A server that has no flights and takes none: Arrow's own answer to such calls is a
    traceback."""

    def __init__(self, location: str, **options: Any) -> None:
        _hide_grpcs_log()
        super().__init__(location, **options)

    def _refused(self, *asked: Any) -> NoReturn:
        raise flight_error(
            DataError("there are no flights here: this server is for the reader service alone.")
        )

    list_flights = get_flight_info = get_schema = do_put = do_exchange = _refused
    do_get: Any = _refused
    """Servers that have batches override this."""


@contextmanager
def starting(host: str, port: int, credentials: Credentials) -> Iterator[None]:
    """Inside it, a server that cannot start raises a `CapabilityError` that says where, and how to
    fix it."""
    try:
        yield
    except (pa.ArrowException, flight.FlightError, OSError) as error:
        taken = _refused_by_the_system(host, port)
        cure = "Name a host of this machine, and a free port (0 takes one)"
        if credentials.certificate is not None and not taken:
            cure = f"Check whether {credentials.key} is the key of {credentials.certificate}"
        raise CapabilityError(
            f"no server starts at {address_of(host, port)} ({taken or reason(error)}). {cure}."
        ) from None


def _refused_by_the_system(host: str, port: int) -> str:
    """Why the system lets nobody listen there, which Arrow does not say; empty if it does."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        socket.create_server((host, port), family=family).close()
    except socket.gaierror as error:
        return str(error.strerror)
    except OSError as error:
        return os.strerror(error.errno or 0)
    return ""


class _AsksForToken(flight.ServerMiddlewareFactory):
    def __init__(self, token: str) -> None:
        self._expected = f"Bearer {token}".encode()

    def start_call(self, info: Any, headers: Mapping[str, list[str]]) -> None:
        given = headers.get("authorization") or [""]
        if not hmac.compare_digest(str(given[0]).encode(), self._expected):
            raise flight.FlightUnauthenticatedError(
                "a token is needed, and this is not the right one."
            )


def flight_error(error: RecdError) -> flight.FlightError:
    """An error as a server raises it."""
    if isinstance(error, DamagedStripe):
        kind = f"{DamagedStripe.__name__} {error.stripe}"
    else:
        kind = next(one.__name__ for one in type(error).__mro__ if one in ERRORS.values())
    return flight.FlightServerError(str(error), extra_info=kind.encode())


def answered(error: BaseException) -> RecdError | None:
    """The error that a worker answered on purpose; None if the call itself failed."""
    kind = getattr(error, "extra_info", b"") or b""
    name, _, stripe = bytes(kind).decode(errors="replace").partition(" ")
    found = ERRORS.get(name)
    if found is None and not (name == DamagedStripe.__name__ and STRIPE.fullmatch(stripe)):
        return None
    # After the text, gRPC says where it came from.
    text = str(error).split(". Detail:")[0].split(" Detail: ")[0].strip()
    text = text if text.endswith(".") else text + "."
    return DamagedStripe(text, int(stripe)) if found is None else found(text)


def reason(error: BaseException) -> str:
    """Why a call failed, without gRPC's text about itself; and how to fix it, if known."""
    first = str(error).partition("\n")[0]
    found = re.split(r"\.? (gRPC client debug|Client) context|\. Detail", first)[0].rstrip(". ")
    cure = next((cure for pattern, cure in CURES.items() if re.search(pattern, found)), "")
    found = BEFORE.sub("", found)
    return f"{found}: {cure}" if cure else found


def json_result(found: Any) -> list[flight.Result]:
    """The answer to an action."""
    return [flight.Result(json.dumps(found).encode())]


class Caller:
    """Calls one server; threads share it."""

    def __init__(self, address: str, credentials: Credentials) -> None:
        """`address`: host:port."""
        self.address = address
        # Its own connection: gRPC would share one that hangs among all callers of a server. And no
        # proxy: gRPC would use `http_proxy` even for this machine, but that is for the web.
        own = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)]
        options: dict[str, Any] = {"generic_options": own}
        if (trusted := credentials.trusted()) is not None:
            options["tls_root_certs"] = trusted
        host, port = host_and_port(address)
        credentials.check(host)
        _hide_grpcs_log()
        self._client = flight.FlightClient(listening(host, port, credentials), **options)
        self._headers = (
            [(b"authorization", f"Bearer {credentials.token}".encode())]
            if credentials.token
            else []
        )

    def act(self, name: str, body: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        """An action's JSON answer; raises a Flight error if none came in time, and `DataError` for
        one that is not a mapping."""
        action = flight.Action(name, json.dumps(body).encode())
        (result,) = self._client.do_action(action, self._options(timeout))
        return read_json(result.body.to_pybytes(), MOST_BYTES)

    def get(
        self, ticket: bytes, timeout: float
    ) -> Generator[tuple[pa.RecordBatch, bytes | None], None, None]:
        """The record batches of a ticket, each with the metadata that the server sent with it."""
        reader = self._client.do_get(flight.Ticket(ticket), self._options(timeout))
        try:
            while True:
                try:
                    found = reader.read_chunk()
                except StopIteration:
                    return
                beside = found.app_metadata
                yield found.data, None if beside is None else beside.to_pybytes()
        finally:
            reader.cancel()

    def close(self) -> None:
        """Make no more calls."""
        self._client.close()

    def _options(self, timeout: float) -> flight.FlightCallOptions:
        return flight.FlightCallOptions(timeout=timeout, headers=self._headers)

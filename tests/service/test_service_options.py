"""Rung 1 (values; sockets of this machine): options of the reader service that cannot be meant."""

from __future__ import annotations

import errno
import socket
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from recd_dsi.service.addresses import HOST, address_of, check_callable, host_and_port
from recd_dsi.service.calls import Caller, Refused, answered, flight_error, reason
from recd_dsi.service.coordinator import Coordinator
from recd_dsi.service.credentials import credentials_of
from recd_dsi.service.process_fleets import fleet_of
from recd_dsi.service.ray_backend import joined
from recd_dsi.service.reader import ServiceReaderConfig
from recd_plugins.data.stripes import DamagedStripe
from recd_plugins.errors import (
    CapabilityError,
    DataError,
    RecdError,
    RegistryError,
    VersionError,
)


@pytest.mark.parametrize(
    ("address", "parts"),
    [("a.b:1", ("a.b", 1)), ("10.0.0.7:65535", ("10.0.0.7", 65535)), ("[::1]:80", ("::1", 80))],
)
def test_an_address_is_host_and_port(address: str, parts: tuple[str, int]) -> None:
    assert host_and_port(address) == parts
    assert address_of(*parts) == address


@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_a_server_at_an_address_of_ipv6_says_where_as_callers_name_it(host: str) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    server = Coordinator(host)
    try:
        assert server.address == f"[::1]:{server.port}"
        caller = Caller(server.address, credentials_of(None, None, None))
        assert "workers" in caller.act("workers", {}, 60.0)
        caller.close()
    finally:
        server.shutdown()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "[::]", ""])
def test_a_worker_at_all_addresses_of_its_machine_is_refused_for_nobody_could_call_it(
    host: str,
) -> None:
    for callable_host in ("127.0.0.1", "[::1]", "node-7.cluster.local"):
        check_callable(callable_host)
    with pytest.raises(CapabilityError, match=r"--host: .* Give the one by which ranks reach"):
        check_callable(host)


@pytest.mark.parametrize(
    "address", ["", "a", "a:", ":1", "a:0", "a:65536", "a:-1", "a:b", "ray://a:1", "http://a:1"]
)
def test_what_lacks_either_is_named(address: str) -> None:
    with pytest.raises(RegistryError, match=r"is no HOST:PORT\. Write both, as 10\.0\.0\.7:8815"):
        host_and_port(address)


@pytest.mark.parametrize(
    ("options", "where", "says"),
    [
        ({"ray_address": "auto"}, "ray_address", r"Write `backend: ray`, or take it out"),
        ({"backend": "ray", "ray_address": "a"}, "ray_address", "is no HOST:PORT"),
        ({"coordinator": "a"}, "coordinator", "is no HOST:PORT"),
        ({"coordinator": "a:1", "backend": "ray"}, "backend", "`recd serve` starts those of"),
        ({"coordinator": "a:1", "cache": Path("c")}, "cache", "`recd serve` starts those of"),
        ({"coordinator": "a:1", "key": Path("k")}, "key", "`recd serve` starts those of"),
    ],
)
def test_an_option_of_other_workers_is_refused(
    options: dict[str, Any], where: str, says: str
) -> None:
    with pytest.raises(RegistryError, match=says) as refused:
        ServiceReaderConfig(**options)
    assert refused.value.where == where


def test_options_of_the_chosen_workers_are_taken(tmp_path: Path) -> None:
    ServiceReaderConfig(backend="ray", ray_address="auto", key=tmp_path, cache=tmp_path)
    ServiceReaderConfig(coordinator="a:1", token_file=tmp_path, certificate=tmp_path)


@pytest.mark.parametrize(
    ("held", "says"),
    [(None, r"cannot be read \(No such file"), (b"", "is empty"), (b"\xff\n", "no line of ASCII")],
)
def test_a_token_that_is_none_says_what_writes_one(
    tmp_path: Path, held: bytes | None, says: str
) -> None:
    if held is not None:
        (tmp_path / "token").write_bytes(held)
    with pytest.raises(CapabilityError, match=f"token: .*{says}.*openssl rand -hex 32"):
        credentials_of(tmp_path / "token", None, None)


def test_a_token_that_may_not_be_read_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other processes have it: nobody is told to write another."""

    def refuse(path: Path) -> bytes:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(
        CapabilityError, match=r"\(Permission denied\)\. Let the user of this process"
    ):
        credentials_of(Path("token"), None, None)


@pytest.mark.parametrize("which", ["certificate", "key"])
def test_what_is_no_pem_is_named(tmp_path: Path, which: str) -> None:
    (tmp_path / "token").write_text("a token\n")
    (tmp_path / "good.pem").write_text("-----BEGIN CERTIFICATE-----\n")
    (tmp_path / "other").write_text("nothing of the kind\n")
    files = {"certificate": tmp_path / "good.pem", "key": tmp_path / "good.pem"}
    assert credentials_of(tmp_path / "token", **files).token == "a token"
    with pytest.raises(CapabilityError, match=f"other: is named as `{which}`, but is no PEM"):
        credentials_of(None, **(files | {which: tmp_path / "other"}))


@pytest.mark.parametrize(
    "held",
    [
        "-----BEGIN PRIVATE KEY-----\nMC4CAQ==\n-----END PRIVATE KEY-----\n",
        "-----BEGIN CERTIFICATE-----\nMIIgarbage\n-----END CERTIFICATE-----\n",
        "-----BEGIN CERTIFICATE-----\n",
    ],
)
def test_who_calls_by_no_certificate_hears_so_before_the_call(held: str, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("a token\n")
    (tmp_path / "cert.pem").write_text(held)
    given = credentials_of(tmp_path / "token", tmp_path / "cert.pem", None)
    with pytest.raises(
        CapabilityError, match=r"cert\.pem: is named as .* but holds no certificate"
    ):
        Caller("127.0.0.1:9", given)


def test_who_listens_and_is_no_ray_is_not_waited_for() -> None:
    pytest.importorskip("ray", reason="needs the extra `ray`")
    with socket.create_server((HOST, 0)) as server:

        def answer() -> None:
            with server.accept()[0] as caller:
                caller.recv(64)
                caller.sendall(b"HTTP/1.0 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        with pytest.raises(CapabilityError, match="the server there does not speak gRPC"):
            joined(f"{HOST}:{server.getsockname()[1]}")
        thread.join(60)


def test_a_reason_is_without_what_grpc_says_of_itself() -> None:
    told = "Flight error: no route. gRPC client debug context: UNKNOWN. Client context: OK"
    assert reason(OSError(told)) == "Flight error: no route"
    assert reason(OSError("a token is needed. Detail: Unauthenticated")) == "a token is needed"
    raw = "Flight returned unavailable error, with message: failed to connect to all addresses; "
    raw += "last error: UNKNOWN: ipv4:127.0.0.1:1: Connection refused"
    assert reason(OSError(raw)) == "ipv4:127.0.0.1:1: Connection refused"
    closed = raw.replace("Connection refused", "Socket closed")
    assert reason(OSError(closed)).endswith(
        "Socket closed: if the server there has TLS, name its `certificate`"
    )
    spoken = "Ssl handshake failed: SSL routines::wrong version number"
    assert reason(OSError(spoken)).startswith(f"{spoken}: the server there has no TLS")


class Unknown(DataError):
    """An error of a plugin's own."""


@pytest.mark.parametrize(
    ("raised", "comes"),
    [
        (Unknown("a brand that nobody knows."), DataError),
        (RecdError("what is wrong."), RecdError),
        (VersionError("two that do not belong together."), RecdError),
        (Refused("other batches."), Refused),
        (DamagedStripe("cut short.", 7), DamagedStripe),
    ],
)
def test_what_a_worker_answers_on_purpose_comes_as_its_nearest_kind(
    raised: RecdError, comes: type[RecdError]
) -> None:
    found = answered(flight_error(raised))
    assert type(found) is comes
    assert str(found) == str(raised)


def test_a_server_that_cannot_start_says_where(tmp_path: Path) -> None:
    with socket.create_server((HOST, 0)) as other:
        port = other.getsockname()[1]
        says = rf"no server starts at {HOST}:{port} \(Address already in use\)\. Name a host"
        with pytest.raises(CapabilityError, match=says):
            Coordinator(port=port)
    for name in ("cert.pem", "key.pem"):
        (tmp_path / name).write_text("-----BEGIN NOTHING-----\n")
    files = {"certificate": tmp_path / "cert.pem", "key": tmp_path / "key.pem"}
    with pytest.raises(
        CapabilityError, match=r"Check whether .*key\.pem is the key of .*cert\.pem"
    ):
        Coordinator(credentials=credentials_of(None, **files))


def test_a_coordinator_that_may_not_be_called_is_refused_each_time() -> None:
    config = ServiceReaderConfig(coordinator="10.0.0.7:8815")
    delivery: Any = SimpleNamespace(digest="a")
    for _ in range(2):  # the first time leaves no workers behind whom nobody keeps up to date
        with pytest.raises(CapabilityError, match=r"10\.0\.0\.7 is reached .* a token"):
            fleet_of(config, delivery, 0, credentials_of(None, None, None))

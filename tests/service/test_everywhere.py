"""Values, then a run: the address that a server says it can be called at, and what it writes."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyarrow import flight

from recd_dsi.service.addresses import called_at
from recd_dsi.service.calls import Caller
from recd_dsi.service.credentials import Credentials


@pytest.mark.parametrize("host", ["127.0.0.1", "10.0.0.7", "recd-coordinator.readers", "[::1]"])
def test_an_address_is_called_by_itself(host: str) -> None:
    assert called_at(f"{host}:8815") == f"{host}:8815"


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]"])
def test_all_addresses_are_called_by_the_machines_name(host: str) -> None:
    assert called_at(f"{host}:8815") == f"{socket.gethostname()}:8815"


@contextmanager
def coordinator(folder: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    subject = ["-subj", "/CN=here", "-addext", "subjectAltName=IP:127.0.0.1"]
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    made += ["-nodes", "-days", "1", "-keyout", "key.pem", "-out", "cert.pem", *subject]
    subprocess.run(made, check=True, capture_output=True, cwd=folder)
    (folder / "token").write_text("0123456789abcdef")
    secret = ["--token-file", "token", "--certificate", "cert.pem", "--key", "key.pem"]
    with subprocess.Popen(
        [sys.executable, "-m", "recd_plugins", "serve", "coordinator", *secret, *options],
        cwd=folder,
        env={key: one for key, one in os.environ.items() if key != "GRPC_VERBOSITY"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_a_coordinator_at_all_addresses_says_how_it_is_called(tmp_path: Path) -> None:
    """A caller without TLS is refused, and the coordinator's own output has nothing of gRPC's."""
    with coordinator(tmp_path, "--host", "0.0.0.0") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        name, port = process.stdout.readline().strip().rsplit(":", 1)
        assert name == f"serves {socket.gethostname()}"
        caller = Caller(f"127.0.0.1:{port}", Credentials())
        with pytest.raises(flight.FlightUnavailableError):
            caller.act("workers", {}, 60.0)
        caller.close()
        process.terminate()
        written = process.stderr.read()
    assert written.startswith(f"0.0.0.0:{port} is all addresses of this machine: ")
    assert "its name, with this token and certificate" in written
    assert "SSL" not in written

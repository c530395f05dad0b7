"""Rung 3 (a cluster of processes): workers in actors of Ray make the local reader's batches."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
from service_jobs import stack_of, until

from recd_dsi.service.addresses import HOST
from recd_dsi.service.credentials import Credentials
from recd_dsi.service.process_fleets import end_workers
from recd_dsi.service.ray_backend import host_of, joined, options_of, options_text
from recd_dsi.service.worker import WorkerOptions
from recd_plugins.errors import CapabilityError
from recd_plugins.testing.resume import assert_same_batch

pytestmark = [pytest.mark.slow, pytest.mark.ranks]


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """A Ray of two nodes, each with room for one worker; its address."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # What else needs memory on this machine ends no actor.
    os.environ["RAY_memory_monitor_refresh_ms"] = "0"  # noqa: SIM112  # Ray's own spelling
    ray = pytest.importorskip("ray", reason="needs the extra `ray`")
    from ray.cluster_utils import Cluster

    patches = pytest.MonkeyPatch()
    # Each actor imports torch, which takes a busy machine minutes.
    patches.setattr("recd_dsi.service.ray_backend.START", 1200.0)
    found = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
    )
    found.add_node(num_cpus=1)
    yield found.address
    end_workers()
    ray.shutdown()
    found.shutdown()
    patches.undo()


def test_actors_on_two_nodes_make_the_same_batches_though_one_is_killed(
    tables: Path, cluster: str
) -> None:
    reader = {"use": "service", "workers": 2, "backend": "ray", "ray_address": cluster}
    reader |= {"patience": 240}
    theirs = iter(stack_of(tables, {"use": "local"}, "ikjt").loader(0, 1))
    stack = stack_of(tables, {**reader, "prefetch_mib": 1, "when_none_answers": "fail"}, "ikjt")
    loader = stack.loader(0, 1)
    ours = iter(loader)
    for left, right in islice(zip(theirs, ours, strict=True), 10):
        assert_same_batch(left, right)
    fleet = loader.fleet()
    backend = fleet.backend
    until(lambda: None not in backend.pids)
    assert len({*backend.nodes}) == 2, backend.nodes
    killed = backend.pids[0]
    os.kill(killed, signal.SIGKILL)
    for left, right in zip(theirs, ours, strict=True):
        assert_same_batch(left, right)
    until(lambda: backend.pids[0] not in (None, killed))
    for left, right in zip(
        stack_of(tables, {"use": "local"}, "ikjt").loader(0, 1, "test"),
        stack.loader(0, 1, "test"),
        strict=True,
    ):
        assert_same_batch(left, right)
    assert loader.read_here == 0
    until(lambda: len(fleet.remotes()) == 2)


def test_who_has_no_ray_is_told_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(CapabilityError, match=r"pip install 'recd-plugins\[ray\]'"):
        joined(None)


def test_an_address_without_ray_is_refused_at_once() -> None:
    pytest.importorskip("ray", reason="needs the extra `ray`")
    with pytest.raises(CapabilityError, match=f"no Ray at {HOST}:1 "):
        joined(f"{HOST}:1")


def test_a_worker_of_another_machine_listens_there_with_token_and_tls_alone(tmp_path: Path) -> None:
    credentials = Credentials(
        token="t" * 16, certificate=tmp_path / "c.pem", key=tmp_path / "k.pem"
    )
    assert host_of("10.0.0.7", "10.0.0.7", Credentials()) == HOST
    assert host_of("10.0.0.7", "10.0.0.8", credentials) == "10.0.0.7"
    for lacking in (
        Credentials(),
        Credentials(token="t" * 16),
        Credentials(certificate=tmp_path / "c.pem"),
    ):
        with pytest.raises(CapabilityError, match="both a token"):
            host_of("10.0.0.7", "10.0.0.8", lacking)
    options = WorkerOptions(
        credentials=credentials, disk=tmp_path, buffer_bytes=5, shared_bytes=0, join="h:1"
    )
    assert options_of(options_text(options)) == options

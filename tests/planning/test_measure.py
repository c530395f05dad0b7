"""Ladder: lines through timings as values, then a measured group of four gloo ranks."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from forked import run_module
from typer.testing import CliRunner

from recd_plugins.cli.main import app
from recd_plugins.planning.cluster import measured_topology, measured_work
from recd_plugins.planning.cluster.measured_topology import (
    fit_link,
    least_device_memory,
    measure_topology,
)
from recd_plugins.planning.cluster.timer import Timer
from recd_plugins.planning.cluster.topology import GB, Link, Topology, load_topology
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.tiers.mapped_tables import IN_MEMORY, file_system

pytestmark = pytest.mark.slow


def test_a_line_through_two_payloads_is_a_link() -> None:
    truth = Link(gbps=0.5, latency_ms=2)
    seconds = {size: truth.ms(size) / 1000 for size in (4096, 1 << 20, 1 << 24)}
    found = fit_link(seconds)
    assert found.gbps == pytest.approx(truth.gbps)
    # The smallest payload is not nothing: its bytes count as latency.
    assert found.latency_ms == pytest.approx(truth.ms(4096))
    noise = fit_link({4096: 1.0, GB: 0.5})  # faster with more
    assert noise.gbps == pytest.approx(4, rel=1e-4)


def test_bandwidth_is_of_all_payloads_that_are_mostly_bytes() -> None:
    latency, smaller, larger = 0.0002, 1 << 22, 1 << 24
    seconds = {
        4096: latency,
        1 << 16: 2 * latency,  # far from either rate, but mostly latency
        smaller: latency + smaller / (0.6 * GB),
        larger: latency + larger / (0.4 * GB),
    }
    found = fit_link(seconds).gbps
    assert 0.42 < found < 0.58
    assert found == pytest.approx(fit_link({**seconds, 1 << 16: 3 * latency}).gbps)


def measured(topology: Topology) -> Topology:
    group = dist.group.WORLD
    assert group is not None
    device = torch.device("cpu")
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(measured_topology, "BETWEEN", 1 << 10)  # a rank's own work, at any length
        patches.setattr(measured_work, "LOOKUPS", 1 << 13)
        patches.setattr(measured_work, "MARKED", 1 << 14)
        # Of four rounds the slowest does not count: in it the machine may have done something else.
        return measure_topology(group, device, topology=topology, largest=1 << 20, rounds=4)


def memory_of_least() -> float:
    """On a rank: that of the smaller of two GPUs, as torch tells it of A100s."""
    group = dist.group.WORLD
    assert group is not None
    has = SimpleNamespace(total_memory=[84_974_239_744, 42_285_268_992][dist.get_rank()])
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(torch.cuda, "get_device_properties", lambda device: has)
        return least_device_memory(Timer(group, torch.device("cpu"), rounds=1))


def test_the_memory_of_gpus_is_that_of_the_smallest(gloo_pool: GlooPool) -> None:
    """In tenths of a GB of 2**30 bytes, of which an A100's 80 GB are 79.1."""
    assert gloo_pool.run(memory_of_least, world_size=2) == [39.3, 39.3]


def test_a_group_measures_itself_alike_on_every_rank(gloo_pool: GlooPool) -> None:
    given = Topology(ranks_per_node=2, host_memory_gb=3)
    results = gloo_pool.run(measured, given, world_size=4)
    found, *others = results
    assert all(other == found for other in others)
    assert (found.device, found.ranks_per_node, found.host_memory_gb) == ("cpu", 2, 3)
    links = (
        found.a2a_global, found.a2a_intra, found.a2a_cross, found.ar_global, found.ar_cross,
    )  # fmt: skip
    for link in links:
        assert link is not None
        # Loopback on any machine: from a MB/s to a TB/s, and no call takes a second.
        assert 1e-3 < link.gbps < 1e3
        assert 0 <= link.latency_ms < 1000
    assert found.a2a_global is not None
    assert found.inter_node_gbps == pytest.approx(found.a2a_global.gbps / 2)
    assert found.gather_gbps is not None
    assert found.gather_gbps > 1e-2
    assert found.chunk_gbps is not None
    assert found.chunk_gbps > 1e-2
    assert found.beside is not None
    assert 0 <= found.beside <= 1
    assert found.unique_ns is not None
    assert 0.1 < found.unique_ns < 1e5
    assert found.update_ns is not None
    assert 1 < found.update_ns < 1e6
    assert found.marks_ns is not None
    assert 0.01 < found.marks_ns < 1e4
    assert found.scattered is not None
    assert 1 <= found.scattered <= 1.5
    assert found.crowded is not None
    assert 1 <= found.crowded <= 4
    assert found.link_shared is not None
    assert 1 <= found.link_shared <= 2
    assert found.op_us is not None
    assert 0.1 < found.op_us < 1e4


def test_one_node_has_one_link(gloo_pool: GlooPool) -> None:
    found = gloo_pool.run(measured, Topology(), world_size=2)[0]
    assert found.a2a_intra == found.a2a_global
    assert found.a2a_cross is None
    assert found.ar_cross is None
    assert found.link_shared is None
    assert found.inter_node_gbps is None


def test_a_file_that_is_no_topology_is_not_replaced(tmp_path: Path) -> None:
    mine = tmp_path / "registry.yaml"
    mine.write_text("plugins: [recd_dlrm]\n")
    done = CliRunner().invoke(app, ["topology", "measure", "--ranks", "1", "--save", str(mine)])
    assert done.exit_code == 2
    assert f"--save: {mine}" in done.stderr
    assert "Name another file, or remove this one" in done.stderr
    assert mine.read_text() == "plugins: [recd_dlrm]\n"


def test_the_command_saves_a_topology(tmp_path: Path) -> None:
    save = tmp_path / "here.yaml"
    run = ["topology", "measure", "--ranks", "1", "--device", "cpu", "--rounds", "1"]
    on_disk = file_system(tmp_path) not in IN_MEMORY
    run += ["--save", str(save), "--json"]
    run += ["--mapped-folder", str(tmp_path)] if on_disk else []
    done = run_module("recd_plugins", *run, folder=tmp_path)
    assert done.code == 0, done.err
    values = json.loads(done.out)
    found = load_topology(save, "topology")
    assert values["gather_gbps"] == found.gather_gbps
    assert found.a2a_global is None  # one rank exchanges nothing
    assert (found.mapped_ns is not None) == on_disk

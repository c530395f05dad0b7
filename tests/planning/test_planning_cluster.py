"""Ladder: topologies as values and as files; the clusters that they amount to."""

from __future__ import annotations

from pathlib import Path

import pytest

from recd_plugins.errors import CapabilityError, RegistryError
from recd_plugins.launch.environment import LOCAL_SIZES, TASKS, TASKS_PER_NODE
from recd_plugins.planning.cluster.cluster import Cluster
from recd_plugins.planning.cluster.topology import (
    GB,
    PRESETS,
    Link,
    Topology,
    load_topology,
    save_topology,
)
from recd_plugins.registry import Registry


def test_a_link_takes_its_latency_and_its_share_of_a_second() -> None:
    assert Link(gbps=2, latency_ms=3).ms(GB) == 503
    assert Link(gbps=2).ms(0) == 0


def test_a_cluster_takes_what_the_topology_measured() -> None:
    cluster = Cluster.of(PRESETS["flexshard_a100"], 32)
    assert (cluster.n_nodes, cluster.ranks_per_node, cluster.world_size) == (4, 8, 32)
    assert cluster.a2a_global == Link(gbps=24)
    assert cluster.ar_cross == Link(gbps=11.4, latency_ms=1.5)


def test_ranks_of_one_place_exchange_as_all_do_where_nobody_measured_it() -> None:
    every, own = Link(gbps=0.02), Link(gbps=0.01)
    assert Cluster.of(Topology(ranks_per_node=2, a2a_global=every), 4).a2a_cross == every
    topology = Topology(ranks_per_node=2, a2a_global=every, a2a_cross=own)
    assert Cluster.of(topology, 4).a2a_cross == own
    derived = Cluster.of(Topology(ranks_per_node=2), 4)
    assert derived.a2a_cross == derived.a2a_global


def test_what_is_not_measured_follows_from_the_two_links() -> None:
    cluster = Cluster.of(Topology(ranks_per_node=8, intra_node_gbps=300, inter_node_gbps=25), 32)
    # Of a payload, 24 of 32 parts leave the node at 25 GB/s; 7 of 8 stay there at 300.
    assert cluster.a2a_global.gbps == pytest.approx(25 * 32 / 24)
    assert cluster.a2a_intra.gbps == pytest.approx(300 * 8 / 7)
    # A ring over 4 nodes moves 2 * 3/4 of it; within a node first 2 * 7/8 at 300.
    assert cluster.ar_cross.gbps == pytest.approx(25 / 1.5)
    assert cluster.ar_global.gbps == pytest.approx(1 / (1.75 / 300 + 1.5 / 25 / 8))


def test_the_presets_links_are_near_the_papers_measured_ones() -> None:
    derived = Cluster.of(PRESETS["a100_zionex"], 32)
    measured = Cluster.of(PRESETS["flexshard_a100"], 32)
    # Links at their full rate: collectives reach a half or more of it.
    for name in ("a2a_global", "ar_cross"):
        reached = getattr(measured, name).gbps / getattr(derived, name).gbps
        assert 0.5 < reached < 1


def test_one_node_has_no_links_between_nodes() -> None:
    cluster = Cluster.of(Topology(), 4)
    assert (cluster.n_nodes, cluster.ranks_per_node) == (1, 4)
    assert cluster.ar_cross.ms(GB) < 1e-2
    assert cluster.a2a_cross.ms(GB) < 1e-2
    alone = Cluster.of(Topology(), 1)
    assert alone.a2a_global.ms(GB) < 1e-2


def test_node_sizes_come_from_the_launcher_where_nobody_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert Cluster.of(Topology(), 6).n_nodes == 3
    assert Cluster.of(Topology(ranks_per_node=3), 6).n_nodes == 2
    with pytest.raises(CapabilityError, match="5 ranks do not fill whole nodes of 2"):
        Cluster.of(Topology(), 5)


@pytest.mark.parametrize(
    ("said", "per_node"),
    [
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, 4),
        ({"MPI_LOCALNRANKS": "2"}, 2),
        ({"SLURM_STEP_NUM_TASKS": "16", "SLURM_STEP_TASKS_PER_NODE": "8(x2)"}, 8),
        ({"SLURM_STEP_NUM_TASKS": "16", "SLURM_STEP_TASKS_PER_NODE": "16"}, 16),
        # torchrun, which srun has started once a node
        (
            {
                "LOCAL_WORLD_SIZE": "4",
                "SLURM_STEP_NUM_TASKS": "16",
                "SLURM_STEP_TASKS_PER_NODE": "1(x16)",
            },
            4,
        ),
        # a shell of a job, where ranks of somebody else's number are started
        ({"SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_TASKS_PER_NODE": "1"}, 16),
        ({"SLURM_STEP_NUM_TASKS": "16", "SLURM_STEP_TASKS_PER_NODE": "6(x2),4"}, 16),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "many"}, 16),
        ({}, 16),
    ],
    ids=lambda one: str(one) if isinstance(one, int) else " ".join(one) or "nobody",
)
def test_mpi_and_slurm_say_it_too(
    said: dict[str, str], per_node: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (*LOCAL_SIZES, TASKS, TASKS_PER_NODE):
        monkeypatch.delenv(name, raising=False)
    for name, value in said.items():
        monkeypatch.setenv(name, value)
    assert Cluster.of(Topology(), 16).ranks_per_node == per_node


def test_a_topology_comes_back_from_its_file(tmp_path: Path) -> None:
    topology = Topology(ranks_per_node=2, a2a_global=Link(gbps=0.02, latency_ms=1.5), unique_ns=26)
    save_topology(topology, tmp_path / "it.yaml")
    assert load_topology(tmp_path / "it.yaml", "topology") == topology
    assert "null" not in (tmp_path / "it.yaml").read_text()
    registry = Registry.load({"topology": str(tmp_path / "it.yaml")})
    assert registry.topology == topology
    over = {"use": str(tmp_path / "it.yaml"), "a2a_intra": {"gbps": 9}}
    assert Registry.load({"topology": over}).topology.a2a_intra == Link(gbps=9)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("- 1", "must hold a mapping"),
        ("a: [", "not valid YAML"),
        ("a2a_global: {gbps: 0}", "a2a_global.gbps: must be >= 1e-10"),
        ("a2a_globl: {gbps: 1}", "unknown option 'a2a_globl'; did you mean 'a2a_global'"),
    ],
)
def test_what_is_no_topology_is_refused(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "it.yaml").write_text(text)
    with pytest.raises(RegistryError, match=says):
        load_topology(tmp_path / "it.yaml", "topology")

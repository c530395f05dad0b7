"""Value tests: a topology says what it knows, and what it leaves to TorchRec."""

from __future__ import annotations

import dataclasses
import sys
import tempfile
from math import inf, nan
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from typer.testing import CliRunner

from recd_plugins.cli.main import app
from recd_plugins.config import parse
from recd_plugins.errors import RegistryError
from recd_plugins.planning.cluster.cluster import Cluster
from recd_plugins.planning.cluster.topology import PRESETS, Link, Topology, load_topology
from recd_plugins.registry import Registry
from recd_plugins.storage.lock_file import LockFile, LockHeld


def test_the_local_preset_leaves_all_to_torchrec() -> None:
    assert set(dataclasses.asdict(PRESETS["local"]).values()) == {None}


def test_every_preset_is_documented_by_a_name_that_yaml_can_say() -> None:
    for name, preset in PRESETS.items():
        assert name.isidentifier()
        assert isinstance(preset, Topology)


def test_a_topology_from_a_mapping() -> None:
    values = {
        "device": "cuda",
        "ranks_per_node": 8,
        "device_memory_gb": 80,
        "host_memory_gb": "1e3",
        "intra_node_gbps": 300,
        "inter_node_gbps": 12.5,
    }
    assert parse(Topology, values, "topology") == Topology(
        device="cuda",
        ranks_per_node=8,
        device_memory_gb=80.0,
        host_memory_gb=1000.0,
        intra_node_gbps=300.0,
        inter_node_gbps=12.5,
    )


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"device": "tpu"}, r"topology.device: unknown value 'tpu'; .*Known: cpu, cuda"),
        ({"ranks_per_node": 0}, "topology.ranks_per_node: must be >= 1, but is 0"),
        ({"ranks_per_node": 1.5}, "topology.ranks_per_node: expected an integer"),
        ({"device_memory_gb": 0}, "topology.device_memory_gb: must be >= 1e-09"),
        ({"host_memory_gb": 1e-300}, "topology.host_memory_gb: must be >= 1e-09"),
        ({"host_memory_gb": -1}, "topology.host_memory_gb: must be >= 1e-09"),
        (
            {"host_memory_gb": 1e300},
            r"topology.host_memory_gb: must be >= 1e-09 and <= 1e\+09, but is",
        ),
        ({"intra_node_gbps": 0}, "topology.intra_node_gbps: must be >= 1e-09 and <= 1e.09, but is"),
        ({"inter_node_gbps": 0}, "topology.inter_node_gbps: must be >= 1e-09 and <= 1e.09, but is"),
        ({"inter_node_gbps": -1}, "topology.inter_node_gbps: must be >= 1e-09"),
        ({"inter_node_gbps": 1e-320}, "topology.inter_node_gbps: must be >= 1e-09"),
        ({"inter_node_gbps": nan}, "topology.inter_node_gbps: must be >= 1e-09 .* but is nan"),
        ({"inter_node_gbps": inf}, "topology.inter_node_gbps: must be >= 1e-09 .* but is inf"),
        ({"gather_gbps": 1e-320}, "topology.gather_gbps: must be >= 1e-09"),
        ({"unique_ns": 1e308}, r"topology.unique_ns: must be >= 0 and <= 1e\+12, but is"),
        ({"op_us": -1}, "topology.op_us: must be >= 0"),
        ({"crowded": 1e308}, r"topology.crowded: must be >= 1 and <= 1e\+06, but is"),
        ({"a2a_global": {"gbps": 1e-320}}, "topology.a2a_global.gbps: must be >= 1e-10"),
        (
            {"ar_cross": {"gbps": 1, "latency_ms": 1e308}},
            r"topology.ar_cross.latency_ms: must be >= 0 and <= 1e\+09",
        ),
        ({"internode_gbps": 1}, "unknown option 'internode_gbps'; did you mean 'inter_node_gbps'"),
    ],
)
def test_what_no_cluster_has_is_refused(values: dict[str, object], says: str) -> None:
    with pytest.raises(RegistryError, match=says):
        parse(Topology, values, "topology")


@pytest.mark.parametrize("gbps", [1e-9, 1e9])
def test_prices_of_what_is_allowed_are_finite(gbps: float) -> None:
    """The links that a cluster makes of two bandwidths are allowed, too."""
    bandwidths = ("intra_node_gbps", "inter_node_gbps", "gather_gbps", "chunk_gbps")
    times = ("unique_ns", "update_ns", "mapped_ns", "op_us")
    figures = {"device": "cpu", **dict.fromkeys(bandwidths, gbps), **dict.fromkeys(times, 1e12)}
    for ranks in (1, 2, 4, 1024):
        stated = parse(Topology, {**figures, "ranks_per_node": min(ranks, 2)}, "topology")
        cluster = Cluster.of(stated, ranks)
        links = (cluster.a2a_global, cluster.a2a_intra, cluster.a2a_cross, cluster.ar_global)
        found = [link.ms(1 << 40) for link in (*links, cluster.ar_cross)]
        found.append(cluster.local_ms(1 << 40, 1e9, 1e9, 1 << 40, 1e9, 1e9))
        found.append(cluster.once_a_node_ms(1 << 40))
        assert np.isfinite(found).all()


def test_a_figure_that_cannot_be_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "registry.yaml"
    path.write_text("plugins: []\ntopology:\n  ranks_per_node: 1\n  inter_node_gbps: 1e-40\n")
    with pytest.raises(RegistryError, match=r"registry.yaml:4: topology.inter_node_gbps: must be"):
        Registry.load(path)


def test_a_measured_topology_is_saved_where_there_is_a_folder(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    result = CliRunner().invoke(app, ["topology", "measure", "--save", str(gone / "t.yaml")])
    assert result.exit_code == 2
    assert f"--save: there is no folder {gone}. Make it first." in result.stderr
    assert not gone.exists()


def test_two_that_measure_on_a_machine_do_so_one_after_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topology_command = sys.modules["recd_plugins.cli.topology"]
    events: list[str] = []
    held = [LockHeld("process 7 of here"), LockHeld("process 7 of here"), None]
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(topology_command, "LOOK", 0.0)
    monkeypatch.setattr(LockFile, "take", mock.Mock(side_effect=held))
    monkeypatch.setattr(LockFile, "give_back", lambda self, remove: events.append("gives back"))
    monkeypatch.setattr(topology_command, "_lead", lambda *_, **__: events.append("measures"))
    result = CliRunner().invoke(
        app, ["topology", "measure", "--json", "--save", str(tmp_path / "t.yaml")]
    )
    assert result.exit_code == 0, result.output
    assert events == ["measures", "gives back"]
    assert result.stderr.count("process 7 of here measures on this machine") == 1


def test_a_topology_that_says_a_thing_twice_is_refused_by_its_line(tmp_path: Path) -> None:
    path = tmp_path / "slow.yaml"
    path.write_text("inter_node_gbps: 0.1\nranks_per_node: 2\ninter_node_gbps: 25\n")
    with pytest.raises(RegistryError, match=r"slow.yaml:3: 'inter_node_gbps' stands twice"):
        load_topology(path, "topology")


def test_a_file_of_before_chunks_were_measured_has_them_no_faster_than_rows() -> None:
    cluster = Cluster.of(Topology(ranks_per_node=1, gather_gbps=5.0), 2)
    assert cluster.chunk_gbps == 5.0
    assert (
        Cluster.of(Topology(ranks_per_node=1, gather_gbps=5.0, chunk_gbps=9.0), 2).chunk_gbps == 9
    )
    assert Cluster.of(Topology(ranks_per_node=1), 2).chunk_gbps > 1e5  # nothing is counted


def test_marks_take_as_long_as_64_bytes_of_chunks_unless_they_were_measured() -> None:
    chunks = Topology(ranks_per_node=1, chunk_gbps=16.0)
    assert Cluster.of(chunks, 2).marks_ns == pytest.approx(64 / (16 << 30) * 1e9)
    known = Topology(ranks_per_node=1, chunk_gbps=16.0, marks_ns=3.0)
    assert Cluster.of(known, 2).marks_ns == 3.0
    assert Cluster.of(Topology(ranks_per_node=1), 2).marks_ns == 0  # nothing is counted


def test_a_cluster_knows_what_nobody_measured() -> None:
    link = Link(gbps=1.0)
    default, said, rows = (
        Cluster.of(one, 2).unmeasured
        for one in (
            Topology(),
            Topology(inter_node_gbps=1.0, ranks_per_node=1),
            Topology(a2a_global=link, gather_gbps=None),
        )
    )
    assert [words.split(" (")[0] for words in default] == [
        "the links",
        "lookups and small operations",
    ]
    assert "TorchRec's default, of GPUs" in default[0]
    assert "what the topology says" in said[0]
    assert rows == default[1:] == Cluster.of(Topology(), 1).unmeasured
    assert not Cluster.of(Topology(a2a_global=link, gather_gbps=5.0), 2).unmeasured

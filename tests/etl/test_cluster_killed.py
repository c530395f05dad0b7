"""Rung 1 (real processes): a run that is killed with signal 9 goes on where it was."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from forked import run_module
from session_tables import expected, mixed_rows, read, table_of

from recd_dedup.etl.cluster import ClusterConfig, build_cluster
from recd_plugins.slots import Context

pytestmark = pytest.mark.slow

MEMORY_GB = 2e-5

KILLED = f"""
import os, signal, sys
from pathlib import Path
from recd_dedup.etl.cluster import ClusterConfig, build_cluster
from recd_plugins.data.table import Table
from recd_plugins.slots import Context

source, folder, dying, after = sys.argv[1:]

def die(what, done, total):
    if what.startswith(dying) and done >= int(after):
        os.kill(os.getpid(), signal.SIGKILL)

step = build_cluster(ClusterConfig(memory_gb={MEMORY_GB}), Context())
step.run(Table.open(Path(source)), Path(folder), die)
"""


def killed(source, folder, dying, after):
    args = [str(source.path), str(folder), dying, str(after)]
    with tempfile.TemporaryDirectory() as scripts:
        Path(scripts, "dies.py").write_text(KILLED)
        assert run_module("dies", *args, folder=Path(scripts)).code == -9
    assert not folder.exists()


def test_killed_in_either_pass_it_goes_on(tmp_path):
    rows = mixed_rows()
    source, folder = table_of(tmp_path / "source", rows), tmp_path / "clustered"
    workspace = tmp_path / "clustered.clustering"
    killed(source, folder, "bucketing", 400)
    spills = {path: path.stat().st_ino for path in workspace.glob("spills/*.arrow")}
    assert spills
    assert not list(workspace.glob("parts/*"))
    killed(source, folder, "sorting", 500)
    assert {path: path.stat().st_ino for path in spills} == spills
    parts = {path.name: path.stat().st_ino for path in workspace.glob("parts/*")}
    assert parts
    # What a kill between two lines leaves behind: pieces that are not whole.
    for torn in (
        "spills/spill-00099.part",
        "fresh.part/part-00000.parquet",
        "bands/band-00000.arrow",
    ):
        (workspace / torn).parent.mkdir(parents=True, exist_ok=True)
        (workspace / torn).write_bytes(b"torn")
    calls = []
    step = build_cluster(ClusterConfig(memory_gb=MEMORY_GB), Context())
    table = step.run(source, folder, lambda *progress: calls.append(progress))
    assert read(table).equals(expected(rows))
    assert calls[0] == ("bucketing clustered", rows.num_rows, rows.num_rows)
    assert {name: (folder / name).stat().st_ino for name in parts} == parts
    assert {path.name for path in tmp_path.iterdir()} == {"source", "clustered"}

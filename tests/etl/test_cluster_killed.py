"""Rung 1 (real processes): a run that is killed with signal 9 goes on where it was."""

from __future__ import annotations

import subprocess
import sys

import pytest
from session_tables import expected, mixed_rows, read, table_of

from recd_dedup.etl.cluster import ClusterConfig, build_cluster
from recd_plugins.slots import Context

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


@pytest.mark.parametrize(
    ("dying", "after"), [("bucketing", 0), ("bucketing", 400), ("sorting", 0), ("sorting", 500)]
)
def test_killed_in_either_pass_it_goes_on(tmp_path, dying, after):
    rows = mixed_rows()
    source, folder = table_of(tmp_path / "source", rows), tmp_path / "clustered"
    args = [str(source.path), str(folder), dying, str(after)]
    killed = subprocess.run([sys.executable, "-c", KILLED, *args], timeout=60, check=False)
    assert killed.returncode == -9
    assert not folder.exists()
    # What a kill between two lines leaves behind: pieces that are not whole.
    workspace = tmp_path / "clustered.clustering"
    for torn in (
        "spills/spill-00099.part",
        "fresh.part/part-00000.parquet",
        "runs/run-00000.arrow",
    ):
        (workspace / torn).parent.mkdir(parents=True, exist_ok=True)
        (workspace / torn).write_bytes(b"torn")
    parts = {file.name: file.stat().st_ino for file in workspace.glob("parts/*")}
    told = []
    step = build_cluster(ClusterConfig(memory_gb=MEMORY_GB), Context())
    table = step.run(source, folder, lambda *progress: told.append(progress))
    assert read(table).equals(expected(rows))
    begun = next(done for what, done, _ in told if what.startswith("bucketing"))
    assert begun >= after if dying == "bucketing" else begun == rows.num_rows
    assert {name: (folder / name).stat().st_ino for name in parts} == parts
    assert bool(parts) == (dying == "sorting" and after > 0)
    assert {path.name for path in tmp_path.iterdir()} == {"source", "clustered"}

"""Rung 4 (an example run): the cluster's registry is checked, planned with, and launched on CPU."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from forked import AT_HOME, run_module

from recd_plugins.planning.cluster.topology import PRESETS, load_topology
from recd_plugins.planning.planner_bases import Tiered
from recd_plugins.registry import Registry
from recd_plugins.stack import load

CLUSTER = Path(__file__).parents[2] / "examples" / "a100_cluster"
REGISTRY = CLUSTER / "registry.yaml"


def test_the_registry_is_for_four_nodes_of_eight() -> None:
    registry = Registry.load(REGISTRY, ["train.device=cpu"])
    assert registry.one("sharding").record.name == "flexshard"
    assert registry.train.ranks == 4 * 8
    assert registry.topology == PRESETS["a100_dgx"]
    assert registry.topology == load_topology(CLUSTER / "topology.yaml", "topology")


@pytest.mark.filterwarnings("ignore:dedup. groups. auto is not used")  # of so small a table
def test_a_plan_is_made_of_it(tmp_path: Path) -> None:
    """On a small table in place of the cluster's own."""
    skewed: dict[str, Any] = {"num_ids": 5_000, "table": "items", "skew": 1.2}
    features = [
        skewed | {"name": "history", "kind": "user", "sequence": True, "length": 20},
        skewed | {"name": "item"},
    ]
    values = dict(Registry.load(REGISTRY).source.values)
    values |= {
        "dataset": {"use": "sessions", "samples": 4_000, "features": features},
        "etl": ["cluster_by_session"],
        "folder": str(tmp_path),
        "topology": "a100_dgx",
    }
    del values["sharding"]["budget_gb"]  # of another goal
    values["sharding"] |= {"goal": "min_communication", "others": {"search": "greedy"}}
    stack = load(values, ["train.device=cpu", "train.batch_size=32"])
    stack.check()
    planner = stack.planned_for(stack.adapt(stack.model()), 32)
    assert isinstance(planner, Tiered)
    assert planner.tier_plan is not None
    assert (planner.tier_plan.n_nodes, planner.tier_plan.ranks_per_node) == (4, 8)
    assert "4 nodes of 8 ranks" in stack.explain()


@pytest.mark.parametrize("script", ["torchrun.sh", "slurm.sbatch"])
def test_a_script_is_bash(script: str) -> None:
    done = subprocess.run(["bash", "-n", str(CLUSTER / script)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


IN_SHORT = """
from recd_plugins.__main__ import main
from recd_plugins.planning.cluster import measured_topology

measured_topology.LONG_ENOUGH = 0.001
main()
"""
"""`recd`, which measures links by small payloads alone."""
SAYS_ITS_ARGUMENTS = "printf '%s\\0' \"$@\""


def arguments_of(folder: Path, script: str, *arguments: str, **programs: str) -> list[str]:
    """What a script of the cluster ends with printing, with other `programs` on PATH."""
    for name, does in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{does}\n")
        (folder / name).chmod(0o755)
    variables = {"NODES": "1", "RANKS_PER_NODE": "2", "HEAD": "localhost", "PORT": "0"}
    variables |= {"SLURM_SUBMIT_DIR": str(CLUSTER), "SLURM_JOB_NODELIST": "node[1-4]"}
    variables |= {"SLURM_NNODES": "4", "SLURM_JOB_ID": "7", "SLURM_CPUS_PER_TASK": "96"}
    variables["PATH"] = f"{folder}:{os.environ['PATH']}"
    command = ["bash", str(CLUSTER / script), *arguments]
    done = subprocess.run(
        command, env=os.environ | variables, cwd=folder, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\0")[:-1]


def test_slurm_gives_each_node_its_processors_and_the_first_ones_name(tmp_path: Path) -> None:
    """In SLURM 22.05 to 23.02 a step has one a task that does not ask for them, as sbatch did."""
    srun = f"{SAYS_ITS_ARGUMENTS} $HEAD $NODES $JOB $PORT"
    found = arguments_of(
        tmp_path, "slurm.sbatch", "train", scontrol="printf 'node1\\nnode2\\n'", srun=srun
    )
    assert found[:3] == ["--cpus-per-task=96", "./torchrun.sh", "train"]
    assert found[3:] == ["node1", "4", "7", "20007"]


def test_ranks_have_as_long_for_a_checkpoint_as_slurm_gives_them(tmp_path: Path) -> None:
    """torchrun by itself kills them 30 s after SIGTERM."""
    says = "printf '%s\\0' \"$TORCH_ELASTIC_SHUTDOWN_TIMEOUT\""
    (grace,) = arguments_of(tmp_path, "torchrun.sh", "train", torchrun=says)
    (line,) = re.findall(r"--signal=TERM@(\d+)", (CLUSTER / "slurm.sbatch").read_text())
    assert 30 < int(grace) < int(line)


def test_torchrun_starts_the_ranks(tmp_path: Path) -> None:
    """By an agent that forks them, so that neither has to import TorchRec; and memory of data
    sheets, which nobody measures, stays what the file says that is written over."""
    saved = tmp_path / "topology.yaml"
    saved.write_bytes((CLUSTER / "topology.yaml").read_bytes())
    measure = ["topology", "measure", "--device", "cpu", "--rounds", "1", "--save", str(saved)]
    given = arguments_of(tmp_path, "torchrun.sh", *measure, torchrun=SAYS_ITS_ARGUMENTS)
    module = given.index("-m")
    assert given[module:] == ["-m", "recd_plugins", *measure]
    script = tmp_path / "in_short.py"
    script.write_text(IN_SHORT)
    by_path = [AT_HOME, "--start-method=fork", "--run-path", str(script)]
    done = run_module("torch.distributed.run", *given[:module], *by_path, *measure, folder=tmp_path)
    assert done.code == 0, done.err
    measured, sheets = load_topology(saved, "topology"), PRESETS["a100_dgx"]
    assert (measured.ranks_per_node, measured.device) == (2, "cpu")
    assert measured.a2a_global is not None
    assert measured.intra_node_gbps != sheets.intra_node_gbps
    assert measured.device_memory_gb == sheets.device_memory_gb
    assert measured.host_memory_gb == sheets.host_memory_gb

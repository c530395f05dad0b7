"""Example runs: the scripts of examples/, as a user starts them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from forked import run_module

EXAMPLES = Path(__file__).parents[2] / "examples"
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


@pytest.mark.parametrize("launcher", [[], TORCHRUN], ids=["one rank", "two ranks"])
def test_a_trainer_with_recd_plugins_dropped_in_learns(launcher: list[str], tmp_path: Path) -> None:
    command = [sys.executable, *launcher, str(EXAMPLES / "drop_in.py")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    losses_line = re.search(r"loss (\d\.\d+) -> (\d\.\d+)", done.stdout)
    assert losses_line is not None, done.stdout
    first, last = map(float, losses_line.groups())
    assert last < first - 0.02


def test_a_pooling_in_one_file_trains(tmp_path: Path) -> None:
    arguments = ["--registry", str(EXAMPLES.parent / "registry.yaml"), "--ranks=1"]
    arguments += ["plugins=[recd_dlrm, ./examples/last_pooling.py]", "pooling.history.use=last"]
    arguments += ["dataset.samples=40000", "sharding={use: torchrec, search: greedy}"]
    arguments += ["train.steps=30"]
    done = run_module("recd_plugins", "train", *arguments, folder=tmp_path)
    assert done.code == 0, done.err
    losses = [float(loss) for loss in re.findall(r"train step .* loss (\d\.\d+)", done.out)]
    assert len(losses) == 2
    assert losses[-1] < losses[0]


def test_a_sharding_in_one_file_plans_and_trains(tmp_path: Path) -> None:
    arguments = [
        "--registry",
        str(EXAMPLES.parent / "registry.yaml"),
        "--ranks=2",
        "train.steps=20",
    ]
    arguments += ["plugins=[recd_dlrm, ./examples/by_size.py]", "sharding=by_size"]
    arguments += ["dataset.samples=40000"]
    printed = {}
    for command in ("plan", "train"):
        done = run_module("recd_plugins", command, *arguments, folder=tmp_path)
        assert done.code == 0, done.err
        printed[command] = done.out
    held = re.search(r"by_size: ([\d,]+), ([\d,]+) numbers", printed["plan"])
    assert held is not None
    assert all(int(size.replace(",", "")) > 0 for size in held.groups())
    assert re.search(r"train step 20/20  loss \d\.\d+", printed["train"])


def test_the_last_of_a_sequence() -> None:
    import torch

    sys.path.insert(0, str(EXAMPLES))
    try:
        from last_pooling import Last
    finally:
        sys.path.remove(str(EXAMPLES))
    values = torch.arange(6.0).view(3, 2)
    pooled = Last()(values, torch.tensor([0, 2, 0, 1, 0]))
    assert pooled.tolist() == [[0, 0], [2, 3], [0, 0], [4, 5], [0, 0]]

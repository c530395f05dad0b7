"""Rung 2: what plugins print is no part of what commands print, for people and for machines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from forked import run_module
from typer.testing import CliRunner

from recd_plugins.cli.main import app

PLUGIN = """
from recd_dlrm.poolings.reduce import Reduce
from recd_plugins.api import Config, PoolingRecord, hookimpl


def build(config, context):
    print("a pooling is built")

    def pooling(dim):
        print("and made")
        return Reduce("mean")

    return pooling


@hookimpl
def recd_pooling():
    return [PoolingRecord(name="loud", summary="Loud.", config=Config, build=build)]
"""
REGISTRY = """
plugins: [recd_dlrm, recd_flexshard, ./loud_plugin.py]
folder: {folder}
dataset: {{use: sessions, samples: 400}}
model: {{use: sequence_dlrm, embedding_dim: 4, bottom: [4], top: [4]}}
pooling: {{history: {{use: loud}}}}
sharding: {{use: torchrec, search: greedy}}
train: {{ranks: 1, batch_size: 8, steps: 1, device: cpu, run: {folder}/run}}
"""


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prints")
    (folder / "loud_plugin.py").write_text(PLUGIN)
    file = folder / "registry.yaml"
    file.write_text(REGISTRY.format(folder=folder / "data"))
    return file


@pytest.mark.parametrize(
    "command",
    [
        "plan",
        "data profile --save {folder}/profile.arrow",
        "data check {folder}/registry.yaml",
        "scars curve --least-batch 1",
        pytest.param("advise --no-what-ifs", marks=pytest.mark.slow),
    ],
)
def test_a_command_prints_its_own_alone(registry: Path, command: str) -> None:
    words = command.format(folder=registry.parent).split()
    of = [] if words[:2] == ["data", "check"] else ["-r", str(registry)]
    printed = CliRunner().invoke(app, [*words, *of, "--json"])
    assert printed.exit_code == 0, printed.stderr
    json.loads(printed.stdout)


@pytest.mark.slow
def test_a_job_prints_its_own_alone(registry: Path) -> None:
    """The plugin is there in the launcher and in a rank."""
    options = ("-r", str(registry), "--json")
    done = run_module("recd_plugins", "train", *options, folder=registry.parent)
    assert done.code == 0, done.err
    json.loads(done.out)

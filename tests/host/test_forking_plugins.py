"""Rung 4 (a program): a process that a plugin forks does not do the job a second time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from plugins import POOLING, write_module

FORK = "import os\nos.fork()\n"
AT_BUILD = """
import os
from recd_plugins import hookimpl
from recd_plugins.config import Config
from recd_plugins.slots import ModelRecord

def build(config, context):
    if os.fork() == 0:
        raise ValueError("in the child")
    from torch import nn
    return nn.Identity()

@hookimpl
def recd_model():
    return [ModelRecord(name="forks", summary="It forks.", config=Config, build=build)]
"""
PROGRAM = """
import os
from recd_plugins.registry import Registry
from recd_plugins.slots import Context
parent = os.getpid()
registry = Registry.load({"plugins": ["./forking_plugin"], **%s})
for choice in registry.chosen("model"):
    choice.build(Context())
while os.waitpid(-1, os.WNOHANG) == (0, 0):
    pass
print("done" if os.getpid() == parent else "done twice")
"""


@pytest.mark.parametrize(
    ("code", "registry", "when"),
    [
        (FORK + POOLING, {}, "plugin './forking_plugin' forks it on import"),
        (AT_BUILD, {"model": "forks"}, "model 'forks' of ./forking_plugin forks it when built"),
    ],
    ids=["on import", "when built"],
)
def test_a_process_that_a_plugin_forks_ends(
    code: str, registry: dict[str, str], when: str, tmp_path: Path
) -> None:
    write_module(tmp_path, "forking_plugin", code)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM % registry], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stdout == "done\n", done.stderr
    assert done.returncode == 0
    assert done.stderr.count("is ended: ") == 1
    assert when in done.stderr
    assert "in the child" not in done.stderr

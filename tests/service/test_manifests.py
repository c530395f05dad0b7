"""Rung 1 (values): manifests of examples/service_cluster are whole, and name options that are."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import typer
import yaml

from recd_dsi.service.cli import serve

FOLDER = Path(__file__).parents[2] / "examples" / "service_cluster"
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")


def options_of(command: str) -> set[str]:
    group = typer.main.get_command(serve)
    return {name for one in group.commands[command].params for name in one.opts}


def test_kubernetes_has_a_coordinator_and_workers_that_find_each_other() -> None:
    found = list(yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text()))
    kinds = [(one["apiVersion"], one["kind"], one["metadata"]["name"]) for one in found]
    assert kinds == [
        ("v1", "Service", "recd-coordinator"),
        ("apps/v1", "Deployment", "recd-coordinator"),
        ("v1", "Service", "recd-workers"),
        ("apps/v1", "StatefulSet", "recd-workers"),
    ]
    for service, pods in zip(found[::2], found[1::2], strict=True):
        labels = pods["spec"]["template"]["metadata"]["labels"]
        assert labels == service["spec"]["selector"] == pods["spec"]["selector"]["matchLabels"]
        spec = pods["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        assert {one["name"] for one in container["volumeMounts"]} == {
            one["name"] for one in spec["volumes"]
        }
        given = dict(one.removeprefix("--").split("=", 1) for one in container["args"])
        assert container["command"][:2] == ["recd", "serve"]
        assert {f"--{name}" for name in given} <= options_of(container["command"][2])
        assert int(given["port"]) == service["spec"]["ports"][0]["port"]
    assert found[3]["spec"]["serviceName"] == found[2]["metadata"]["name"]
    assert given["join"].endswith(f":{found[0]['spec']['ports'][0]['port']}")


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_slurm_is_a_script_whose_options_are_known() -> None:
    script = FOLDER / "slurm.sh"
    subprocess.run(["bash", "-n", str(script)], check=True, timeout=300)
    text = script.read_text()
    (security,) = re.findall(r"^SECURITY=\((.*)\)$", text, re.M)
    for command in ("coordinator", "worker"):
        (line,) = re.findall(rf"recd serve {command} (.*?); do", text)
        assert set(OPTION.findall(line + security)) <= options_of(command)

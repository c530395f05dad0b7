"""Value tests: `recd doctor --sbom` lists what is installed, as CycloneDX has it."""

from __future__ import annotations

import json
from importlib.metadata import version

import pytest
from typer.testing import CliRunner

from recd_plugins.cli.main import app


@pytest.fixture(scope="module")
def bill() -> dict:
    result = CliRunner().invoke(app, ["doctor", "--sbom"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_each_distribution_is_a_component_with_its_version_and_its_url(bill: dict) -> None:
    assert (bill["bomFormat"], bill["specVersion"], bill["version"]) == ("CycloneDX", "1.6", 1)
    assert bill["metadata"]["component"]["name"] == "recd-plugins"
    found = {one["name"]: one for one in bill["components"]}
    assert len(found) == len(bill["components"]) > 20
    for name in ("numpy", "pyyaml", "torch", "torchrec"):
        assert found[name]["version"] == version(name)
        assert found[name]["type"] == "library"
        assert found[name]["purl"] == f"pkg:pypi/{name}@{version(name).replace('+', '%2B')}"
        assert found[name]["licenses"]
    assert "recd-plugins" not in found


def test_dependencies_are_of_components_alone(bill: dict) -> None:
    ours = bill["metadata"]["component"]["bom-ref"]
    known = {ours, *(one["bom-ref"] for one in bill["components"])}
    depends = {one["ref"]: one["dependsOn"] for one in bill["dependencies"]}
    assert set(depends) == known
    assert {each for needs in depends.values() for each in needs} <= known
    names = {one.split("/")[1].split("@")[0] for one in depends[ours]}
    assert {"numpy", "pluggy", "torch", "torchrec"} <= names
    assert "pyspark" not in names  # an extra


def test_the_same_environment_gives_the_same_bill(bill: dict) -> None:
    again = CliRunner().invoke(app, ["doctor", "--sbom"])
    assert json.loads(again.stdout) == bill

"""Ladder: pure values, a run of pytest. `recd plugins new` writes plugins that work as written."""

from __future__ import annotations

import ast
import os
import tomllib
from pathlib import Path

import pytest
from forked import run_module
from typer.testing import CliRunner, Result

from recd_plugins.cli.main import app
from recd_plugins.cli.new_plugin import write_plugin
from recd_plugins.registry import Registry
from recd_plugins.slots import SLOTS

TEMPLATES = Path(__file__).parents[2] / "src/recd_plugins/cli/templates"


def new(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["plugins", "new", *map(str, arguments)])


def run_tests(folder: Path, *arguments: str, path: str = "") -> str:
    """What pytest prints, in a process of its own; its tests must pass."""
    path = f"{path}:{os.environ.get('PYTHONPATH', '')}"
    options = ["-q", "-p", "no:cacheprovider", *arguments]
    # Nothing of a conftest.py or pytest.ini of a folder above.
    own = folder / "pyproject.toml"
    options += ["--rootdir=.", "--confcutdir=.", "-c", str(own) if own.exists() else os.devnull]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # the host was imported before
    done = run_module("pytest", *options, folder=folder, environment={"PYTHONPATH": path})
    assert done.code == 0, done.out + done.err
    return done.out


def test_a_plugin_is_written_under_its_own_name(tmp_path: Path) -> None:
    written = new("my_sums", "--into", tmp_path)
    assert written.exit_code == 0, written.stderr
    folder = tmp_path / "my_sums"
    files = sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())
    assert files == [
        "README.md",
        "pyproject.toml",
        "registry.yaml",
        "src/my_sums/__init__.py",
        "src/my_sums/py.typed",
        "tests/test_my_sums.py",
    ]
    for file in files:
        assert f"{folder / file}\n" in written.stdout
        for name in ("new_plugin", "new-plugin", "NewPlugin", "templates"):
            assert name not in (folder / file).read_text()
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    assert project["name"] == "my-sums"
    assert project["entry-points"]["recd_plugins"] == {"my_sums": "my_sums"}
    assert "class MySums(nn.Module)" in (folder / "src/my_sums/__init__.py").read_text()


@pytest.mark.parametrize("name", ["my_new_plugin", "new_plugin_2", "new_plugin"])
def test_a_name_may_hold_that_of_the_templates(tmp_path: Path, name: str) -> None:
    folder = write_plugin(name, "pooling", tmp_path)
    test = (folder / f"tests/test_{name}.py").read_text()
    camel = "".join(part.capitalize() for part in name.split("_"))
    assert f"from {name} import {camel}, recd_pooling" in test
    assert Registry.load(folder / "registry.yaml").plugins == ("recd_dlrm", f"./src/{name}")


@pytest.mark.parametrize(
    ("name", "slot", "says"),
    [
        ("on", "pooling", "in registry.yaml the word means True"),
        ("null", "pooling", "the word means None"),
        ("range", "cache", "a class of it would be called Range, as something that its code uses"),
        ("config", "callbacks", "a class of it would be called Config"),
        ("none", "pooling", "a class of it would be called None"),
    ],
)
def test_a_name_that_means_something_else_there_is_refused(
    tmp_path: Path, name: str, slot: str, says: str
) -> None:
    written = new(name, "--slot", slot, "--into", tmp_path)
    assert (written.exit_code, says in written.stderr) == (2, True), written.stderr
    assert not any(tmp_path.iterdir())


@pytest.mark.slow
def test_the_tests_of_every_slots_plugin_pass_as_written(tmp_path: Path) -> None:
    folders = [write_plugin(f"my_{slot}", slot, tmp_path) for slot in SLOTS]
    sources = ":".join(str(folder / "src") for folder in folders)
    output = run_tests(tmp_path, "-W", "error", "-W", "ignore::DeprecationWarning", path=sources)
    assert int(output.split(" passed")[0].split()[-1]) >= 2 * len(folders) - 1  # a planner has one


@pytest.mark.parametrize("slot", SLOTS)
def test_the_registry_that_is_written_uses_the_plugin(
    slot: str, site: Path, tmp_path: Path
) -> None:
    folder = write_plugin(f"my_{slot}", slot, tmp_path)
    registry = Registry.load(folder / "registry.yaml")
    (chosen,) = registry.chosen(slot)  # its options are parsed, and what it needs is there
    assert isinstance(chosen.record, SLOTS[slot])
    assert chosen.record.name == f"my_{slot}"


@pytest.mark.parametrize(
    "file", sorted(TEMPLATES.glob("*/*.py")), ids=lambda file: f"{file.parent.name}-{file.stem}"
)
def test_templates_stand_on_the_public_face_alone(file: Path) -> None:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("recd_plugins"):
            public = (node.module or "").startswith("recd_plugins.api")
            assert public or node.module == f"recd_plugins.cli.templates.{file.parent.name}"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["my-sums"], "'my-sums' cannot name a plugin"),
        (["MySums"], "'MySums' cannot name a plugin"),
        (["class"], "'class' cannot name a plugin"),
        (["../escape"], "'../escape' cannot name a plugin"),
        (["torch"], "a module 'torch' is installed already"),
        (["my_sums", "--slot", "poolng"], "no template for the slot 'poolng'; did you mean"),
    ],
)
def test_what_cannot_be_written_is_refused_with_nothing_left(
    arguments: list[str], says: str, tmp_path: Path
) -> None:
    refused = new(*arguments, "--into", tmp_path)
    assert refused.exit_code == 2
    assert says in refused.stderr
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_there_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "my_sums").mkdir()
    refused = new("my_sums", "--into", tmp_path)
    assert refused.exit_code == 2
    assert "my_sums is there already" in refused.stderr
    assert not list((tmp_path / "my_sums").iterdir())
    (tmp_path / "file").touch()
    refused = new("my_sums", "--into", tmp_path / "file")
    assert "cannot be written: Not a directory. Name another folder with --into" in refused.stderr

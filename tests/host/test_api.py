"""Value tests: the public face is exact, light, and all that the built-in plugins use."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import recd_plugins
import recd_plugins.api
from tests.host.test_surface import loaded_after

ROOT = Path(__file__).parents[2]
FACE = "recd_plugins.api"
MODULES = [FACE, *(f"{FACE}.{one.name}" for one in pkgutil.iter_modules(recd_plugins.api.__path__))]
WITHOUT_TORCH = (FACE, f"{FACE}.data", f"{FACE}.planning")
AUTHORS = [
    path for folder in ("plugins", "examples") for path in sorted((ROOT / folder).rglob("*.py"))
]


def imported(path: Path) -> Iterator[tuple[str, str]]:
    """The host's modules that a file imports from, with the names; wherever the import stands."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "recd_plugins":
            for alias in node.names:
                yield node.module or "", alias.name
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "recd_plugins":
                    yield alias.name, ""


@pytest.mark.parametrize("name", MODULES)
def test_all_is_what_a_module_shows(name: str) -> None:
    module = importlib.import_module(name)
    shown = [
        one
        for one, value in vars(module).items()
        if not one.startswith("_") and not isinstance(value, ModuleType)
    ]
    assert sorted(shown) == sorted(module.__all__)
    assert len(set(module.__all__)) == len(module.__all__)
    assert (module.__doc__ or "").splitlines()[0].endswith(".")


def test_each_name_is_in_one_module() -> None:
    names = [name for module in MODULES for name in importlib.import_module(module).__all__]
    assert len(names) == len(set(names))


def test_defining_data_and_planning_need_no_torch() -> None:
    assert not loaded_after(f"import {', '.join(WITHOUT_TORCH)}") & {"torch", "torchrec", "numba"}


@pytest.mark.parametrize("path", AUTHORS, ids=lambda path: str(path.relative_to(ROOT)))
def test_plugins_and_examples_import_the_public_face_alone(path: Path) -> None:
    for module, name in imported(path):
        if module == "recd_plugins":
            assert not name or name in recd_plugins.__all__
        else:
            assert module in MODULES
            assert name in importlib.import_module(module).__all__
    # Messages and comments send a reader to what is public, too.
    assert set(re.findall(r"\brecd_plugins\.\w+", path.read_text())) <= {
        FACE,
        *(f"recd_plugins.{name}" for name in recd_plugins.__all__),
    }


def test_the_page_says_of_each_module_how_stable_it_is() -> None:
    rows = re.findall(
        r"^\| `([\w.]+)` \| (stable|provisional) \| .+ \|$",
        (ROOT / "docs/api.md").read_text(),
        re.M,
    )
    assert sorted(module for module, _ in rows) == sorted(["recd_plugins", *MODULES])


def test_each_package_of_the_wheel_is_typed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    for package in project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]:
        assert (ROOT / package / "py.typed").is_file()

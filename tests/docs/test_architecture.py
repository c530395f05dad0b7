"""Rung 1 (values): docs/architecture.md names what there is, and goes with a batch through it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HOST = ROOT / "src/recd_plugins"
TIERS = HOST / "tiers"
PAGE = ROOT / "docs/architecture.md"
PLANNING = HOST / "planning"
TRAINER = HOST / "trainer"
MOST_FILES = 14


def imported(name: str) -> set[str]:
    """The files and folders of tiers/ that one of them imports when it runs."""
    files = [*(TIERS / name).glob("*.py")] or [TIERS / f"{name}.py"]
    return {
        node.module.removeprefix("recd_plugins.tiers.").partition(".")[0]
        for file in files
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").startswith("recd_plugins.tiers.")
    }


def test_planning_has_few_entries() -> None:
    entries = [*PLANNING.glob("[!_]*.py"), *PLANNING.glob("*/__init__.py")]
    assert len(entries) <= 20


def test_every_folder_and_file_of_the_host_is_named() -> None:
    rows = re.findall(r"^\| (`.+?`) \|", PAGE.read_text(), flags=re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+(?:\.py|/))`", row)}
    folders = {f"{path.parent.name}/" for path in HOST.glob("*/__init__.py")}
    files = {path.name for path in HOST.glob("*.py")} - {"__init__.py", "__main__.py"}
    assert sorted((folders | files) - named) == []


def test_the_walk_names_every_file_from_the_collections_down() -> None:
    text = PAGE.read_text()
    steps = re.findall(r"^\| \d \|.*$", text, flags=re.MULTILINE)
    named = {name for step in steps for name in re.findall(r"`(\w+)(?:\.py|/)`", step)}
    planner = {path.stem for path in TIERS.glob("planner/[!_]*.py")}
    within = {path.stem for path in TIERS.glob("*/[!_]*.py")} - planner
    assert within <= named
    assert planner <= set(re.findall(r"`(\w+)\.py`", text))
    walk = named - within
    reached, ahead = set(), {"collections"}
    while ahead:
        name = ahead.pop()
        reached.add(name)
        ahead |= imported(name) - reached
    assert walk == reached
    assert len(walk) <= MOST_FILES
    folders = [name for name in walk if (TIERS / name).is_dir()]
    assert f"These are {len(walk) - len(folders)} files and {len(folders)} folders" in text


def test_a_plans_way_is_the_same_in_the_page_and_in_the_package() -> None:
    there = {path.stem for path in PLANNING.rglob("[!_]*.py")}
    there |= {path.parent.name for path in PLANNING.glob("*/__init__.py")}
    section = PAGE.read_text().partition("## A plan's way")[2].partition("\n## ")[0]
    page = set(re.findall(r"`(\w+)(?:\.py|/)`", section)) - {"__init__", "planning", "tiers"}
    assert sorted(page - there) == []
    guide = ast.get_docstring(ast.parse((PLANNING / "__init__.py").read_text())) or ""
    steps = re.findall(r"^    .* {2}([a-z_]+(?:, [a-z_]+)*)$", guide, flags=re.MULTILINE)
    package = {name for step in steps for name in step.split(", ")}
    assert len(package) > 15
    assert sorted(package - page) == []


@pytest.mark.parametrize(
    "package",
    [
        *(
            TIERS / name
            for name in ("collections", "exchange", "gradients", "replicas", "routing", "updates")
        ),
        *(
            PLANNING / name
            for name in ("cluster", "prices", "tables", "tier_plans", "torchrec_plan")
        ),
        *(TRAINER, TRAINER / "checkpoints", TRAINER / "measure"),
        *(HOST / name for name in ("hooks", "registry", "stack")),
    ],
)
def test_the_guide_of_a_package_names_its_files(package: Path) -> None:
    module = ast.parse((package / "__init__.py").read_text())
    guide = ast.get_docstring(module, clean=False) or ""
    steps = re.findall(r"^    .* {2}(\w+(?:, \w+)*)$", guide, flags=re.MULTILINE)
    named = {name for step in steps for name in step.split(", ")}
    there = {path.stem for path in package.glob("[!_]*.py")}
    there |= {path.parent.name for path in package.glob("*/__init__.py")}
    assert sorted(named - there) == []
    assert sorted(there - named - set(re.findall(r"`(\w+)`", guide))) == []

"""Value tests: the docs say what the docstrings say, and every name and link in them holds."""

from __future__ import annotations

import ast
import re
import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from recd_plugins.cli.main import app
from recd_plugins.cli.new_plugin import example
from recd_plugins.hooks.specs import HOOKS
from recd_plugins.slots import SLOTS, Context, Record

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])


@pytest.fixture(scope="module")
def reference() -> object:
    return program("reference")


def program(name: str) -> Any:
    """A program of docs/."""
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        return import_module(name)
    finally:
        sys.path.remove(str(ROOT / "docs"))


def test_the_picture_is_drawn_anew_when_plugins_change() -> None:
    picture = program("picture")
    for path, text in picture.files().items():
        assert path.read_text() == text, "run: python docs/picture.py"
    slots = {slot for stage in picture.STAGES.values() for slot in stage}
    assert slots | {"stats"} == set(SLOTS)


@pytest.mark.parametrize("page", ["slots", "train", "commands", "api"])
def test_the_reference_is_written_anew_when_docstrings_change(page: str, reference: object) -> None:
    written = (ROOT / f"docs/{page}.md").read_text()
    assert written == getattr(reference, f"{page}_page")(), "run: python docs/reference.py"


def test_every_slot_and_hook_has_its_place() -> None:
    text = (ROOT / "docs/slots.md").read_text()
    for slot, record in SLOTS.items():
        assert f"\n## {slot}\n" in text
        assert record.__name__ in text
    for hook in HOOKS:
        assert f"`{hook}()`" in text


def test_every_member_of_what_slots_build_is_there_with_a_text(reference: Any) -> None:
    page = (ROOT / "docs/slots.md").read_text()
    kinds = [kind for kinds in reference.BUILDS.values() for kind in kinds]
    for kind in (*kinds, Context, Record):
        for line in reference._members(kind):
            assert line.strip() in page
            assert not line.endswith(("`: ", "a property")), f"{kind.__name__}: {line} says nothing"
    for name in ("groups", "__iter__", "load_state_dict", "in_place", "neighbours", "features:"):
        assert f"`{name}" in page
    assert "preprocess: [{use: name, features: [feature, glob], option: value}, ...]" in page


@pytest.mark.parametrize("slot", SLOTS)
def test_a_slots_example_is_what_is_written_for_it(slot: str) -> None:
    section = (ROOT / "docs/slots.md").read_text().split(f"\n## {slot}\n")[1].split("\n## ")[0]
    (block,) = re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)
    assert block == example(f"my_{slot}", slot)
    ast.parse(block)  # that it runs is tested in tests/host/test_new_plugin.py


def _code_blocks(page: Path) -> list[str]:
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return [text for language, text in blocks if language in ("", "sh", "bash", "console")]


def _commands(pattern: str) -> dict[str, set[str]]:
    """What code of each page has of a pattern, where it has any."""
    found = {}
    for page in PAGES:
        inline = re.findall(r"`([^`\n]+)`", page.read_text())
        if matches := re.findall(pattern, "\n".join([*_code_blocks(page), *inline])):
            found[str(page.relative_to(ROOT))] = set(matches)
    return found


COMMANDS = _commands(r"(?:^|\s)recd ([a-z]+(?: [a-z][a-z-]*)?)\b")
TARGETS = _commands(r"(?:^|\s)make ([a-z]+)\b")


@pytest.mark.parametrize("page", COMMANDS)
def test_every_recd_command_that_the_docs_name_exists(page: str) -> None:
    for command in sorted(COMMANDS[page]):
        assert exists(command), f"{page} names `recd {command}`"


@cache
def exists(command: str) -> bool:
    """Many pages name a command; behind one that has no commands of its own stand arguments."""
    first, *more = command.split()
    shown = CliRunner().invoke(app, [first, "--help"])
    if more and "COMMAND [ARGS]..." in shown.output:
        shown = CliRunner().invoke(app, [first, *more, "--help"])
    return shown.exit_code == 0


@pytest.mark.parametrize("page", TARGETS)
def test_every_make_target_that_the_docs_name_exists(page: str) -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in sorted(TARGETS[page]):
        assert f"\n{target}:" in makefile, f"{page} names `make {target}`"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert page.parent.joinpath(link).exists(), link


def test_the_readme_runs_what_ci_runs() -> None:
    assert "make test" in (ROOT / "README.md").read_text()
    assert "make test" in (ROOT / ".ci/run").read_text()

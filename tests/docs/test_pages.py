"""Rung 1 (values): what pages name is there: headings that links lead to, options of commands."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from recd_plugins.cli.main import app

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])
LINK = re.compile(r"\]\(([^)#:\s]*)#([^)\s]+)\)")
CODE = re.compile(r"```(?:sh|bash|console)\n(.*?)```|`([^`\n]+)`", flags=re.DOTALL)
FENCED = re.compile(r"^```.*?^```", flags=re.DOTALL | re.MULTILINE)


@functools.cache
def anchors(page: Path) -> set[str]:
    """What GitHub makes of a page's headings: lower case, words joined by hyphens."""
    headings = re.findall(r"^#+ (.+)$", FENCED.sub("", page.read_text()), flags=re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.strip().replace(" ", "-") for heading in plain}


@functools.cache
def links() -> dict[str, list[tuple[str, str]]]:
    """Target and anchor of the links of each page that has some."""
    found = {str(page.relative_to(ROOT)): LINK.findall(page.read_text()) for page in PAGES}
    return {page: each for page, each in found.items() if each}


def test_there_are_links_to_check() -> None:
    assert links()


@pytest.mark.parametrize("page", links())
def test_every_anchor_is_a_heading(page: str) -> None:
    path = ROOT / page
    for target, anchor in links()[page]:
        assert anchor in anchors(path.parent / target if target else path)


@functools.cache
def options() -> dict[str, set[tuple[str, str]]]:
    """Command and option, wherever a page writes `recd ... --option`, by page."""
    found = {
        str(page.relative_to(ROOT)): {
            (line[:end].strip(), option)
            for block, inline in CODE.findall(page.read_text())
            for line in re.findall(r"^(?:\$ )?recd (.*)$", block or inline, flags=re.MULTILINE)
            for end in [re.match(r"[a-z ]*", line).end()]  # type: ignore[union-attr]
            for option in re.findall(r"(?<!\S)--[a-z][a-z-]*", line.split("#")[0])
        }
        for page in PAGES
    }
    return {page: each for page, each in found.items() if each}


@functools.cache
def help_of(command: str) -> str:
    """`recd plugins NAME` is short for `recd plugins show NAME`."""
    words = ["plugins", "show"] if command == "plugins" else command.split()
    return CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "300"}).output


@pytest.mark.parametrize("page", options())
def test_every_option_that_a_page_names_exists(page: str) -> None:
    for command, option in sorted(options()[page]):
        named = f"{page} names `recd {command} {option}`"
        assert re.search(rf"{option}\b", help_of(command)), named

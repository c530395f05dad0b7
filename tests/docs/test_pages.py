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


def anchors(page: Path) -> set[str]:
    """What GitHub makes of a page's headings: lower case, words joined by hyphens."""
    headings = re.findall(r"^#+ (.+)$", FENCED.sub("", page.read_text()), flags=re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.strip().replace(" ", "-") for heading in plain}


def links() -> list[tuple[str, str, str]]:
    return [
        (str(page.relative_to(ROOT)), target, anchor)
        for page in PAGES
        for target, anchor in LINK.findall(page.read_text())
    ]


def test_there_are_links_to_check() -> None:
    assert links()


@pytest.mark.parametrize(("page", "target", "anchor"), links())
def test_every_anchor_is_a_heading(page: str, target: str, anchor: str) -> None:
    path = ROOT / page
    assert anchor in anchors(path.parent / target if target else path)


def options() -> list[tuple[str, str, str]]:
    """Page, command and option, wherever a page writes `recd ... --option`."""
    return sorted(
        {
            (str(page.relative_to(ROOT)), line[:end].strip(), option)
            for page in PAGES
            for block, inline in CODE.findall(page.read_text())
            for line in re.findall(r"^(?:\$ )?recd (.*)$", block or inline, flags=re.MULTILINE)
            for end in [re.match(r"[a-z ]*", line).end()]  # type: ignore[union-attr]
            for option in re.findall(r"(?<!\S)--[a-z][a-z-]*", line.split("#")[0])
        }
    )


@functools.cache
def help_of(command: str) -> str:
    """`recd plugins NAME` is short for `recd plugins show NAME`."""
    words = ["plugins", "show"] if command == "plugins" else command.split()
    return CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "300"}).output


@pytest.mark.parametrize(("page", "command", "option"), options())
def test_every_option_that_a_page_names_exists(page: str, command: str, option: str) -> None:
    assert re.search(rf"{option}\b", help_of(command)), f"{page} names `recd {command} {option}`"

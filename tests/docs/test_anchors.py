"""Rung 1 (values): a link into a page leads to a heading that the page has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])
LINK = re.compile(r"\]\(([^)#:\s]*)#([^)\s]+)\)")
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

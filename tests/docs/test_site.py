"""The site has every page in its navigation, and every link of the staged pages leads somewhere."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def site() -> Any:
    sys.path.insert(0, str(DOCS))
    try:
        return import_module("site_of_docs")
    finally:
        sys.path.remove(str(DOCS))


def test_every_page_has_its_place(site: Any) -> None:
    named = [name for names in site.NAVIGATION.values() for name in names]
    assert sorted(named) == sorted([*site.WRITTEN, *(path.stem for path in DOCS.glob("*.md"))])


def test_links_lead_somewhere_within_the_site(site: Any, tmp_path: Path) -> None:
    site.stage(tmp_path)
    links = 0
    for page in tmp_path.rglob("*.md"):
        if page.name.endswith((".py.md", ".yaml.md", ".yml.md", ".ipynb.md")):
            continue
        for path in re.findall(r"\]\(([^)\s#:]+)(?:#[^)\s]*)?\)", page.read_text()):
            assert (page.parent / path).exists(), f"{page.relative_to(tmp_path)}: {path}"
            links += 1
    assert links > 100
    assert (tmp_path / site.SEARCH).exists()
    assert "class PoolingRecord" in (tmp_path / "src/recd_plugins/slots/records.py.md").read_text()
    assert "write key=value" in (tmp_path / "docs/messages.md").read_text()
    assert "40: Advice is a registry" in (tmp_path / "docs/decisions/index.md").read_text()

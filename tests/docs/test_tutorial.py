"""Example runs: what the pages for plugin authors say to do, done in an empty folder."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from snippets import Reader

pytestmark = pytest.mark.slow

DOCS = Path(__file__).parents[2] / "docs"


def test_the_tutorial_leads_from_nothing_to_a_published_plugin(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    reader.read(DOCS / "tutorial.md")
    assert reader.ran[0] == "recd plugins new recent"
    assert "recd train" in reader.ran
    assert reader.ran[-1] == "recd plugins recent"


def test_the_page_for_plugin_authors_works_as_it_stands(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    reader.read(DOCS / "plugins.md")
    assert "python -m pytest -q test_fading.py" in reader.ran


def test_the_guide_for_tier_planners_leads_to_a_cache_that_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A test before this one may have loaded an example, whose folder is then on the path.
    examples = str(DOCS.parent / "examples")
    monkeypatch.setattr(sys, "path", [one for one in sys.path if one != examples])
    reader = Reader(tmp_path)
    reader.read(DOCS / "tier_planners.md")
    assert reader.ran[-1] == "recd train"
    written = (tmp_path / "my_cache/src/my_cache/__init__.py").read_text()
    assert written == (DOCS.parent / "examples/my_cache.py").read_text()
    assert len(written.splitlines()) <= 90

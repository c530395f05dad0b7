"""Rung 1 (values): the glossary names classes that the code has, and each word once."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/glossary.md").read_text()
CODE = TEXT.split("\n## Words of the code\n")[1]


def words(text: str) -> list[str]:
    """The first cells of the tables, without their heads and rules."""
    cells = re.findall(r"^\| (.+?) \|", text, flags=re.MULTILINE)
    return [cell for cell in cells if cell not in ("word", "class")]


def test_each_word_stands_once() -> None:
    assert [word for word, times in Counter(words(TEXT)).items() if times > 1] == []


def test_each_class_is_in_the_code() -> None:
    files = [path for folder in ("src", "plugins") for path in (ROOT / folder).rglob("*.py")]
    code = "\n".join(path.read_text() for path in files)
    classes = set(re.findall(r"^class (\w+)", code, flags=re.MULTILINE))
    named = {name for cell in words(CODE) for name in re.findall(r"`(\w+)`", cell)}
    assert named
    assert sorted(named - classes) == []


def test_it_is_where_a_newcomer_looks() -> None:
    for page in ("docs/architecture.md", "CONTRIBUTING.md", "README.md"):
        assert "glossary.md" in (ROOT / page).read_text()

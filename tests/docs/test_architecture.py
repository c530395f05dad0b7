"""Rung 1 (values): docs/architecture.md walks with a batch through the files that it takes."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TIERS = ROOT / "src/recd_plugins/tiers"
MOST_FILES = 14


def imported(name: str) -> set[str]:
    """The files of tiers/ that one of them imports when it runs."""
    return {
        node.module.removeprefix("recd_plugins.tiers.")
        for node in ast.parse((TIERS / f"{name}.py").read_text()).body
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").startswith("recd_plugins.tiers.")
    }


def test_the_walk_names_every_file_from_the_collections_down() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    steps = re.findall(r"^\| \d \|.*$", text, flags=re.MULTILINE)
    walk = {name for step in steps for name in re.findall(r"`(\w+)\.py`", step)}
    reached, ahead = set(), {"tier_collections"}
    while ahead:
        name = ahead.pop()
        reached.add(name)
        ahead |= imported(name) - reached
    assert walk == reached
    assert len(walk) <= MOST_FILES
    assert f"These are {len(walk)} files" in text

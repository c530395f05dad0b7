"""Example runs: docs/own-data.md does to MovieLens' and Criteo's raw files what it says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from snippets import Reader, blocks

pytestmark = pytest.mark.slow

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_leads_from_raw_files_to_trained_models(
    tmp_path: Path, real_data: Callable[[str], Path]
) -> None:
    """Criteo's days are parts of its samples."""
    ratings, clicks = real_data("ml100k/ml-100k.inter"), real_data("criteo/kaggle_8k.tsv")
    reader = Reader(tmp_path)
    (tmp_path / ratings.name).symlink_to(ratings)
    lines = clicks.read_bytes().splitlines(keepends=True)
    (tmp_path / "day_0").write_bytes(b"".join(lines[:4_000]))
    (tmp_path / "day_1").write_bytes(b"".join(lines[4_000:]))
    (tmp_path / "day_2").symlink_to(real_data("criteo/kaggle_2k.tsv"))
    page = DOCS / "own-data.md"
    reader.read(page)
    assert reader.ran[-1] == "recd train -r criteo.yaml train.steps=40"
    assert len(list(tmp_path.glob("runs/*/summary.json"))) == 2
    suggested = (tmp_path / "ratings.yaml").read_text()
    (shown,) = (text for _, text in blocks(page) if text.startswith("timestamp: "))
    for line in shown.splitlines():
        assert line.removesuffix(", ...") in suggested

"""Value test: the figures as a browser paints them, beside those that somebody looked at.

`python tests/report/test_screenshot.py` paints them anew, after a change that is meant.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from pages import sources_of
from PIL import Image

from recd_plugins.report.page import body, framed

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)
PAINTED = Path(__file__).with_name("figures.png")
WIDTH, HEIGHT, CELL = 700, 6_000, 20
"""Pixels of all figures, and of the cells of which means are compared."""
OF_A_WORD = 110
"""What a cell may differ by: other fonts paint a word elsewhere, which covers less than half of a
cell. A bar covers all of it, and is 120 and more darker than the page."""
ALONE = """
<script>
addEventListener("load", () => {
  const rows = [...document.querySelectorAll("svg.plot")].map(one => {
    const row = document.createElement("div");
    row.style = "padding: 10px 100px; overflow: hidden; line-height: 0";
    row.append(one);
    return row;
  });
  document.body.replaceChildren(...rows);
  document.body.style = "margin: 0; padding: 0; max-width: none";
});
</script>
"""
"""Leaves the figures' drawings alone on the page: these are as high whatever fonts there are."""


def painted(folder: Path) -> npt.NDArray[np.float64]:
    """The means of the figures' cells, from 0 (black) to 255, one figure below the other."""
    assert CHROMIUM is not None
    sources = sources_of(folder)
    (folder / "page.html").write_text(framed(sources.title, body(sources), script=ALONE))
    command = [
        CHROMIUM,
        *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
        *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
        *(f"--user-data-dir={folder / 'profile'}", f"--window-size={WIDTH},{HEIGHT}"),
        *("--force-device-scale-factor=1", "--hide-scrollbars", "--virtual-time-budget=3000"),
        *(f"--screenshot={folder / 'figures.png'}", f"file://{folder}/page.html"),
    ]
    subprocess.run(command, capture_output=True, timeout=300, check=True)
    with Image.open(folder / "figures.png") as picture:
        pixels = np.asarray(picture.convert("L"), np.float64)
    high, wide = (side // CELL for side in pixels.shape)
    cells = pixels[: high * CELL, : wide * CELL].reshape(high, CELL, wide, CELL)
    return cells.mean(axis=(1, 3))


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs the browser chromium")
def test_figures_look_as_they_did(tmp_path: Path) -> None:
    found = painted(tmp_path)
    with Image.open(PAINTED) as picture:
        wanted = np.asarray(picture, np.float64)
    assert found.shape == wanted.shape
    off = np.abs(found - wanted)
    down, right = np.unravel_index(off.argmax(), off.shape)
    assert off.max() < OF_A_WORD, (
        f"it differs {CELL * down} pixels down and {CELL * right} to the right"
    )
    assert off.mean() < 2


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        Image.fromarray(np.round(painted(Path(folder))).astype(np.uint8)).save(PAINTED)
        if len(sys.argv) > 1:
            shutil.copy(Path(folder) / "figures.png", sys.argv[1])

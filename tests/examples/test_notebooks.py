"""Example runs: the notebooks of examples/, cell by cell, without Jupyter."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples" / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.filterwarnings("ignore")  # TorchRec's own, which a notebook would only show
def test_its_cells_run_in_order_and_draw(
    notebook: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    real_data: Callable[[str], Path],
) -> None:
    cells = json.loads(notebook.read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert not any(cell.get("outputs") for cell in cells), "clear its outputs"
    if "clicks.tsv" in code[0]:
        (tmp_path / "clicks.tsv").symlink_to(real_data("yoochoose/clicks.tsv"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    names: dict[str, Any] = {"__name__": notebook.stem}
    for number, text in enumerate(code):
        exec(compile(text, f"{notebook.name}, cell {number}", "exec"), names)
    drawn = [one for one in names.values() if isinstance(one, Figure)]
    assert len(drawn) >= 2
    assert all(axes.has_data() for figure in drawn for axes in figure.axes[:1])

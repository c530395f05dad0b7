"""Rung 1 and 4 (values, a run): the scars suite on small tables has every row of its targets."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.scars.tables import LAWS, Columns, Law

ROOT = Path(__file__).parents[2]

SMALL = """
import numpy as np, torch
from benchmarks.harness import main
from benchmarks.scars.__main__ import compare
from benchmarks.scars.tables import Columns

if __name__ == "__main__":
    torch.set_num_threads(1)
    draw = np.random.default_rng(0)
    columns = Columns([draw.zipf(1.5, 4096) % 500 for _ in range(3)])
    main("scars", lambda quick: compare(columns, num_rows=20_000, ids=20_000, rounds=3))
"""

TARGETS = {
    **{f"rows of a coalesced batch against the formula, {name}": 2.0 for name in (*LAWS, "Criteo")},
    **{
        f"bytes of a step against the formula, {name}, {cached}% cached": 2.0
        for name in (*LAWS, "Criteo")
        for cached in (0, 1)
    },
    "rows of a batch that was not counted, Criteo": None,
    "communication of an epoch, 5x rows and 5x batch, exponential": 1.5,
    "communication of an epoch, 5x rows and 5x batch, half-normal": 1.5,
    "communication of an epoch, 5x rows and 5x batch, Zipf 1.05": 2.0,
    "coalescing kernel, times as fast as torch.unique with inverse": 2.0,
}


def test_the_suite_on_small_tables(tmp_path: Path) -> None:
    script = tmp_path / "small.py"
    script.write_text(SMALL)
    done = subprocess.run(
        [sys.executable, str(script), "--json"],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    figures = {figure["name"]: figure for figure in json.loads(done.stdout)["figures"]}
    assert {name: figure["target"] for name, figure in figures.items()} == TARGETS
    for name, figure in figures.items():
        assert figure["note"]
        if "kernel" not in name and figure["target"]:  # no load of the machine changes these
            assert figure["met"], figure


@pytest.mark.parametrize("name", LAWS)
def test_ids_are_drawn_as_their_distribution_says(name: str) -> None:
    law = Law(name, 1_000, 2)
    (ids,) = law.draw(50_000, seed=1).values()
    counted = np.bincount(ids.numpy(), minlength=1_000)
    rows = law.rows["table"]
    assert rows.lookups == pytest.approx(2)
    assert counted.sum() == 100_000
    expected = 50_000 * np.repeat(rows.p, rows.counts)
    # A count's deviation is its root; none of 1,000 is off by 6.
    assert np.all(np.abs(counted - expected) < 6 * np.sqrt(expected) + 6)


def test_criteos_samples_are_drawn_whole() -> None:
    columns = Columns([np.array([0, 1, 1, 2]), np.array([5, 6, 6, 7])])
    one, other = columns.draw(100, seed=0).values()
    assert (other - one == 5).all()
    rows = columns.rows["cat_0"]
    assert rows.p.tolist() == [0.5, 0.25, 0.25]
    assert rows.ids is not None
    assert rows.ids.tolist() == [1, 0, 2]
    assert columns.rows["cat_1"].num_rows == 8

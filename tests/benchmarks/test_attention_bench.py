"""Rung 4 (a run): the attention suite measures, and its sides compute the same."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

SMALL = """
import torch, warnings
from benchmarks.attention import compare_all
from benchmarks.harness import main

warnings.filterwarnings("ignore", message="The PyTorch API of nested tensors")
torch.set_num_threads(1)
main("attention", lambda quick: compare_all(rows=8, samples=32, rounds=2))
"""


def test_every_comparison_on_a_small_batch() -> None:
    printed = subprocess.run(
        [sys.executable, "-c", SMALL, "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    ).stdout
    report = json.loads(printed)
    figures = {figure["name"]: figure for figure in report["figures"]}
    for baseline in ("padded + mask", "nested SDPA"):
        figure = figures[f"jagged attention: ours against {baseline}"]
        assert figure["target"] == 6.0
        assert figure["met"] == (figure["value"] >= 6.0)
    assert len(figures) == 7
    assert all(figure["value"] > 0 for figure in figures.values())
    assert report["conditions"]["settings"]["threads"] == 1

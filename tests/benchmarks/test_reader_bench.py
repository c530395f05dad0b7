"""Rung 1 and 4 (values, a run): what a suite prints, and that the reader's suite measures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from forked import run_module

from benchmarks.harness import ALLOCATOR

ROOT = Path(__file__).parents[2]

TOY = """
import os
from benchmarks.harness import ALLOCATOR, Figure, Limit, Report, alternate, main, spread

def measure(quick):
    order = []
    sides = {name: lambda name=name: order.append(name) or len(order) for name in "ab"}
    measured = alternate(sides, rounds=3, of="toy figure")
    assert order == list("abbaabba"), order
    assert [one.result for one in measured["a"]] == [4, 5, 8]  # the first round warmed up
    (left,) = alternate({"slow": str}, rounds=3, of="slow figure", seconds=1e-9).values()
    assert len(left) == 1  # it has had its time
    turns = []
    alternate({"b": lambda: turns.append("b")}, 1, of="toy", before=lambda: turns.append("a"))
    assert turns == list("abab")
    assert all(os.environ[name] == value for name, value in ALLOCATOR.items())
    return Report(
        figures=[
            Figure(
                name="half",
                value=0.5,
                unit="s",
                baseline=1,
                target=0.6,
                limit=Limit(value=1.0, of="a whole"),
                spread=spread([1, 2]),
            ),
            Figure(name="free", value=2, unit="s"),
        ],
        settings={"rows": 1 if quick else 2},
        seed=3,
    )

main("toy", measure)
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )


def test_json_is_one_object_and_nothing_else():
    printed = json.loads(run("-c", TOY, "--quick", "--json").stdout)
    assert set(printed) == {"suite", "conditions", "figures"}
    assert printed["suite"] == "toy"
    assert set(printed["conditions"]) == {"machine", "versions", "settings", "seed"}
    assert printed["conditions"]["seed"] == 3
    assert printed["conditions"]["settings"]["rows"] == 1
    assert printed["conditions"]["machine"]["cores"] >= 1
    assert {"python", "torch", "pyarrow"} <= set(printed["conditions"]["versions"])
    half, free = printed["figures"]
    assert half == {
        "name": "half",
        "value": 0.5,
        "unit": "s",
        "baseline": 1,
        "target": 0.6,
        "at_most": False,
        "limit": {"value": 1.0, "of": "a whole"},
        "share": 0.5,
        "spread": pytest.approx(1 / 3),
        "note": "",
        "met": False,
    }
    assert free["target"] is free["met"] is free["limit"] is free["share"] is None


def test_without_json_a_table_with_its_conditions():
    printed = run("-c", TOY).stdout
    assert max(map(len, printed.splitlines())) <= 80
    parts = (
        "half",
        "0.5 s",
        "≥ 0.6, missed",
        "33.3%",
        "1: limit 1, of which 50% is reached: a whole",
    )
    for part in (*parts, "MALLOC_MMAP_THRESHOLD_", "seed: 3"):
        assert part in printed


READER = """
import sys
from itertools import islice
from pathlib import Path
from benchmarks import reader, readers_beside
from benchmarks.harness import main

table = reader.write_table(Path(sys.argv.pop()) / "table", reader.SCHEMA, reader.chunks(3000))
beside = readers_beside.beside(table, 1, Path())
assert all(one.value > 0 for one in beside.figures)
wide = reader.with_wide_ids(table, table.path.with_name("wide"))
main("reader", lambda quick: reader.compare(wide, table, rounds=2))
"""


def test_the_readers_suite_on_a_small_table(tmp_path):
    (tmp_path / "suite.py").write_text(READER)
    # It starts anew for the allocator, unless it has it; how fast it is is not asked here.
    path = f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"
    environment = {"PYTHONPATH": path, **ALLOCATOR}
    done = run_module("suite", "--json", str(tmp_path), folder=tmp_path, environment=environment)
    assert done.code == 0, done.err
    printed = json.loads(done.out)
    figures = {figure["name"]: figure for figure in printed["figures"]}
    share = figures["reader, share of pyarrow's rows/s"]
    assert share["target"] == 0.85
    assert share["met"] == (share["value"] >= 0.85)
    ours = figures["reader, our files, share of pyarrow's rows/s"]
    costs = [figures[f"{one}, CPU per million rows"] for one in ("reader", "reader, our files")]
    for figure in (share, ours, *costs):
        assert figure["limit"]["value"] > 0
        assert figure["share"] > 0
    assert share["limit"]["value"] <= 1
    rates = figures["reader, rows/s"]
    assert rates["value"] > 0 < rates["baseline"]
    settings = printed["conditions"]["settings"]
    assert settings["rows"] == 3000
    assert settings["file_mb, ours"] < settings["file_mb, ids of 8 bytes"]

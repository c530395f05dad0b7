"""Rung 1 (real processes): memory follows the option and not the table."""

from __future__ import annotations

import numpy as np
import pytest
from forked import run_module
from session_tables import SCHEMA, rows_of

from recd_plugins.data.table_writer import TableWriter

pytestmark = pytest.mark.slow

PEAK = """
import sys
from pathlib import Path
import pyarrow as pa
from recd_dedup.etl.cluster import ClusterConfig, build_cluster
from recd_plugins.data.progress import silent
from recd_plugins.data.table import Table
from recd_plugins.slots import Context

memory_gb, *sources = sys.argv[1:]
for source in sources:
    step = build_cluster(ClusterConfig(memory_gb=float(memory_gb)), Context())
    step.run(Table.open(Path(source)), Path(source + "-clustered"), silent)
print(pa.default_memory_pool().max_memory())
"""


def test_arrow_never_holds_more_than_was_allowed(tmp_path):
    """Whether there are many sessions or one that is the whole table, of 12 MB each."""
    draw = np.random.default_rng(0)
    sources = []
    for sessions in (5_000, 1):
        source = tmp_path / f"of-{sessions}"
        with TableWriter(source, SCHEMA, rows_per_stripe=4_096) as writer:
            for part in range(2):
                ids = draw.integers(0, sessions, 60_000)
                writer.write(rows_of(ids, draw.integers(0, 10**9, ids.size), seed=part))
        sources.append(str(source))
    size, allowed = 2 * 60_000 * (2 * 4 * 8 + 32), 5e6
    (tmp_path / "peak.py").write_text(PEAK)
    done = run_module("peak", str(allowed / 1e9), *sources, folder=tmp_path)
    assert done.code == 0, done.err
    assert size > 2 * allowed
    assert int(done.out) < allowed

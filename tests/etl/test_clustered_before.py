"""Values on files: a table whose rows are clustered already is clustered once more, and a notice
says so."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
from session_tables import mixed_rows, read, rows_of, table_of

import recd_plugins as rp
from recd_dedup.etl.cluster import ClusterBySession, ClusterConfig
from recd_plugins.data.table import Table
from recd_plugins.notices import NoticeWarning

NOTICE = "cluster_by_session is not needed: the rows that it was given were clustered already"


@pytest.mark.parametrize("memory_gb", [4e-5, 1.0])
def test_only_rows_in_its_own_order_are_no_news(tmp_path: Path, memory_gb: float) -> None:
    """Of 500 rows, spilled in many files or in one."""

    def finds(name: str, table: Table, *, leave_out_repeats: bool = False) -> tuple[Table, bool]:
        config = ClusterConfig(memory_gb=memory_gb, leave_out_repeats=leave_out_repeats)
        step = ClusterBySession(config)
        assert not step.notices()
        return step.run(table, tmp_path / name), bool(step.notices())

    once, news = finds("once", table_of(tmp_path / "source", mixed_rows()))
    assert not news
    twice, news = finds("twice", once)
    assert news
    assert read(twice).equals(read(once))
    assert not finds("smaller", once, leave_out_repeats=True)[1]
    by_id = rows_of(range(500), range(500))  # each in one piece, but not by their hashes
    assert not finds("by id", table_of(tmp_path / "ids", by_id))[1]
    backwards = rows_of([7] * 500, range(500, 0, -1))
    assert not finds("by time", table_of(tmp_path / "backwards", backwards))[1]


def test_it_is_said_where_the_table_is_made(tmp_path: Path) -> None:
    registry = {
        "plugins": ["recd_dlrm", "recd_dedup"],
        "folder": str(tmp_path),
        "dataset": {"use": "sessions", "samples": 512},
        "etl": ["cluster_by_session", "cluster_by_session"],
        "train": {"batch_size": 16},
    }
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        rp.load(registry).prepare()
    (found,) = (str(one.message) for one in caught if one.category is NoticeWarning)
    assert NOTICE in found

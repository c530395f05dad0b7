"""Figures of new_plugin, and the contract of its slot."""

from __future__ import annotations

from pathlib import Path

from recd_plugins.api.data import Schema, SparseFeature, silent
from recd_plugins.api.testing import check_record, random_table
from recd_plugins.cli.templates.stats import NewPlugin, recd_stats

SCHEMA = Schema(sparse=(SparseFeature(name="item", num_ids=50),))


def test_labels_are_counted(tmp_path: Path) -> None:
    report = NewPlugin().measure(random_table(tmp_path / "table", SCHEMA, 500), silent)
    assert 0.4 < report.values["label_1"] < 0.6


def test_the_record_keeps_its_slots_contract() -> None:
    (record,) = recd_stats()
    check_record(record)

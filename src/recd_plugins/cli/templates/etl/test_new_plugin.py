"""Rows of new_plugin, and the contract of its slot."""

from __future__ import annotations

from pathlib import Path

from recd_plugins.api.data import Schema, SparseFeature, silent
from recd_plugins.api.testing import check_record, random_table
from recd_plugins.cli.templates.etl import NewPlugin, recd_etl

SCHEMA = Schema(sparse=(SparseFeature(name="item", num_ids=50),))


def test_every_third_row_stays(tmp_path: Path) -> None:
    table = random_table(tmp_path / "all", SCHEMA, 60)
    assert NewPlugin(3).run(table, tmp_path / "some", silent).num_rows == 20


def test_the_record_keeps_its_slots_contract() -> None:
    (record,) = recd_etl()
    check_record(record)

"""Rows of new_plugin, and the contract of its slot."""

from __future__ import annotations

from recd_plugins.api.testing import check_record
from recd_plugins.cli.templates.dataset import NewPlugin, NewPluginConfig, recd_dataset


def test_even_items_are_clicked() -> None:
    (rows,) = NewPlugin(NewPluginConfig(samples=50)).chunks("train")
    for row in rows.to_pylist():
        (item,) = row["item"]
        assert row["label"] == (item % 2 == 0)


def test_the_record_keeps_its_slots_contract() -> None:
    (record,) = recd_dataset()
    check_record(record, options={"samples": 200})

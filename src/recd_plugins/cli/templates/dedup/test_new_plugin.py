"""The contract of new_plugin's slot, and what it makes of a batch."""

from __future__ import annotations

import pytest

from recd_plugins.api import Context
from recd_plugins.api.data import Schema, SparseFeature
from recd_plugins.api.testing import check_record
from recd_plugins.cli.templates.dedup import NewPluginConfig, build, recd_dedup

SCHEMA = Schema(
    sparse=(
        SparseFeature(name="history", num_ids=50, kind="user"),
        SparseFeature(name="item", num_ids=50),
    )
)


def test_features_of_a_kind_are_taken() -> None:
    assert build(NewPluginConfig(), Context(schema=SCHEMA)).groups == (("history",),)


@pytest.mark.parametrize("kind", ["user", "item"])
def test_the_record_keeps_its_slots_contract(kind: str) -> None:
    (record,) = recd_dedup()
    check_record(record, options={"kind": kind})

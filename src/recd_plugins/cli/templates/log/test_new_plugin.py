"""The contract of new_plugin's slot: messages in, the same messages out, by log shard."""

from __future__ import annotations

import pytest

from recd_plugins.api.testing import check_record
from recd_plugins.cli.templates.log import recd_log


@pytest.mark.parametrize("shards", [1, 5])
def test_the_record_keeps_its_slots_contract(shards: int) -> None:
    (record,) = recd_log()
    check_record(record, options={"shards": shards})

"""The contract of new_plugin's slot, and what it keeps."""

from __future__ import annotations

from recd_plugins.api.testing import check_record
from recd_plugins.cli.templates.callbacks import NewPlugin, recd_callbacks


def test_a_resumed_run_goes_on_from_the_state() -> None:
    before, after = NewPlugin(), NewPlugin()
    before.largest = 3.5
    after.load_state_dict(before.state_dict())
    assert after.largest == 3.5


def test_the_record_keeps_its_slots_contract() -> None:
    (record,) = recd_callbacks()
    check_record(record)

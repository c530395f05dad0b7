"""The contract of new_plugin's slot: every row once, the same on every try, resumable anywhere."""

from __future__ import annotations

import pytest

from recd_plugins.api.testing import check_record
from recd_plugins.cli.templates.reader import recd_reader


@pytest.mark.parametrize("shuffle", [True, False])
def test_the_record_keeps_its_slots_contract(shuffle: bool) -> None:
    (record,) = recd_reader()
    check_record(record, options={"shuffle": shuffle})

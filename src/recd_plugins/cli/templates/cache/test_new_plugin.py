"""The contract of new_plugin's slot: training with its plan equals training unsharded."""

from __future__ import annotations

import pytest

from recd_plugins.api.testing import GlooPool, check_record
from recd_plugins.cli.templates.cache import recd_cache


@pytest.mark.parametrize("share", [0, 0.5])
def test_the_record_keeps_its_slots_contract(gloo_pool: GlooPool, share: float) -> None:
    (record,) = recd_cache()
    check_record(record, options={"share": share}, pool=gloo_pool)

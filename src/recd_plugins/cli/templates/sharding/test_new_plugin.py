"""The contract of new_plugin's slot: training with its plan equals training unsharded."""

from __future__ import annotations

from recd_plugins.api.testing import GlooPool, check_record
from recd_plugins.cli.templates.sharding import recd_sharding


def test_the_record_keeps_its_slots_contract(gloo_pool: GlooPool) -> None:
    (record,) = recd_sharding()
    check_record(record, pool=gloo_pool)

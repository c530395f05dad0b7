"""The contract of new_plugin's slot, and training over ranks as without them."""

from __future__ import annotations

from torch import nn

from recd_plugins.api.data import Schema, SparseFeature
from recd_plugins.api.testing import GlooPool, check_parity, check_record, random_batches
from recd_plugins.cli.templates.model import NewPlugin, recd_model

SCHEMA = Schema(dense=("price",), sparse=(SparseFeature(name="item", num_ids=50),))


def build_model() -> nn.Module:
    return NewPlugin(SCHEMA, dim=8)


def test_the_record_keeps_its_slots_contract() -> None:
    (record,) = recd_model()
    check_record(record)


def test_training_on_two_ranks_equals_training_unsharded(gloo_pool: GlooPool) -> None:
    check_parity(gloo_pool, build_model, random_batches(SCHEMA, steps=2), tables=["sgd"])

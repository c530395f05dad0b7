"""Values of new_plugin, and the contract of its slot."""

from __future__ import annotations

import torch

from recd_plugins.api.testing import check_record
from recd_plugins.cli.templates.pooling import NewPlugin, recd_pooling


def test_a_row_becomes_its_scaled_sum() -> None:
    pooled = NewPlugin(0.5)(torch.tensor([[2.0], [4.0], [6.0]]), torch.tensor([2, 0, 1]))
    assert pooled.tolist() == [[3], [0], [3]]


def test_the_record_keeps_its_slots_contract() -> None:
    (record,) = recd_pooling()
    check_record(record)

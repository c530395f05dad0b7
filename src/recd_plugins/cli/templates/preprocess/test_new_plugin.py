"""Values of new_plugin, and the contract of its slot."""

from __future__ import annotations

import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.api.data import Schema, SparseFeature
from recd_plugins.api.testing import check_record
from recd_plugins.cli.templates.preprocess import NewPlugin, recd_preprocess


def test_ids_become_smaller_and_so_does_the_table() -> None:
    features = KeyedJaggedTensor.from_lengths_sync(
        keys=["item"], values=torch.tensor([3, 10, 14]), lengths=torch.tensor([2, 1])
    )
    transform = NewPlugin(size=10)
    assert transform(features).values().tolist() == [3, 0, 4]
    schema = Schema(sparse=(SparseFeature(name="item", num_ids=100),))
    assert transform.schema(schema).feature("item").num_ids == 10


def test_the_record_keeps_its_slots_contract() -> None:
    (record,) = recd_preprocess()
    check_record(record, options={"size": 5})

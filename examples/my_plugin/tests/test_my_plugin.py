"""What a plugin author tests: values, the slots' contracts, and training over ranks."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import my_plugin
import pytest
import torch
from my_plugin.decay import Decay
from torch import nn

import recd_plugins as rp
from recd_plugins.api import Record
from recd_plugins.api.testing import GlooPool, check_parity, check_record, random_batches

REGISTRY = Path(__file__).parents[1] / "registry.yaml"


def test_a_value_counts_half_after_each_half_life() -> None:
    values = torch.tensor([[8.0], [4.0], [2.0], [5.0]])
    pooled = Decay(half_life=1.0)(values, torch.tensor([3, 0, 1]))
    assert pooled.tolist() == [[8 / 4 + 4 / 2 + 2], [0], [5]]


@pytest.mark.parametrize("record", [*my_plugin.recd_pooling(), *my_plugin.recd_dataset()])
def test_records_keep_the_contracts_of_their_slots(record: Record[Any, Any]) -> None:
    check_record(record)


def load(folder: Path) -> rp.Stack:
    return rp.load(REGISTRY, [f"folder={folder}", "dataset.samples=200"])


def build_model(folder: Path) -> nn.Module:
    return load(folder).model()


def test_training_on_two_ranks_equals_training_unsharded(
    gloo_pool: GlooPool, tmp_path: Path
) -> None:
    batches = random_batches(load(tmp_path).schema, steps=2)
    check_parity(gloo_pool, partial(build_model, tmp_path), batches)

"""Steps of new_plugin, and the contract of its slot."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from recd_plugins.api.testing import check_record
from recd_plugins.cli.templates.optimizer import NewPlugin, recd_optimizer


def test_a_step_has_one_size_whatever_the_gradient() -> None:
    weight = nn.Parameter(torch.ones(3))
    optimizer = NewPlugin([weight], lr=0.5, momentum=0.75)
    for gradient, expected in (
        ([4.0, -0.5, 0.0], [0.5, 1.5, 1.0]),
        ([-1.0, -1.0, 1.0], [0.0, 2.0, 0.5]),  # the mean of the first is 0.5 now
    ):
        weight.grad = torch.tensor(gradient)
        optimizer.step()
        assert weight.tolist() == expected


@pytest.mark.parametrize("momentum", [0, 0.9])
def test_the_record_keeps_its_slots_contract(momentum: float) -> None:
    (record,) = recd_optimizer()
    check_record(record, options={"momentum": momentum})

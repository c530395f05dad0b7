"""Rung 3 (ranks): drawn trainers go on from the states of each other, on one to four ranks, plainly
and by drawn registries, and train together what one trains plainly on the same batches.

`DRAWN=1000:1400 pytest tests/foreign_trainers/test_drawn_states.py` draws others.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch
from drawn_states import LOADS, WAYS, DrawnParts, Left, go_on, undisturbed
from torch import Tensor

from recd_plugins.testing.gloo import GlooPool
from recd_plugins.testing.parity import assert_alike
from recd_plugins.testing.rounding import plain_of

FIRST, LAST = map(int, os.environ.get("DRAWN", "0:6").split(":"))

MEANS = 4e-6
"""What row-wise TorchRec makes of means is a millionth smaller, for it divides bags by their ids
plus 1e-6; and the squares of gradients, which optimizers keep, twice that. Others do not."""

HAD: dict[int, set[str]] = {}
"""What each training had, once it was held to the plain one."""


@pytest.mark.parametrize("seed", range(FIRST, LAST))
def test_what_goes_on_from_a_state_trains_as_plainly(
    gloo_pool: GlooPool, tmp_path: Path, seed: int
) -> None:
    drawn = DrawnParts.of(seed)
    samples: list[list[int]] = []
    before: tuple[str, str] | None = None
    left: list[Left] = []
    had: set[str] = set()
    for number, part in enumerate(drawn.parts):
        state = left[0].state if left else None
        after = str(tmp_path / str(number))
        ranks = part.trainer.world_size
        left = gloo_pool.run(go_on, part, before, after, world_size=ranks)
        if state is not None:
            same(left[0].loaded, state)
            earlier = drawn.parts[number - 1]
            had |= {f"{earlier.side} to {part.side}", earlier.saves, part.loads}
            more = ranks - earlier.trainer.world_size
            had |= {"more ranks" if more > 0 else "fewer ranks" if more < 0 else "as many ranks"}
        had |= {"replicas"} if left[0].replicas else set()
        steps = zip(*(one.samples for one in left), strict=True)
        samples += [[n for rank in step for n in rank] for step in steps]
        before = part.saves, after

    def straight(rounding: AbstractContextManager[Any]) -> dict[str, Tensor]:
        return gloo_pool.run(undisturbed, drawn, samples, rounding, world_size=1)[0]

    expected, bounds = plain_of(straight)
    if any(one.kind == "means" for one in drawn.trainer.collections):
        bounds = bounds.plus({name: MEANS * one.abs() for name, one in expected.items()})
    assert_alike(left[0].state, expected, bounds)
    HAD[seed] = had


def same(loaded: dict[str, Tensor] | None, state: dict[str, Tensor]) -> None:
    """What was loaded is what was left, to the bit."""
    assert loaded is not None
    assert loaded.keys() == state.keys()
    for name, tensor in state.items():
        torch.testing.assert_close(loaded[name], tensor, rtol=0, atol=0, msg=name)


def test_all_that_there_is_was_drawn() -> None:
    if len(HAD) < LAST - FIRST:
        pytest.skip("not all of them ran here")
    sides = {"plain to ours", "ours to plain", "ours to ours"}
    ranks = {"more ranks", "fewer ranks", "as many ranks"}
    assert set.union(*HAD.values()) >= {*sides, *ranks, *LOADS, *WAYS, "replicas"}

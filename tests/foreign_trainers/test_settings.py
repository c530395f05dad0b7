"""Rung 3: settings of a whole process that a trainer may have made: by the lines of
docs/own-trainer.md two gloo ranks train under each what they train without the lines."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pytest
import torch
from foreign import Job, Side, job
from torch import Tensor

from recd_plugins.testing.gloo import GlooPool
from recd_plugins.testing.parity import assert_alike
from recd_plugins.testing.rounding import plain_of

STEPS = 3
Setting = Callable[[], contextlib.AbstractContextManager[object]]


@contextlib.contextmanager
def doubles() -> Iterator[None]:
    """Floats have 64 bits where nobody says how many; tables have 32, as their configs say."""
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(usual)


@contextlib.contextmanager
def strict() -> Iterator[None]:
    """Whatever could come out otherwise in another run, and whatever is not a number, is an
    error."""
    torch.use_deterministic_algorithms(True)
    try:
        with torch.autograd.set_detect_anomaly(True), np.errstate(all="raise"):
            yield
    finally:
        torch.use_deterministic_algorithms(False)


@contextlib.contextmanager
def elsewhere() -> Iterator[None]:
    """Tensors of which nobody says where are on another device than the trainer's, as after
    `torch.set_default_device("cuda")`."""
    with torch.device("meta"):
        yield


def trained(
    setting: Setting, side: Side, rounding: contextlib.AbstractContextManager[object] | None = None
) -> dict[str, Tensor]:
    with setting():
        own: Job = job(side)
        with rounding or contextlib.nullcontext():
            for batch in own.batches(STEPS):
                own.optimizer.zero_grad()
                own.model(batch)[0].backward()
                own.optimizer.step()
        return own.trained()


def trains_alike(setting: Setting) -> None:
    """On a rank."""
    expected = plain_of(partial(trained, setting, "plain"))
    assert_alike(trained(setting, "registry"), *expected)


@pytest.mark.parametrize("setting", [doubles, elsewhere, strict])
def test_a_process_of_other_settings_trains_alike(gloo_pool: GlooPool, setting: Setting) -> None:
    gloo_pool.run(trains_alike, setting)

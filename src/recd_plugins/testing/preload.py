"""The modules that ranks of tests have in common: their server imports them once, before it forks
the ranks.

It also calls a kernel: what numba loads at the first call, or compiles in a new environment, would
otherwise take every rank the same time again. And the garbage collector leaves alone everything
that exists by then: a rank that collected garbage would copy all of its server's memory.
"""

from __future__ import annotations

import gc

import torch

import recd_plugins.stack
import recd_plugins.testing.conformance
import recd_plugins.testing.parity
import recd_plugins.tiers.sharder
import recd_plugins.trainer.run  # noqa: F401
from recd_plugins.sparse.rows.unique import unique_numbers

__all__: list[str] = []

unique_numbers(torch.arange(2, device="cpu"))
gc.collect()
gc.freeze()

"""The modules that ranks of tests have in common: their server imports them once, before it forks
them.

A kernel is called too, for what numba loads, or compiles in an environment that is new, when the
first is called takes every rank as long. And what is there by then counts as no garbage: a rank
that looked for some would get all of its server's memory copied.
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

unique_numbers(torch.arange(2))
gc.collect()
gc.freeze()

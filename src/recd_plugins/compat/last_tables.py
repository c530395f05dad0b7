"""Kernels of fbgemm's for the CPU whose last table has no row on this rank.

In backward such a kernel takes as the rows of a table how far behind it the next one with rows
begins. It looks for that in `hash_size_cumsum`, and beyond its end where no table behind has a row:
by what lies there it fails, "doesn't support embedding tables with more than 2B rows", or goes on.
As of fbgemm 1.6 to 1.9.
"""

from __future__ import annotations

import torch
from torch import nn

from recd_plugins.compat.torchrec import fused_kernels

__all__ = ["end_in_a_row"]


def end_in_a_row(module: nn.Module) -> None:
    """Have the kernels of a sharded module find a row behind their last tables: one that nobody
    looks up."""
    for kernel in fused_kernels(module):
        begins = kernel.hash_size_cumsum
        if begins.is_cpu and begins[-1] == begins[-2]:
            # In the same memory, behind the end of a tensor that is as long as before.
            kernel.hash_size_cumsum = torch.cat([begins, begins[-1:] + 1])[:-1]

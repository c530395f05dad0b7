"""fbgemm's kernels for the CPU whose last table has no rows on this rank.

In backward such a kernel computes a table's number of rows from where the next table with rows
begins. It looks for that in `hash_size_cumsum`, and reads beyond its end if no later table has
rows. Depending on what lies there, it fails ("doesn't support embedding tables with more than 2B
rows") or goes on. As of fbgemm 1.6 to 1.9.
"""

from __future__ import annotations

import torch
from torch import nn

from recd_plugins.compat.fused_kernels import fused_kernels

__all__ = ["end_in_a_row"]


def end_in_a_row(module: nn.Module) -> None:
    """Have the kernels of a sharded module find one row after their last tables, which nobody looks
    up."""
    for kernel in fused_kernels(module):
        begins = kernel.hash_size_cumsum
        if begins.is_cpu and begins[-1] == begins[-2]:
            # It is in the same memory, just past the end of a tensor that is as long as before.
            kernel.hash_size_cumsum = torch.cat([begins, begins[-1:] + 1])[:-1]

"""Rung 2 (ranks): a kernel is compiled once for all processes of a machine."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from recd_plugins.testing.gloo import GlooPool

KERNELS = """
import numpy as np
from recd_plugins.compat.kernels import kernel

@kernel
def half(number):
    return number / 2

@kernel
def halves(numbers):
    total = 0.0
    for number in numbers:
        total += half(number)
    return total
"""


def compiled(folder: Path) -> tuple[float, int, int]:
    """What the kernel gives on this rank, how often it was compiled here, and how often loaded."""
    import numpy as np

    sys.path.insert(0, str(folder))
    halves = importlib.import_module("kernels_of_a_test").halves
    found = halves(np.arange(5))
    return found, sum(halves.stats.cache_misses.values()), sum(halves.stats.cache_hits.values())


def test_ranks_that_call_a_kernel_at_once_compile_it_once(
    tmp_path: Path, gloo_pool: GlooPool
) -> None:
    (tmp_path / "kernels_of_a_test.py").write_text(KERNELS)
    found = gloo_pool.run(compiled, tmp_path, world_size=3)
    assert [total for total, _, _ in found] == [5.0] * 3
    assert sorted((misses, hits) for _, misses, hits in found) == [(0, 1), (0, 1), (1, 0)]

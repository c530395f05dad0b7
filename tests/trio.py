"""Which fbgemm and TorchRec the tests run with: the lock's, or those of another torch, by
requirements/other_torch.sh."""

from __future__ import annotations

from importlib.metadata import distributions, version

import pytest

__all__ = ["MINOR", "OTHER_FBGEMM", "in_mapped_files"]

MINOR = int(version("torchrec").split(".")[1])
"""The 8 of TorchRec 1.8, and of the fbgemm that belongs to it."""

_THERE = {one.name.replace("-", "_") for one in distributions() if one.name}
OTHER_FBGEMM = "fbgemm_gpu" if "fbgemm_gpu_cpu" in _THERE else "fbgemm_gpu_cpu"
"""The build of fbgemm that is not installed."""

in_mapped_files = pytest.mark.skipif(
    MINOR < 7, reason="before fbgemm 1.7 kernels keep rows in memory of their own alone"
)
"""A test of tables in mapped files."""

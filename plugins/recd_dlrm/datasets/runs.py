"""Runs: neighbouring rows that agree in some keys, say the samples of one session."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from recd_dlrm.datasets.columns import I64

__all__ = ["run_begins", "run_starts"]


def run_begins(*keys: NDArray[Any]) -> NDArray[np.bool_]:
    """[N] whether a row begins a run, in which all keys [N] are equal."""
    begins = np.ones(keys[0].size, np.bool_)
    begins[1:] = False
    for key in keys:
        begins[1:] |= key[1:] != key[:-1]
    return begins


def run_starts(*keys: NDArray[Any]) -> I64:
    """[N] the first row of each row's run."""
    begins = run_begins(*keys)
    starts: I64 = np.flatnonzero(begins)[begins.cumsum() - 1]
    return starts

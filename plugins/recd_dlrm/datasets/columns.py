"""Arrow columns from flat ids."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from recd_plugins.data.schema import IDS

__all__ = ["id_lists"]


def id_lists(ids: NDArray[np.int64], offsets: NDArray[np.int64]) -> pa.Array:
    """A column whose row i is `ids[offsets[i] : offsets[i + 1]]`; ids [N], offsets [B + 1]."""
    return pa.ListArray.from_arrays(offsets.astype(np.int32), pa.array(ids), type=IDS)

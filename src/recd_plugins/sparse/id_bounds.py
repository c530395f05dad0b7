"""Checks all ids of a batch against the rows that their tables have, in one pass.

TorchRec does not report an id without a row: a row-wise table trains another row in its place, a
table on one rank trains its first row, and some kernels end the process.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.compat.kernels import kernel
from recd_plugins.errors import DataError, PluginError
from recd_plugins.sparse.rows.memory import all_below

__all__ = ["IdBounds"]

I64 = npt.NDArray[np.int64]
FITS, LENGTHS, IDS = 0, 1, 2
"""What is wrong with a KJT: nothing, its lengths, or an id."""


class IdBounds:
    """The number of rows that each feature's table has."""

    def __init__(self, num_ids: Mapping[str, int], makers: Mapping[str, str] | None = None) -> None:
        """`makers` open the messages about ids of features whose maker is known."""
        self._num_ids = dict(num_ids)
        self._makers = makers or {}
        self._of_keys: dict[tuple[str, ...], npt.NDArray[np.uint64]] = {}

    def check(self, features: KeyedJaggedTensor, whose: str) -> bool:
        """Raises `PluginError` if this is not a KJT of whole numbers in rows, with weights for all
        or none, and `DataError` for an id without a row; `whose` opens the messages if no maker
        does. An unknown key has no bound.

        Returns whether it was checked: what lies on a device is not, because the CPU would have to
        wait for it.
        """
        values, lengths = features.values(), features.lengths()
        if values.is_floating_point() or values.is_complex():
            raise PluginError(
                f"{whose} ids of {values.dtype}, where they must be integers: int64 or int32."
            )
        weights = features.weights_or_none()
        if weights is not None and len(weights) != len(values):
            raise PluginError(
                f"{whose} {len(weights):,} weights of {len(values):,} ids. Give each id its own."
            )
        if not values.is_cpu or not lengths.is_cpu:
            return False
        keys = tuple(features.keys())
        bounds = self._of_keys.get(keys)
        if bounds is None:
            known = [self._num_ids.get(key, 1 << 63) for key in keys]
            bounds = self._of_keys[keys] = np.array(known, np.uint64)
        if features.variable_stride_per_key():
            sizes = np.array(features.stride_per_key(), np.int64)
        else:
            sizes = np.full(len(keys), features.stride(), np.int64)
        ids, rows = values.numpy(), lengths.numpy().reshape(-1)  # lengths may be [keys, samples]
        wrong, key = _first_wrong(ids, rows, sizes, bounds)
        if wrong != FITS:
            self._refuse(ids, rows, sizes, keys, int(key), wrong == IDS, whose)
        return True

    def _refuse(
        self,
        ids: npt.NDArray[Any],
        rows: npt.NDArray[Any],
        sizes: I64,
        keys: tuple[str, ...],
        at: int,
        of_ids: bool,
        whose: str,
    ) -> NoReturn:
        if not of_ids:
            held = rows[: sizes.sum()]
            if len(held) and (least := int(held.min())) < 0:
                key = keys[int(np.searchsorted(sizes.cumsum(), held.argmin(), side="right"))]
                raise PluginError(
                    f"{self._makers.get(key, whose)} a row of {least} ids of feature {key!r}. A "
                    "row without ids has 0."
                )
            raise PluginError(
                f"{whose} lengths that add up to {int(rows.sum())} for {len(ids)} ids."
            )
        ends = rows.cumsum(dtype=np.int64)[sizes.cumsum() - 1]
        own = ids[(ends[at - 1] if at else 0) : ends[at]]
        least, most = int(own.min()), int(own.max())
        raise DataError(
            f"{self._makers.get(keys[at], whose)} id {least if least < 0 else most} of feature "
            f"{keys[at]!r}, outside [0, {self._num_ids.get(keys[at], '...')}), so another row "
            "would be trained in its place. Make its source (the reader, a converter, a "
            "preprocess transform and its `schema`) keep to this range, or raise num_ids in the "
            "schema."
        )


@kernel
def _first_wrong(
    ids: npt.NDArray[Any], rows: npt.NDArray[Any], sizes: I64, bounds: npt.NDArray[np.uint64]
) -> tuple[int, int]:
    """What is wrong, and the key that it is wrong with."""
    first = row = 0
    for key in range(len(bounds)):
        if row + sizes[key] > len(rows):
            return LENGTHS, key
        count, most = 0, np.uint64(0)
        for length in rows[row : row + sizes[key]]:
            count += length
            most = max(most, np.uint64(length))  # a negative one is huge
        row += sizes[key]
        if most > np.uint64(len(ids)) or first + count > len(ids):
            return LENGTHS, key
        if not all_below(ids[first : first + count], bounds[key]):
            return IDS, key
        first += count
    return (FITS if first == len(ids) else LENGTHS), 0

"""KJTs that follow each other, and KJTs of some of their samples: each id is copied once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.compat.kernels import kernel
from recd_plugins.errors import DataError
from recd_plugins.sparse.jagged import as_bits
from recd_plugins.sparse.rows.memory import Addresses, array_like

__all__ = ["JoinedFeatures"]

Bools: TypeAlias = npt.NDArray[np.bool_]
I64: TypeAlias = npt.NDArray[np.int64]
Numbers: TypeAlias = npt.NDArray[Any]

U64 = np.uint64


class JoinedFeatures:
    """KJTs of the same keys, on the CPU, as if they were one; they stay where they are.

    Of keys with one id a row, which most are, nothing is kept by row.
    """

    def __init__(self, kjts: Sequence[KeyedJaggedTensor]) -> None:
        self._keys: list[str] = kjts[0].keys()
        lengths = [kjt.lengths().numpy().reshape(len(self._keys), kjt.stride()) for kjt in kjts]
        counts = np.empty((len(kjts), len(self._keys)), np.int64)
        self._one_id = np.ones(len(self._keys), np.bool_)
        """[K]: which keys have one id in each row."""
        for part, count in zip(lengths, counts, strict=True):
            _count(part, count, self._one_id)
        self._values = Addresses.of(_of_one_type([kjt.values() for kjt in kjts]))
        weights = [kjt.weights_or_none() for kjt in kjts]
        given = [each for each in weights if each is not None]
        if given and len(given) < len(kjts):
            raise DataError(
                f"{len(given)} of {len(kjts)} KeyedJaggedTensors to join have weights: give all of "
                "them weights, or none."
            )
        self._weights = Addresses.of(_of_one_type(given)) if given else None
        self._starts = counts.cumsum(axis=1) - counts
        """[W, K]: where the ids of each key begin, of each KJT."""
        self._rows = np.cumsum([0, *(kjt.stride() for kjt in kjts)])
        """[W + 1]: where the rows of each KJT begin among all."""
        self._others = np.flatnonzero(~self._one_id)
        """[G]: the keys that have not one id in each row."""
        self._lengths = np.concatenate([part[self._others] for part in lengths], axis=1)
        """[G, N]: theirs."""
        self._firsts = np.empty(self._lengths.shape, np.int64)
        """[G, N]: where the ids of each of their rows begin, in the KJT that it is of."""
        _find(self._lengths, self._starts, self._others, self._rows, self._firsts)

    def take(self, rows: I64) -> KeyedJaggedTensor:
        """The samples at these places among all [B], in this order, repeats included."""
        lengths = np.ones((len(self._keys), len(rows)), self._lengths.dtype)
        counts = np.full(len(self._keys), len(rows))
        if len(self._others):
            lengths[self._others] = self._lengths[:, rows]
            counts[self._others] = lengths[self._others].sum(axis=1)
        offsets = [0, *counts.cumsum().tolist()]
        firsts = self._firsts[:, rows]

        def copied(numbers: Addresses) -> Tensor:
            out = torch.empty(offsets[-1], dtype=numbers.tensors[0].dtype)
            where = (self._starts, self._one_id, self._rows, rows, firsts, lengths)
            _copy(numbers.places, *where, as_bits(out).numpy())
            return out

        return KeyedJaggedTensor(
            keys=self._keys,
            values=copied(self._values),
            weights=None if self._weights is None else copied(self._weights),
            lengths=torch.from_numpy(lengths.ravel()),
            stride=len(rows),
            length_per_key=counts.tolist(),
            offset_per_key=offsets,
        )


def _of_one_type(parts: Sequence[Tensor]) -> Sequence[Tensor]:
    kind = parts[0].dtype
    for part in parts[1:]:
        kind = torch.promote_types(kind, part.dtype)
    return [part.detach().to(kind) for part in parts]


@kernel
def _count(lengths: Numbers, counts: I64, one_id: Bools) -> None:
    """The ids of each key; a key that has others than one in a row is no key of one id."""
    for key in range(len(lengths)):
        count, ones = 0, True
        for row in range(lengths.shape[1]):
            count += lengths[key, row]
            ones &= lengths[key, row] == 1
        counts[key] = count
        one_id[key] &= ones


@kernel
def _find(lengths: Numbers, starts: I64, keys: I64, begins: I64, firsts: I64) -> None:
    """Where the ids of each row of `keys` [G] begin: the rows of part p are those from `begins[p]`
    on, and its ids of key k lie from `starts[p, k]` on."""
    for key in range(len(lengths)):
        for part in range(len(starts)):
            at = starts[part, keys[key]]
            for row in range(begins[part], begins[part + 1]):
                firsts[key, row] = at
                at += lengths[key, row]


@kernel
def _copy(
    places: I64,
    starts: I64,
    one_id: Bools,
    begins: I64,
    rows: I64,
    firsts: I64,
    lengths: Numbers,
    out: Numbers,
) -> None:
    """Copy each key's ids of the B rows: of `rows` [B] where it has one in each, else
    `lengths[key, b]` from `firsts` on, whose rows are those of the other keys."""
    runs = _runs(rows, begins)
    at, other = U64(0), 0
    for key in range(len(one_id)):
        for run in range(len(runs)):
            part, first, last = runs[run, 0], runs[run, 1], runs[run, 2]
            values = array_like(places[part], out)
            if one_id[key]:
                start, places_of_rows = U64(starts[part, key]) - U64(begins[part]), rows[first:last]
                for row in range(len(places_of_rows)):
                    out[at + U64(row)] = values[start + U64(places_of_rows[row])]
                at += U64(last - first)
            else:
                starts_of_rows, counts = firsts[other, first:last], lengths[key, first:last]
                for row in range(len(counts)):
                    start = U64(starts_of_rows[row])
                    for id_ in range(counts[row]):
                        out[at + U64(id_)] = values[start + U64(id_)]
                    at += U64(counts[row])
        if not one_id[key]:
            other += 1


@kernel
def _runs(rows: I64, begins: I64) -> I64:
    """[R, 3]: the KJT that each run of `rows` [B] is of, and the run's first and last place; the
    rows of the KJTs begin at `begins` [W + 1] among all."""
    runs = np.empty((len(rows), 3), np.int64)
    part, count = 0, 0
    for place in range(len(rows)):
        before = part
        while rows[place] < begins[part]:
            part -= 1
        while rows[place] >= begins[part + 1]:
            part += 1
        if place == 0 or part != before:
            runs[count, 0], runs[count, 1] = part, place
            count += 1
        runs[count - 1, 2] = place + 1
    return runs[:count]

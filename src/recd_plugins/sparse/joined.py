"""Consecutive KJTs as one, and KJTs of some of their samples: each id is copied once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.compat.kernels import kernel
from recd_plugins.errors import DataError
from recd_plugins.sparse.jagged import as_bits
from recd_plugins.sparse.rows.memory import Addresses, array_like

__all__ = ["JoinedFeatures", "JoinedIds"]

Bools: TypeAlias = npt.NDArray[np.bool_]
I64: TypeAlias = npt.NDArray[np.int64]
Numbers: TypeAlias = npt.NDArray[Any]

U64 = np.uint64
WHOLE = np.uint64(8)
"""A row of up to this many ids is copied as this many; the next row overwrites the excess."""


class JoinedIds(NamedTuple):
    """The ids of W KJTs of K keys, with N rows in all, and where they lie, for kernels."""

    places: I64
    """[W, 3]: where the ids of each KJT lie, as `array_like` takes it."""
    like: Numbers
    """[0], of the ids' type: `array_like` takes the type from it."""
    starts: I64
    """[W, K]: where the ids of each key begin in each KJT."""
    begins: I64
    """[W + 1]: where the rows of each KJT begin among all rows."""
    one_id: Bools
    """[K]: whether each key has one id in every row."""
    lengths: I64
    """[W, 3]: where the lengths of each KJT lie, key by key."""
    like_lengths: Numbers
    """[0], of the lengths' type."""


class JoinedRows(NamedTuple):
    """The rows of the G keys that do not have one id in every row."""

    lengths: Numbers
    """[G, N]."""
    firsts: I64
    """[G, N]: where the ids of each row begin in its KJT."""


class JoinedFeatures:
    """KJTs with the same keys, on the CPU, as if they were one; they are not copied.

    For keys with one id per row, as most are, nothing is kept per row.
    """

    def __init__(self, kjts: Sequence[KeyedJaggedTensor]) -> None:
        self.kjts = kjts
        """The KJTs that were joined."""
        self.keys: list[str] = kjts[0].keys()
        weights = [kjt.weights_or_none() for kjt in kjts]
        given = [each for each in weights if each is not None]
        if given and len(given) < len(kjts):
            raise DataError(
                f"{len(given)} of {len(kjts)} KeyedJaggedTensors to join have weights: give all of "
                "them weights, or none."
            )
        self._values = Addresses.of(_of_one_type([kjt.values() for kjt in kjts]))
        self._weights = Addresses.of(_of_one_type(given)) if given else None
        lengths = Addresses.of(_of_one_type([kjt.lengths() for kjt in kjts]))
        like = lengths.tensors[0].numpy()[:0]
        begins = np.cumsum([0, *(kjt.stride() for kjt in kjts)])
        counts = np.empty((len(kjts), len(self.keys)), np.int64)
        one_id = np.ones(len(self.keys), np.bool_)
        _count(lengths.places, like, begins, counts, one_id)
        self._others = np.flatnonzero(~one_id)
        """[G]: the keys that do not have one id in every row."""
        self._held = lengths  # addresses do not keep memory alive
        self._unused = [
            one for one in lengths.tensors if one.untyped_storage().nbytes() == one.nbytes
        ]
        """The lengths that have not yet been passed on to a KJT that was taken; only those that
        hold no other memory."""
        self.ids = JoinedIds(
            self._values.places,
            as_bits(self._values.tensors[0]).numpy()[:0],
            counts.cumsum(axis=1) - counts,
            begins,
            one_id,
            lengths.places,
            like,
        )

    @staticmethod
    def alike(kjts: Sequence[KeyedJaggedTensor]) -> bool:
        """Whether these can be joined: they have the same keys, and all or none have weights."""
        keys, weighted = kjts[0].keys(), kjts[0].weights_or_none() is not None
        return all(
            kjt.keys() == keys and (kjt.weights_or_none() is not None) == weighted for kjt in kjts
        )

    @cached_property
    def rows(self) -> JoinedRows:
        """Where the rows lie; found when `take` first needs it, or earlier, if there is time."""
        shape = (len(self._others), self.ids.begins[-1])
        found = JoinedRows(np.empty(shape, self.ids.like_lengths.dtype), np.empty(shape, np.int64))
        if len(self._others):
            ids = self.ids
            _find(ids.lengths, ids.begins, ids.starts, self._others, *found)
        return found

    def take(self, rows: I64) -> KeyedJaggedTensor:
        """The samples at these places [B] among all, in this order, repeats included."""
        size, ids = len(rows), self.ids
        every, firsts = self.rows
        if len(self._others):
            lengths = np.ones((len(self.keys), size), every.dtype)
            numels = np.full(len(self.keys), size)
            _measure(every, self._others, rows, lengths, numels)
            of_rows, counts = torch.from_numpy(lengths.ravel()), numels.tolist()
        else:
            of_rows, counts = self._ones(size), [size] * len(self.keys)
            lengths = of_rows.numpy().reshape(len(self.keys), size)
        offsets = [*accumulate(counts, initial=0)]

        def copied(numbers: Addresses) -> Tensor:
            out = torch.empty(offsets[-1], dtype=numbers.tensors[0].dtype, device="cpu")
            where = (ids.starts, ids.one_id, ids.begins, rows, firsts, lengths)
            _copy(numbers.places, *where, as_bits(out).numpy())
            return out

        return KeyedJaggedTensor(
            keys=self.keys,
            values=copied(self._values),
            weights=None if self._weights is None else copied(self._weights),
            lengths=of_rows,
            stride=size,
            length_per_key=counts,
            offset_per_key=offsets,
        )

    def _ones(self, size: int) -> Tensor:
        """[K * size]: the lengths of rows of one id each.

        The lengths of each joined KJT are passed on once to a KJT that is taken, since writing them
        would take a third of the time that the ids take.
        """
        for at, one in enumerate(self._unused):
            if one.numel() == size * len(self.keys):
                return self._unused.pop(at)
        return torch.ones(size * len(self.keys), dtype=self._held.tensors[0].dtype, device="cpu")


def _of_one_type(parts: Sequence[Tensor]) -> Sequence[Tensor]:
    kind = parts[0].dtype
    for part in parts[1:]:
        if part.dtype != kind:
            kind = torch.promote_types(kind, part.dtype)
    return [
        part.detach().to(kind) if part.requires_grad or part.dtype != kind else part
        for part in parts
    ]


@kernel
def _count(places: I64, like: Numbers, begins: I64, counts: I64, one_id: Bools) -> None:
    """The number of ids of each key [W, K]. A key with any other number of ids in some row is not a
    key of one id. The lengths of KJT w are at `places[w]`."""
    for part in range(len(places)):
        lengths, size = array_like(places[part], like), begins[part + 1] - begins[part]
        for key in range(len(one_id)):
            count, other = np.int64(0), np.int64(0)
            for length in lengths[key * size : (key + 1) * size]:
                count += length
                other |= length ^ 1
            counts[part, key] = count
            one_id[key] &= other == 0


@kernel
def _find(places: I64, begins: I64, starts: I64, keys: I64, lengths: Numbers, firsts: I64) -> None:
    """The lengths [G, N] of the rows of `keys` [G], and where the ids of each begin: the rows of
    part p are those from `begins[p]` on, and its ids of key k lie from `starts[p, k]` on."""
    for part in range(len(places)):
        every, size = array_like(places[part], lengths), begins[part + 1] - begins[part]
        for key in range(len(keys)):
            at = starts[part, keys[key]]
            for row in range(size):
                length = every[keys[key] * size + row]
                lengths[key, begins[part] + row] = length
                firsts[key, begins[part] + row] = at
                at += length


@kernel
def _measure(every: Numbers, keys: I64, rows: I64, lengths: Numbers, numels: I64) -> None:
    """For each of `keys` [G], the lengths [K, B] of `rows` [B], and the number of their ids [K]."""
    for key in range(len(keys)):
        numel, of_rows, measured = np.int64(0), every[key], lengths[keys[key]]
        for row in range(len(rows)):
            length = of_rows[np.uintp(rows[row])]
            measured[row] = length
            numel += length
        numels[keys[key]] = numel


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
    """Copy each key's ids of the B rows. If the key has one id in each row, these are those at
    `rows` [B]; else they are `lengths[key, b]` ids from `firsts` [G, N] on, whose rows are those of
    the other keys."""
    bands = _bands(rows, begins)
    at, other, room = U64(0), 0, U64(len(out))
    for key in range(len(one_id)):
        for band in range(len(bands)):
            part, first, last = bands[band, 0], bands[band, 1], bands[band, 2]
            values = array_like(places[part], out)
            held = U64(len(values))
            if one_id[key]:
                start, places_of_rows = U64(starts[part, key]) - U64(begins[part]), rows[first:last]
                for row in range(len(places_of_rows)):
                    out[at + U64(row)] = values[start + U64(places_of_rows[row])]
                at += U64(last - first)
            else:
                starts_of_rows, counts = firsts[other], lengths[key, first:last]
                for row in range(len(counts)):
                    start = U64(starts_of_rows[np.uintp(rows[first + row])])
                    count = U64(counts[row])
                    if count <= WHOLE and start + WHOLE <= held and at + WHOLE <= room:
                        for id_ in range(WHOLE):
                            out[at + id_] = values[start + id_]
                    else:
                        for id_ in range(count):
                            out[at + id_] = values[start + id_]
                    at += count
        if not one_id[key]:
            other += 1


@kernel
def _bands(rows: I64, begins: I64) -> I64:
    """[R, 3]: for each band of `rows` [B] its KJT, and the band's first and last place. The rows of
    the KJTs begin at `begins` [W + 1] among all rows."""
    bands = np.empty((len(rows), 3), np.int64)
    part, count = 0, 0
    for place in range(len(rows)):
        before = part
        while rows[place] < begins[part]:
            part -= 1
        while rows[place] >= begins[part + 1]:
            part += 1
        if place == 0 or part != before:
            bands[count, 0], bands[count, 1] = part, place
            count += 1
        bands[count - 1, 2] = place + 1
    return bands[:count]

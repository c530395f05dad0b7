"""The equal rows of a jagged feature: exact, in one pass, in order of first appearance.

Whatever its hash, a row counts as a copy only after its ids were compared. On CPU, this is a hash
table in numba: it reads ids as fast as they could be copied, on the calling thread. On an
accelerator, torch's own operations are used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numba
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from recd_plugins.compat.kernels import kernel
from recd_plugins.sparse.rows.gather import Spans, add_up, addresses_of_lengths, note_spans
from recd_plugins.sparse.rows.memory import Addresses, array16, array32, array64, prefetch_behind

__all__ = [
    "HALF",
    "LONG",
    "MIX",
    "NEXT",
    "Firsts",
    "LaidRows",
    "RowHash",
    "Unique",
    "group_codes",
    "hash_row",
    "hash_rows",
    "refine_groups",
    "unique_numbers",
    "unique_rows",
    "unique_rows_of_parts",
    "unique_rows_on_device",
]

MIX = np.uint64(0xFF51AFD7ED558CCD)
STEP = np.uint64(0x9E3779B97F4A7C15)
HALF = np.uint64(32)
NEXT = np.uintp(1)
LONG = 8
"""From this many ids per row on, the memory of the rows is prefetched far ahead."""
# torch multiplies int64 modulo 2^64, as uint64 would.
SIGNED_MIX = 0xFF51AFD7ED558CCD - 2**64
SIGNED_STEP = 0x9E3779B97F4A7C15 - 2**64

I64 = npt.NDArray[np.int64]
I32 = npt.NDArray[np.int32]
RowHash = Callable[["LaidRows", int], Tensor]
"""A function from rows and the number of the round to [B] hashes."""


class Unique(NamedTuple):
    """B rows as U different ones: row i equals row `firsts[inverse_lookup[i]]`."""

    inverse_lookup: Tensor
    """[B] int64, in [0, U)."""
    firsts: Tensor
    """[U] int64, ascending: the row at which each different one appears first."""


class Firsts(NamedTuple):
    """Where the unique samples of G groups first appear among B samples."""

    rows: I64
    """[G, B]; group g has the first `counts[g]`, ascending."""
    counts: I64
    """[G]."""

    def of(self, group: int) -> Tensor:
        """[U] of one group."""
        return torch.from_numpy(self.rows[group, : self.counts[group]].copy())


def unique_rows(values: Tensor, offsets: Tensor) -> Unique:
    """The different rows among B: row i is `values[offsets[i] : offsets[i + 1]]`.

    `values` [N] are int32 or int64 ids (or any other bits, viewed as such); `offsets` [B + 1] may
    begin anywhere. Empty rows equal each other.
    """
    if values.is_cuda:
        return Unique(*unique_rows_on_device(values, offsets))
    inverse_lookup = torch.empty(1, offsets.numel() - 1, dtype=torch.int64, device="cpu")
    columns = Addresses.of([values[int(offsets[0]) : int(offsets[-1])]])
    lengths = addresses_of_lengths([offsets.diff()])
    firsts, _ = refine_groups(columns, np.arange(2), lengths, np.zeros(1, np.int64), inverse_lookup)
    return Unique(inverse_lookup[0], firsts.of(0))


def unique_rows_of_parts(values: Tensor, offsets: Tensor, parts: Tensor) -> Unique:
    """The different rows of each part, on CPU: as in `unique_rows`, but rows of different `parts`
    [B] always differ. In one call for many small parts."""
    inverse_lookup = torch.empty(1, parts.numel(), dtype=torch.int64, device="cpu")
    columns = Addresses.of([parts, values[int(offsets[0]) : int(offsets[-1])]])
    lengths = addresses_of_lengths([torch.ones_like(parts), offsets.diff()])
    bounds = np.array([0, 2])
    firsts, _ = refine_groups(columns, bounds, lengths, np.arange(2), inverse_lookup)
    return Unique(inverse_lookup[0], firsts.of(0))


def refine_groups(
    columns: Addresses, bounds: I64, lengths: Addresses, owners: I64, inverse_lookup: Tensor
) -> tuple[Firsts, Spans]:
    """The different samples of G groups, on CPU: two are equal if all columns of the group agree.

    Group g has the columns `bounds[g]` to `bounds[g + 1]`. Column c, of ids or other bits, belongs
    to feature `owners[c]`, whose row lengths are in `lengths`. Which unique sample each sample is
    is written to `inverse_lookup` [G, B].
    """
    num_groups, num_rows = inverse_lookup.shape
    firsts = Firsts(np.empty((num_groups, num_rows), np.int64), np.empty(num_groups, np.int64))
    spans = Spans.empty(len(lengths.places), num_rows)
    _refine_groups(
        columns.places, bounds, lengths.places, owners, inverse_lookup.numpy(), *firsts, *spans
    )
    return firsts, spans


def group_codes(codes: Sequence[Tensor]) -> Unique:
    """The different combinations that several features' codes form.

    `codes` are inverse lookups, [B] int64 each; samples are equal if all of their codes are.
    """
    if not codes:
        raise ValueError("group_codes needs one feature at least.")
    # Rows of codes: twice as fast as one mixed-radix number, which may also overflow.
    ends = torch.arange(codes[0].numel() + 1, device=codes[0].device) * len(codes)
    return unique_rows(torch.stack(list(codes), dim=1).view(-1), ends)


def unique_numbers(numbers: Tensor) -> Unique:
    """The different numbers among B, in order of first appearance."""
    return unique_rows(numbers, torch.arange(numbers.numel() + 1, device=numbers.device))


@kernel
def _refine_groups(
    places: I64,
    bounds: I64,
    lengths: I64,
    owners: I64,
    codes: I64,
    firsts: I64,
    counts: I64,
    spans: I64,
    single: npt.NDArray[np.bool_],
    numels: I64,
) -> None:
    num_groups, num_rows = codes.shape
    size = 2
    while size < 2 * num_rows:
        size *= 2
    slots, hashes = np.empty(size, np.int32), np.empty(num_rows, np.uint64)
    bands, ends = np.empty(num_rows, np.int32), np.empty(num_rows, np.int32)
    # The rows of one group at a time: they are still in the cache when they are read.
    most = 0
    for group in range(num_groups):
        most = max(most, bounds[group + 1] - bounds[group])
    offsets = np.empty((most, num_rows + 1), np.int64)
    for group in range(num_groups):
        codes[group] = 0
        found, table = (codes[group], firsts[group]), (slots, hashes, bands, ends)
        begin = owners[bounds[group]]
        end = begin
        for column in range(bounds[group], bounds[group + 1]):
            place, owner = places[column], owners[column]
            rows = offsets[owner - begin]
            if owner == end:
                single[owner] = add_up(lengths[owner], rows)
                end += 1
            alone = single[owner]
            if place[2] == 8:
                counts[group] = _refine(array64(place), rows, alone, found, table)
            elif place[2] == 4:
                counts[group] = _refine(array32(place), rows, alone, found, table)
            else:
                counts[group] = _refine(array16(place), rows, alone, found, table)
        for feature in range(begin, end):
            rows, unique = offsets[feature - begin], firsts[group, : counts[group]]
            numels[feature] = note_spans(rows, single[feature], unique, spans[feature])


@kernel
def _refine(values: npt.NDArray[Any], offsets: I64, single: bool, found: Any, table: Any) -> Any:
    codes, firsts = found
    slots, hashes, bands, ends = table
    if single:
        return _refine_single(values, codes, firsts, slots, bands, ends)
    return _refine_rows(values, offsets, codes, firsts, slots, hashes)


@kernel
def _refine_rows(
    values: npt.NDArray[Any],
    offsets: I64,
    codes: I64,
    firsts: I64,
    slots: I32,
    hashes: npt.NDArray[np.uint64],
) -> Any:
    # Two loops: in short rows, nobody could guess where there is another line to ask for.
    if len(values) >= LONG * len(codes):
        return _refine_each(values, offsets, codes, firsts, slots, hashes, True)
    return _refine_each(values, offsets, codes, firsts, slots, hashes, False)


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def _refine_each(
    values: npt.NDArray[Any],
    offsets: I64,
    codes: I64,
    firsts: I64,
    slots: I32,
    hashes: npt.NDArray[np.uint64],
    long: bool,
) -> np.int64:
    """Refine the rows that were equal so far: they keep a common code if their ids agree.

    Codes are overwritten by new ones, numbered in the order of first appearance. Returns the number
    of new codes. The table is an open hash table, at most half full: its slots hold the new codes
    of unique rows, and `hashes` and `firsts` have the hash and the first place of each new code.
    """
    slots[:] = -1
    mask = np.uint64(len(slots) - 1)
    num_unique = np.int64(0)
    old = new = np.int64(-1)
    row_hash = np.uint64(0)
    before = at = np.uintp(offsets[0])
    for row in range(np.uintp(len(codes))):
        stop = np.uintp(offsets[row + NEXT])
        length = stop - at
        if long:
            prefetch_behind(values, at, stop)
        # In a clustered table the row before is the likeliest copy: one look, and no hash.
        repeats = row > np.uintp(0) and length == at - before and _equal(values, at, before, length)
        if not repeats:
            row_hash = hash_row(values[at:stop])
        if not repeats or codes[row] != old:
            old = codes[row]
            # One to one in the old code: with the ids and this equal, the old codes are too.
            mixed = (row_hash ^ np.uint64(old)) * MIX
            mixed ^= mixed >> HALF
            slot = mixed & mask
            while True:
                # Whether it is a new one is not branched upon: the processor cannot guess it.
                known = np.int64(slots[slot])
                new = num_unique if known < 0 else known
                slots[slot] = new
                hashes[np.uintp(num_unique)], firsts[np.uintp(num_unique)] = mixed, row
                num_unique += known < 0
                if hashes[np.uintp(new)] == mixed:
                    first = np.uintp(firsts[np.uintp(new)])
                    begin = np.uintp(offsets[first])
                    same = np.uintp(offsets[first + NEXT]) - begin == length
                    if same and _equal(values, at, begin, length):
                        break
                slot = (slot + np.uint64(1)) & mask
        codes[row] = new
        before, at = at, stop
    return num_unique


@kernel
def hash_row(ids: npt.NDArray[Any]) -> np.uint64:
    """h = mix(n + Σ_i mix(id_i xor i·STEP)): no term waits for another."""
    total = np.uint64(len(ids))
    for i in range(len(ids)):
        term = (np.uint64(ids[i]) ^ (np.uint64(i) * STEP)) * MIX
        total += term ^ (term >> HALF)
    total *= MIX
    return total ^ (total >> HALF)


# Indices are unsigned: the compiler need not ask whether they count from the end, and compares
# several ids at a time.


@kernel
def _equal(values: npt.NDArray[Any], left: np.uintp, right: np.uintp, length: np.uintp) -> bool:
    """Whether the `length` ids from `left` on are those from `right` on."""
    differ = 0
    for i in range(length):
        differ |= values[left + i] ^ values[right + i]
    return differ == 0


@kernel
def _refine_single(
    ids: npt.NDArray[Any], codes: I64, firsts: I64, slots: I32, bands: I32, ends: I32
) -> np.int64:
    """Refine the rows that were equal so far: they keep a common code if their ids agree.

    Codes [B] are overwritten by new ones, numbered in the order of first appearance. Returns the
    number of codes. `firsts` [B + 1] gets the first place of each code; behind the last it is
    undefined. The other arguments are scratch: `slots` is a power of two, at least 2 * B, and each
    of the two is [B].

    In a clustered table equal rows are side by side. So rows are first divided into bands, without
    a branch that the processor could predict wrongly, and then looked up band by band. The look-up
    does not branch on what it finds either, nor on whether a band is new.
    """
    if len(codes) == 0:
        return np.int64(0)
    last = np.uintp(0)
    bands[0] = ends[0] = 0
    for row in range(np.uintp(1), np.uintp(len(codes))):
        before = row - np.uintp(1)
        last += np.uintp((ids[row] != ids[before]) | (codes[row] != codes[before]))
        bands[row], ends[last] = last, row
    size = 2
    while np.uintp(size) < np.uintp(2) * (last + np.uintp(1)):
        size *= 2
    slots[:size] = -1
    mask = np.uint64(size - 1)
    num_unique = np.int64(0)
    begin = np.uintp(0)
    for band in range(last + np.uintp(1)):
        one, old = ids[begin], codes[begin]
        mixed = (np.uint64(one) ^ (np.uint64(old) * STEP)) * MIX
        slot = (mixed ^ (mixed >> HALF)) & mask
        while True:
            known = np.int64(slots[slot])
            new = num_unique if known < 0 else known
            slots[slot], firsts[np.uintp(num_unique)] = new, begin
            num_unique += known < 0
            first = np.uintp(firsts[np.uintp(new)])
            if (ids[first] == one) & (codes[first] == old):
                break
            slot = (slot + NEXT) & mask
        begin, ends[band] = np.uintp(ends[band]) + np.uintp(1), new
    for row in range(np.uintp(len(codes))):
        codes[row] = ends[np.uintp(bands[row])]
    return num_unique


class LaidRows(NamedTuple):
    """B rows, and where each of their ids lies: computed once for all uses."""

    ids: Tensor
    """[N] int64."""
    offsets: Tensor
    """[B + 1] int64, from 0 to N."""
    row_of: Tensor
    """[N]: the row of each id."""
    positions: Tensor
    """[N]: its position within the row."""

    @classmethod
    def of(cls, values: Tensor, offsets: Tensor) -> LaidRows:
        """Lay out the rows; on CUDA this waits once, to learn where the rows begin and end."""
        offsets = offsets.to(torch.int64)
        first, last = torch.stack((offsets[0], offsets[-1])).tolist()
        return cls._laid(values[first:last].to(torch.int64), offsets - first)

    @classmethod
    def _laid(cls, ids: Tensor, offsets: Tensor) -> LaidRows:
        row_of = torch.repeat_interleave(offsets.diff(), output_size=ids.numel())
        positions = torch.arange(ids.numel(), device=ids.device) - offsets[row_of]
        return cls(ids, offsets, row_of, positions)

    def select(self, rows: Tensor) -> LaidRows:
        """Rows `rows` [n], in this order."""
        ends = torch.nn.functional.pad(self.offsets.diff()[rows].cumsum(0), (1, 0))
        numel = int(ends[-1])
        row_of = torch.repeat_interleave(ends.diff(), output_size=numel)
        places = torch.arange(numel, device=rows.device) + (self.offsets[rows] - ends[:-1])[row_of]
        return self._laid(self.ids[places], ends)

    def sums(self, terms: Tensor) -> Tensor:
        """[B]: for each row, the sum of its ids' terms [N], modulo 2^64."""
        totals = torch.nn.functional.pad(terms.cumsum(0), (1, 0))
        return totals[self.offsets].diff()

    def differ(self, others: Tensor) -> Tensor:
        """[B] bool: whether row i differs from row others[i]."""
        lengths = self.offsets.diff()
        # Where the lengths differ, it does not matter what is read, as long as it is in bounds.
        places = self.offsets[others][self.row_of] + self.positions
        unlike = self.ids != self.ids[places.clamp(max=self.ids.numel() - 1)]
        return (lengths != lengths[others]) | (self.sums(unlike.to(torch.int64)) > 0)


def hash_rows(rows: LaidRows, attempt: int) -> Tensor:
    """h = Σ_j mix(v_j xor mix(j + attempt)) over the row's positions j, and its length: [B]."""
    terms = _mix(rows.ids ^ _mix((rows.positions + 1) * SIGNED_STEP + attempt))
    return _mix(rows.sums(terms) + rows.offsets.diff())


def unique_rows_on_device(
    values: Tensor, offsets: Tensor, hash_rows: RowHash = hash_rows
) -> tuple[Tensor, Tensor]:
    """(inverse_lookup [B], firsts [U]) as in `unique_rows`, on the device of `values`, which is
    waited for three times.

    Rows with the same hash are compared with the first of them; those that differ from it are
    hashed again by another hash. Equal rows are never separated, and unequal rows never merged.
    """
    leads = _leads(LaidRows.of(values, offsets), hash_rows, 0)
    appears = leads == torch.arange(leads.numel(), device=leads.device)
    return (appears.cumsum(0) - 1)[leads], appears.nonzero().squeeze(1)


def _leads(rows: LaidRows, hash_rows: RowHash, attempt: int) -> Tensor:
    """[B]: for each row, the first row that is equal to it."""
    hashes, order = hash_rows(rows, attempt).sort(stable=True)
    # Rows with the same hash are neighbours now, and the first one in the batch comes first.
    begins = hashes != hashes.roll(1)
    begin = (begins * torch.arange(order.numel(), device=order.device)).cummax(0).values
    leads = torch.empty_like(order).scatter_(0, order, order[begin])
    left = rows.differ(leads).nonzero().squeeze(1)
    if left.numel():
        leads[left] = left[_leads(rows.select(left), hash_rows, attempt + 1)]
    return leads


def _mix(x: Tensor) -> Tensor:
    x = (x ^ (x >> 32)) * SIGNED_MIX
    return x ^ (x >> 29)

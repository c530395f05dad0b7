"""Batches sampled from a table or from a reader, and what they show of features and groups."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from recd_dedup.etl.scan import require_sessions
from recd_dedup.stats.repeats import BatchRepeats, agreement
from recd_dedup.stats.session_rows import I64, Lists, SessionRows, batches, chunks, without_dense
from recd_plugins.api import DataError, so_many
from recd_plugins.api.batch import Groups
from recd_plugins.api.data import Table
from recd_plugins.api.rows import group_codes

if TYPE_CHECKING:
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

__all__ = [
    "SampledBatches",
    "choose_bands",
    "measured_shares",
    "rows_of_batches",
    "sample_batches",
    "shares_of_batches",
]

RUNS = 8
"""A sample comes from at most this many places of its table."""
MEASURED_ROWS = 16_384
"""About how many rows are read to measure the shares of groups that were given by name."""
PIECE = 16_384
"""About how many rows of batches are compared at a time."""


class SampledBatches:
    """Batches of B rows in the table's order, like those of a reader that keeps sessions whole.

    For each list its code is kept, and its length unless all are 1: 8 or 16 bytes per row and
    feature.
    """

    def __init__(self, features: Sequence[str], parts: Iterable[SessionRows]) -> None:
        self.features = tuple(features)
        self.repeats = BatchRepeats(features)
        """l(f), d(f), S, DedupeLen and DedupeFactor."""
        lists_of: dict[str, list[Lists]] = {name: [] for name in features}
        numbers: list[I64] = []
        changes = np.zeros((len(features), len(features)), np.int64)
        for rows in parts:
            own = np.zeros(len(rows), np.int64) if rows.batches is None else rows.batches
            numbers.append(own + self.repeats.batches)
            changes += self._add(rows, lists_of)
        self._batch = np.concatenate(numbers) if numbers else np.zeros(0, np.int64)
        """[N] the number of each row's batch."""
        self._codes = {name: _joined_codes(lists) for name, lists in lists_of.items()}
        """[N] by feature: equal if lists of a batch are equal."""
        self._lengths = {name: _joined_lengths(lists) for name, lists in lists_of.items()}
        self._groups: dict[tuple[str, ...], _GroupCounts] = {}
        self._codes_of_groups: dict[tuple[str, ...], Tensor] = {}
        """The codes of groups that another feature was to join."""
        self._at = {name: index for index, name in enumerate(features)}
        self._agreement = agreement(changes)
        self.alone = {name: self._alone(name) for name in features}
        """Each feature's DedupeFactor if it is deduplicated by itself, measured."""

    def _add(self, rows: SessionRows, lists_of: dict[str, list[Lists]]) -> NDArray[np.int64]:
        """Note the lists of each feature; [F, F] how often both features change from one sample of
        a session to the next."""
        order, follows = rows.order, rows.follows
        changed: list[NDArray[np.bool_]] = []

        def note(name: str, lists: Lists) -> None:
            codes = lists.codes[order]
            changed.append((codes[1:] != codes[:-1])[follows])
            lists_of[name].append(lists)

        self.repeats.add(rows, note)
        shape = len(changed), int(follows.sum())
        both = np.array(changed, np.float32).reshape(shape)  # exact below 2^24 rows
        changes: NDArray[np.int64] = np.rint(both @ both.T).astype(np.int64)
        return changes

    def _alone(self, name: str) -> float:
        counts = self.repeats.features[name]
        return counts.ids / counts.unique_ids if counts.unique_ids else 1.0

    def agreements(self, name: str, groups: Sequence[Sequence[str]]) -> NDArray[np.float64]:
        """[G] for each group, the share of samples in which two features change, among those in
        which either changes: for the feature of the group that agrees least."""
        if not groups:
            return np.zeros(0)
        others = [self._at[other] for group in groups for other in group]
        begins = np.cumsum([0, *map(len, groups[:-1])])
        return np.minimum.reduceat(self._agreement[self._at[name], others], begins)

    def loss(self, group: Sequence[str]) -> float:
        """The largest share of its DedupeFactor that any feature loses if these are one group."""
        factors = self.factors(group)
        return max(1 - factors[name] / self.alone[name] for name in group)

    def length(self, name: str) -> float:
        """l(f): ids per sample."""
        return self.repeats.features[name].ids / max(1, self.repeats.rows)

    def factors(self, group: Sequence[str]) -> dict[str, float]:
        """Each feature's DedupeFactor if these are one group, measured."""
        return self._measured(tuple(group)).factors

    def unique_share(self, group: Sequence[str]) -> float:
        """The unique samples of a group over the samples, measured."""
        return self._measured(tuple(group)).share

    def most_unique(self, group: Sequence[str]) -> int:
        """The largest number of unique samples that a group has in any batch."""
        return self._measured(tuple(group)).most

    def _measured(self, group: tuple[str, ...]) -> _GroupCounts:
        if group not in self._groups:
            self._groups[group] = self._measure(group)
        return self._groups[group]

    def _measure(self, group: tuple[str, ...]) -> _GroupCounts:
        *others, last = group
        codes = [self._codes[last], *([self._codes_of(tuple(others))] if others else [])]
        firsts = group_codes(codes).firsts.numpy()
        counts = np.bincount(self._batch[firsts], minlength=1)
        factors = {}
        for name in group:
            lengths = self._lengths[name]
            kept = len(firsts) if lengths is None else int(lengths[firsts].sum())
            factors[name] = self.repeats.features[name].ids / kept if kept else 1.0
        return _GroupCounts(factors, len(firsts) / max(1, self.repeats.rows), int(counts.max()))

    def _codes_of(self, group: tuple[str, ...]) -> Tensor:
        """[N] equal if the lists of all these features are equal; kept, since many features may be
        tried with one group, and instead of the codes of the group from which it has grown."""
        if len(group) == 1:
            return self._codes[group[0]]
        if group not in self._codes_of_groups:
            before = self._codes_of_groups.pop(group[:-1], None)
            names = group if before is None else group[-1:]
            codes = [*([] if before is None else [before]), *(self._codes[name] for name in names)]
            self._codes_of_groups[group] = group_codes(codes).inverse_lookup
        return self._codes_of_groups[group]


class _GroupCounts(NamedTuple):
    """The counts of a group in the sampled batches."""

    factors: dict[str, float]
    share: float
    most: int


def sample_batches(
    table: Table, *, batch_size: int, sample_rows: int, seed: int
) -> Iterator[SessionRows]:
    """Batches of consecutive rows from places of a table drawn by `seed`, about `sample_rows` rows.

    A table with fewer rows than a batch is one batch.
    """
    require_sessions(table.schema, "groups: auto", table.path)
    if not table.num_rows or not table.schema.sparse:
        raise DataError(
            f"{table.path}: has {so_many(table.num_rows, 'row')} of {len(table.schema.sparse)} "
            "sparse features, so there is nothing to advise on. Name `dedup.groups` by hand."
        )
    bands = choose_bands(
        [stripe.num_rows for stripe in table.stripes],
        rows=max(batch_size, sample_rows // RUNS),
        count=RUNS,
        seed=seed,
    )
    per_band = max(1, sample_rows // (len(bands) * batch_size))
    for band in bands:
        part = dataclasses.replace(table, stripes=table.stripes[band.start : band.stop])
        yield from islice(batches(chunks(without_dense(part)), table.schema, batch_size), per_band)


def measured_shares(table: Table, groups: Groups, *, batch_size: int) -> tuple[float, ...] | None:
    """Each group's unique samples over the batch size, in batches of the table in stored order.

    None if they cannot be measured: if there are no rows or sessions, or if a group names a feature
    that the table lacks. Only the groups' columns are read, in about `MEASURED_ROWS` rows.
    """
    named = {name for group in groups for name in group}
    features = tuple(feature for feature in table.schema.sparse if feature.name in named)
    if not table.num_rows or table.schema.session_id is None or len(features) < len(named):
        return None
    schema = dataclasses.replace(table.schema, sparse=features)
    narrow = dataclasses.replace(table, schema=schema)
    parts = sample_batches(narrow, batch_size=batch_size, sample_rows=MEASURED_ROWS, seed=0)
    sample = SampledBatches(schema.sparse_names, parts)
    return tuple(sample.unique_share(group) for group in groups)


def rows_of_batches(
    features: Sequence[KeyedJaggedTensor],
    keys: Sequence[str],
    sessions: Sequence[Tensor] | None = None,
) -> Iterator[SessionRows]:
    """The rows of batches; if their sessions are unknown, all samples of a batch count as one
    session's. They come about `PIECE` at a time, since many small batches would each take a call
    for each feature.

    Samples whose weights differ count as different; only ids are counted, not weights.
    """
    first = held = 0
    for last, batch in enumerate(features):
        held += batch.stride()
        if held < PIECE and last + 1 < len(features):
            continue
        some = features[first : last + 1]
        columns, weighted = _columns(some, keys)
        yield SessionRows(
            sessions=np.zeros(held, np.int64)
            if sessions is None
            else torch.cat(list(sessions[first : last + 1])).numpy(),
            columns=columns,
            paired=keys if weighted else (),
            batches=np.repeat(np.arange(len(some)), [one.stride() for one in some]),
        )
        first, held = last + 1, 0


def _columns(
    batches: Sequence[KeyedJaggedTensor], keys: Sequence[str]
) -> tuple[dict[str, pa.LargeListArray], bool]:
    """The lists of features in batches, one after another, and whether the bits of its weight
    follow each id."""
    here = [batch.to(torch.device("cpu")) for batch in batches]
    weighted = any(batch.weights_or_none() is not None for batch in here)
    values, lengths = [], []
    for batch in here:
        ids, size = batch.values().long(), batch.length_per_key()
        if weighted:
            bits = batch.weights().double().view(torch.int64)
            ids, size = torch.stack([ids, bits], dim=1).view(-1), [2 * one for one in size]
        values.append(dict(zip(batch.keys(), ids.split(size), strict=True)))
        each = batch.lengths().long().view(len(size), -1) * (2 if weighted else 1)
        lengths.append(dict(zip(batch.keys(), each, strict=True)))
    columns = {}
    for key in keys:
        offsets = torch.cat([one[key] for one in lengths]).cumsum(0)
        columns[key] = pa.LargeListArray.from_arrays(
            pa.array(np.concatenate([[0], offsets.numpy()]), pa.int64()),
            pa.array(torch.cat([one[key] for one in values]).numpy(), pa.int64()),
        )
    return columns, weighted


def _joined_codes(parts: Sequence[Lists]) -> Tensor:
    """[N] the codes of a feature's lists, which differ between batches."""
    before, codes = 0, []
    for lists in parts:
        codes.append(torch.from_numpy(lists.codes) + before)
        before += len(lists.firsts)
    return torch.cat(codes) if codes else torch.zeros(0, dtype=torch.int64, device="cpu")


def _joined_lengths(parts: Sequence[Lists]) -> I64 | None:
    """[N] the lengths of a feature's lists; None if all are 1."""
    lengths = np.concatenate([lists.lengths for lists in parts] or [np.zeros(0, np.int64)])
    return None if (lengths == 1).all() else lengths


def shares_of_batches(
    features: Sequence[KeyedJaggedTensor], groups: Groups
) -> tuple[float, ...] | None:
    """Each group's unique samples over the batch size in these batches; None if they lack a feature
    of the groups."""
    named = [name for group in groups for name in group]
    if any(name not in batch.keys() for batch in features for name in named):  # noqa: SIM118
        return None
    sample = SampledBatches(named, rows_of_batches(features, named))
    return tuple(sample.unique_share(group) for group in groups)


def choose_bands(stripe_rows: Sequence[int], *, rows: int, count: int, seed: int) -> list[range]:
    """At most `count` bands of consecutive stripes, each of at least `rows` rows, in order.

    Stripes are cut into bands from the first on; the last band takes the rest.
    """
    bands, first, held = [], 0, 0
    for index, num_rows in enumerate(stripe_rows):
        held += num_rows
        if held >= rows:
            bands.append(range(first, index + 1))
            first, held = index + 1, 0
    if first < len(stripe_rows):
        before = bands.pop().start if bands else 0
        bands.append(range(before, len(stripe_rows)))
    chosen = np.random.default_rng(seed).permutation(len(bands))[:count]
    return [bands[index] for index in sorted(chosen.tolist())]

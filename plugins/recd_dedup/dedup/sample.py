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
from recd_dedup.stats.session_rows import I64, SessionRows, batches, chunks, without_dense
from recd_plugins.api import DataError, so_many
from recd_plugins.api.batch import Groups
from recd_plugins.api.data import Table
from recd_plugins.api.rows import group_codes

if TYPE_CHECKING:
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

__all__ = [
    "SampledBatches",
    "choose_runs",
    "measured_shares",
    "rows_of_batch",
    "sample_batches",
    "shares_of_batches",
]

RUNS = 8
"""A sample comes from at most this many places of its table."""
MEASURED_ROWS = 16_384
"""About how many rows are read to measure the shares of groups that were given by name."""


class SampledBatches:
    """Batches of B rows in the table's order, like those of a reader that keeps sessions whole.

    For each list, its code and length are kept: 16 bytes per row and feature.
    """

    def __init__(self, features: Sequence[str], parts: Iterable[SessionRows]) -> None:
        self.features = tuple(features)
        self.repeats = BatchRepeats(features)
        """l(f), d(f), S, DedupeLen and DedupeFactor."""
        self._codes: dict[str, list[Tensor]] = {name: [] for name in features}
        self._lengths: dict[str, list[I64]] = {name: [] for name in features}
        changes = np.zeros((len(features), len(features)), np.int64)
        for rows in parts:
            self.repeats.add(rows)
            changes += self._add(rows)
        self._groups: dict[tuple[str, ...], _GroupCounts] = {}
        self._at = {name: index for index, name in enumerate(features)}
        self._agreement = agreement(changes)
        self.alone = {name: self.factors([name])[name] for name in features}
        """Each feature's DedupeFactor if it is deduplicated by itself, measured."""

    def _add(self, rows: SessionRows) -> NDArray[np.int64]:
        """[F, F] how often both features change from one sample of a session to the next."""
        order = rows.sessions.argsort(kind="stable")
        sessions = rows.sessions[order]
        follows = sessions[1:] == sessions[:-1]
        changed = []
        for name, lists in rows.features():
            codes = lists.codes[order]
            changed.append((codes[1:] != codes[:-1])[follows])
            self._codes[name].append(torch.from_numpy(lists.codes))
            self._lengths[name].append(lists.lengths)
        shape = len(changed), int(follows.sum())
        both = np.array(changed, np.float32).reshape(shape)  # exact below 2^24 rows
        changes: NDArray[np.int64] = np.rint(both @ both.T).astype(np.int64)
        return changes

    def agreement(self, name: str, group: Sequence[str]) -> float:
        """The share of samples in which two features change, among those in which either changes:
        for the feature of the group that agrees least."""
        return min(float(self._agreement[self._at[name], self._at[other]]) for other in group)

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
        before, kept = dict.fromkeys(group, 0), dict.fromkeys(group, 0)
        counts = []
        for batch in range(self.repeats.batches):
            firsts = group_codes([self._codes[name][batch] for name in group]).firsts
            counts.append(firsts.numel())
            for name in group:
                lengths = self._lengths[name][batch]
                before[name] += int(lengths.sum())
                kept[name] += int(lengths[firsts.numpy()].sum())
        return _GroupCounts(
            {name: before[name] / kept[name] if kept[name] else 1.0 for name in group},
            sum(counts) / max(1, self.repeats.rows),
            max(counts, default=0),
        )


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
    runs = choose_runs(
        [stripe.num_rows for stripe in table.stripes],
        rows=max(batch_size, sample_rows // RUNS),
        count=RUNS,
        seed=seed,
    )
    per_run = max(1, sample_rows // (len(runs) * batch_size))
    for run in runs:
        part = dataclasses.replace(table, stripes=table.stripes[run.start : run.stop])
        yield from islice(batches(chunks(without_dense(part)), table.schema, batch_size), per_run)


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


def rows_of_batch(
    features: KeyedJaggedTensor, keys: Sequence[str], sessions: Tensor | None = None
) -> SessionRows:
    """The rows of a batch; if its sessions are unknown, all samples count as one session's.

    Samples whose weights differ count as different; only ids are counted, not weights.
    """
    here = features.to(torch.device("cpu"))
    columns, weighted = {}, here.weights_or_none() is not None
    for key in keys:
        jagged = here[key]
        lengths, values = jagged.lengths().long(), jagged.values().long()
        if weighted:
            bits = jagged.weights().double().view(torch.int64)
            lengths, values = 2 * lengths, torch.stack([values, bits], dim=1).view(-1)
        offsets = pa.array(np.concatenate([[0], lengths.numpy().cumsum()]), pa.int64())
        ids = pa.LargeListArray.from_arrays(offsets, pa.array(values.numpy(), pa.int64()))
        columns[key] = ids
    known = np.zeros(here.stride(), np.int64) if sessions is None else sessions.numpy()
    return SessionRows(sessions=known, columns=columns, paired=keys if weighted else ())


def shares_of_batches(
    features: Sequence[KeyedJaggedTensor], groups: Groups
) -> tuple[float, ...] | None:
    """Each group's unique samples over the batch size in these batches; None if they lack a feature
    of the groups."""
    named = [name for group in groups for name in group]
    if any(name not in batch.keys() for batch in features for name in named):  # noqa: SIM118
        return None
    sample = SampledBatches(named, (rows_of_batch(batch, named) for batch in features))
    return tuple(sample.unique_share(group) for group in groups)


def choose_runs(stripe_rows: Sequence[int], *, rows: int, count: int, seed: int) -> list[range]:
    """At most `count` runs of consecutive stripes, each of at least `rows` rows, in order.

    Stripes are cut into runs from the first on; the last run takes the rest.
    """
    runs, first, held = [], 0, 0
    for index, num_rows in enumerate(stripe_rows):
        held += num_rows
        if held >= rows:
            runs.append(range(first, index + 1))
            first, held = index + 1, 0
    if first < len(stripe_rows):
        before = runs.pop().start if runs else 0
        runs.append(range(before, len(stripe_rows)))
    chosen = np.random.default_rng(seed).permutation(len(runs))[:count]
    return [runs[index] for index in sorted(chosen.tolist())]

"""A sample of the batches that the reader will deliver in training, and the sessions in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from recd_plugins.api import Context, DataError, Missed, PluginError, so_many
from recd_plugins.api.batch import Groups

if TYPE_CHECKING:
    from torch import Tensor
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

    from recd_plugins.api.batch import Columns
    from recd_plugins.api.data import Table

__all__ = ["ReadSample", "read_sample"]

SAMPLES = 32_768
"""About how many samples have their features looked at, about equally many at each place."""
PLACES = 8
AROUND = 8
"""How many times as many samples are looked at only for their sessions."""


@dataclass
class ReadSample:
    """A sample of the epoch: what some of its batches show."""

    features: list[KeyedJaggedTensor] = field(default_factory=list)
    """Batch by batch."""
    sessions: list[Tensor] | None = None
    """The sessions of their samples; None if they are unknown."""
    batch_size: int = 0
    in_batches: float = 0.0
    """Samples of a session in a batch; 0 if the sessions are unknown."""
    around: float = 0.0
    """Samples of a session in all batches of a place, or of all places; a session larger than a
    batch counts as several."""
    together: bool = False
    """Whether the samples of a session lie side by side in a batch."""

    def notices(self, table: Table, what: str) -> list[Missed]:
        """A notice if batches hold far fewer samples of a session than lie around them."""
        if self.around < 1.5 * max(1.0, self.in_batches):
            return []
        clustered = _is_clustered(table)
        if clustered and self.together:  # large sessions and small batches
            return []
        apart = f"a batch holds {self.in_batches:.2f} samples of a session, and the batches around "
        apart += f"it {self.around:.2f}"
        if clustered:
            return [
                Missed(
                    what=what,
                    why=f"{apart}: the table is clustered, but its rows are shuffled one by one",
                    cure="Keep sessions together: `reader: {use: local, sessions: whole}`.",
                )
            ]
        return [
            Missed(
                what=what,
                why=f"{apart}: the table is not clustered by session",
                cure="Cluster it (this is done once), and keep sessions together: `etl: "
                "[cluster_by_session]` and `reader: {use: local, sessions: whole}`.",
            )
        ]


def read_sample(context: Context, features: Sequence[str] | None = None) -> ReadSample:
    """Batches from all over an epoch of the train split, with the given features or all."""
    assert context.delivered is not None
    table = context.require_tables().train
    keys = table.schema.sparse_names if features is None else tuple(features)
    if not keys or not table.num_rows:
        raise DataError(
            f"{table.path}: has {so_many(table.num_rows, 'row')} of "
            f"{so_many(len(keys), 'sparse feature')}, so there is nothing to advise on. Name "
            "`dedup.groups` by hand."
        )
    if table.schema.session_id is None:
        return _read(context.delivered, keys, ())
    try:
        return _read(context.delivered, keys, ("session_id",))
    except PluginError:  # a reader that hands over no sessions
        return _read(context.delivered, keys, ())


def _read(delivered: Any, keys: Sequence[str], asks: Sequence[str]) -> ReadSample:
    taking = _Taking(tuple((key,) for key in keys), asks)
    sample, around = ReadSample(sessions=[] if asks else None), AROUND if asks else 1
    seen: dict[int, list[Tensor]] = {}
    looked_at: dict[int, int] = {}
    samples = sessions = bands = 0
    for place, batch in delivered.batches(taking, SAMPLES * around, PLACES):
        columns = batch.dedup
        if asks:
            seen.setdefault(place, []).append(columns.session_id)
        if looked_at.get(place, 0) >= SAMPLES // PLACES:  # was read only for its sessions
            continue
        looked_at[place] = looked_at.get(place, 0) + len(batch)
        features = columns.to_kjt()
        sample.features.append(features)
        sample.batch_size = max(sample.batch_size, len(batch))
        if sample.sessions is not None:
            sample.sessions.append(columns.session_id)
            samples += len(batch)
            sessions += columns.session_id.unique().numel()
            bands += columns.session_id.unique_consecutive().numel()
    if asks:
        places = [torch.cat(found) for found in seen.values()]
        # In a small table, the places together are the whole table.
        sample.around = max(
            _a_session(places, sample.batch_size),
            _a_session([torch.cat(places)], sample.batch_size),
        )
        sample.in_batches = samples / sessions
        sample.together = 0 < 0.8 * (samples - sessions) <= samples - bands
    return sample


def _a_session(places: Sequence[Tensor], batch_size: int) -> float:
    """Samples of a session at a place; a session larger than a batch counts as several."""
    counts = [sessions.unique(return_counts=True)[1] for sessions in places]
    pieces = sum(int((-(-of_place // batch_size)).sum()) for of_place in counts)
    return sum(map(len, places)) / max(1, pieces)


class _Taking:
    """Takes the place of a converter, and leaves all features as they are."""

    def __init__(self, groups: Groups, asks: Sequence[str]) -> None:
        self.groups = groups
        self.asks = tuple(asks)

    def convert(self, features: Columns) -> Any:
        return features


def _is_clustered(table: Table) -> bool:
    """Whether the samples of a session lie side by side, in the first of the largest stripes."""
    stripe = max(table.stripes, key=lambda one: one.num_rows)
    file = table.opened(stripe.file)
    session = table.schema.session_id
    if session is None or session not in file.schema_arrow.names:
        return False
    column = file.read_row_group(stripe.group, columns=[session])
    sessions = column[0].combine_chunks().dictionary_encode()
    codes = sessions.indices.to_numpy(zero_copy_only=False)
    bands = 1 + np.count_nonzero(codes[1:] != codes[:-1])
    return bool(bands <= 1.2 * max(1, len(sessions.dictionary)))

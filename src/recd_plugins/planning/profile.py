"""The access distributions of a model's tables: measured on batches or traces, saved as Arrow."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from recd_plugins.errors import DataError, nearest
from recd_plugins.planning.counting import RowCounter
from recd_plugins.planning.rows import Integers, RowDistribution
from recd_plugins.planning.sketch import RowSketch

if TYPE_CHECKING:
    from torch import Tensor

    from recd_plugins.data.batch import Batch

__all__ = ["Counted", "Profile", "profile_batches", "profile_trace"]

METADATA_KEY = b"recd.profile"

EXACT_ROWS = 1 << 27
"""Exact counts take 12 bytes a row: 1.6 GB for so many."""
COUNTERS = 1 << 22
"""Of a sketch, in their place: 64 MB, and counts too low by 1 / 2^22 of all lookups at most."""
NONE = np.empty(0, np.int64)


@dataclass(frozen=True, kw_only=True)
class Counted:
    """Which features' lookups make up one distribution: a table's, or a single feature's."""

    num_rows: int
    features: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Distributions by the name of their table (or feature)."""

    rows: Mapping[str, RowDistribution]
    samples: int = 0
    """How many were counted; 0 where formulas say."""

    def __getitem__(self, name: str) -> RowDistribution:
        if name not in self.rows:
            raise DataError(f"profile: has no {name!r}; {nearest(name, self.rows)}")
        return self.rows[name]

    def save(self, path: Path) -> None:
        """One Arrow IPC file: a row per distribution, its runs as lists."""
        schema = pa.schema(
            [
                ("name", pa.string()),
                ("error", pa.float64()),
                ("counts", pa.large_list(pa.int64())),
                ("p", pa.large_list(pa.float64())),
                ("presence", pa.large_list(pa.float64())),
                ("ids", pa.large_list(pa.int64())),
            ],
            metadata={METADATA_KEY: json.dumps({"samples": self.samples}).encode()},
        )
        each = list(self.rows.values())
        columns = [
            pa.array(list(self.rows), pa.string()),
            pa.array([rows.error for rows in each], pa.float64()),
            *(
                pa.array([getattr(rows, name) for rows in each], schema.field(name).type)
                for name in ("counts", "p", "presence", "ids")
            ),
        ]
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(path.name + ".part")
        with pa.OSFile(str(part), "wb") as file, pa.ipc.new_file(file, schema) as writer:
            writer.write_table(pa.table(columns, schema=schema))
        part.replace(path)

    @classmethod
    def load(cls, path: Path) -> Profile:
        """What `save` wrote; anything else raises `DataError`."""
        try:
            with pa.OSFile(str(path), "rb") as file:
                table = pa.ipc.open_file(file).read_all()
            table.validate(full=True)
            said = json.loads(table.schema.metadata[METADATA_KEY])
            rows = {
                table["name"][at].as_py(): RowDistribution(
                    counts=_array(table["counts"][at]),
                    p=_array(table["p"][at]),
                    presence=_array(table["presence"][at]),
                    ids=_array(table["ids"][at]) if table["ids"][at].is_valid else None,
                    error=table["error"][at].as_py(),
                )
                for at in range(len(table))
            }
            return cls(rows=rows, samples=int(said["samples"]))
        except DataError as error:
            raise DataError(f"{path}: {error}") from error
        except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"{path}: is not a profile ({error}). `recd plan --save-profile` writes one."
            ) from error


def profile_batches(
    batches: Iterable[Batch], counted: Mapping[str, Counted], *, exact_rows: int = EXACT_ROWS
) -> Profile:
    """Count the lookups that a rank's batches bring, after dedup and every transform.

    A deduplicated feature brings those of its unique samples, as a model that takes them looks
    up; p is per sample of the batch all the same. Batches of another size than the first are
    left out: they would blur `presence`. Rows that these batches lack get their part of the
    lookups to come (`RowCounter`). Tables of more than `exact_rows` rows are sketched.
    """
    counters = {
        name: RowCounter(part.num_rows) if part.num_rows <= exact_rows else RowSketch(COUNTERS)
        for name, part in counted.items()
    }
    size = samples = 0
    for batch in batches:
        size = size or len(batch)
        if len(batch) != size:
            continue
        samples += size
        looked_up = _lookups(batch)
        for name, part in counted.items():
            ids = [_named(looked_up, feature) for feature in part.features]
            counters[name].add(np.concatenate([NONE, *ids]), size)
    if not size:
        raise DataError("profile: there are no batches to count: the train split is empty.")
    rows = {
        name: _counted(counters[name], part.num_rows, sample=True) for name, part in counted.items()
    }
    return Profile(rows=rows, samples=samples)


def profile_trace(
    indices: Tensor,
    offsets: Tensor,
    num_rows: Sequence[int],
    *,
    batch_size: int,
    counters: int = 0,
) -> Profile:
    """From fbgemm's index format: T tables of B samples, one after the other.

    `indices` [N], `offsets` [T * B + 1] (or `lengths` [T, B], told by its shape), `num_rows` [T].
    Tables are named by their place. `counters` > 0 counts with a sketch of so many, for
    tables that exact counts do not fit; `batch_size` samples are a batch, what is left over is
    left out.
    """
    bounds = _bounds(offsets, len(num_rows), len(indices))
    ids = indices.numpy().astype(np.int64, copy=False)
    samples = (len(bounds) - 1) // len(num_rows)
    size = min(batch_size, samples)
    whole = samples - samples % size
    found = {}
    for table, rows in enumerate(num_rows):
        counter = RowSketch(counters) if counters else RowCounter(rows)
        for start in range(table * samples, table * samples + whole, size):
            counter.add(ids[bounds[start] : bounds[start + size]], size)
        found[str(table)] = _counted(counter, rows)
    return Profile(rows=found, samples=whole)


def _counted(
    counter: RowCounter | RowSketch, num_rows: int, *, sample: bool = False
) -> RowDistribution:
    if isinstance(counter, RowSketch):
        return counter.distribution(num_rows)
    return counter.distribution(sample=sample)


def _lookups(batch: Batch) -> dict[str, Integers]:
    """The ids that each feature of a batch looks up: of unique samples where it has such."""
    from recd_plugins.sparse.partial import PartialInverseKeyedJaggedTensor

    found = {key: part.values() for key, part in batch.features.to_dict().items()}
    dedup = batch.dedup
    if isinstance(dedup, PartialInverseKeyedJaggedTensor):
        dedup = dedup.to_ikjt()
    if dedup is not None:
        found |= {key: part.values for key, part in dedup.parts().items()}
    return {key: ids.numpy().astype(np.int64, copy=False) for key, ids in found.items()}


def _named(looked_up: Mapping[str, Integers], feature: str) -> Integers:
    if feature not in looked_up:
        raise DataError(
            f"profile: the batches have no feature {feature!r}; {nearest(feature, looked_up)}"
        )
    return looked_up[feature]


def _bounds(offsets: Tensor, tables: int, indices: int) -> Integers:
    bounds: Integers = offsets.numpy().astype(np.int64)
    if bounds.ndim == 2:
        bounds = np.concatenate([[0], np.cumsum(bounds.reshape(-1))])
    per_table, over = divmod(len(bounds) - 1, tables)
    if over or per_table < 1 or bounds[0] or bounds[-1] != indices or np.any(np.diff(bounds) < 0):
        raise DataError(
            f"trace: {len(bounds) - 1} lists of {indices} ids are no whole batch of {tables} "
            "tables. Give offsets [T * B + 1] or lengths [T, B], and num_rows of every table."
        )
    return bounds


def _array(scalar: pa.LargeListScalar) -> NDArray[Any]:
    found: NDArray[Any] = scalar.values.to_numpy(zero_copy_only=False)
    return found

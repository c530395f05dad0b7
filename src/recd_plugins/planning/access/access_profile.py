"""The access distributions of a model's tables: measured on batches, saved as Arrow."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from recd_plugins.errors import DataError, listed, nearest, so_many
from recd_plugins.planning.access.counting import (
    EXACT_ROWS,
    Counter,
    counters,
    distribution,
)
from recd_plugins.planning.access.distribution import RowDistribution, named_twice
from recd_plugins.planning.access.forecast import FOLDS
from recd_plugins.planning.access.lookups import batch_lookups
from recd_plugins.planning.access.row_counter import RowCounter
from recd_plugins.planning.access.whole_bags import SampledBags
from recd_plugins.planning.arrow_file import read_arrow, write_arrow

if TYPE_CHECKING:
    from recd_plugins.sparse.own_batches import FeaturesOf

__all__ = ["Counted", "Profile", "Tally", "profile_batches"]

METADATA_KEY = b"recd.profile"
SCHEMA = pa.schema(
    [
        pa.field("name", pa.string(), nullable=False),
        pa.field("error", pa.float64(), nullable=False),
        pa.field("counts", pa.large_list(pa.int64()), nullable=False),
        pa.field("p", pa.large_list(pa.float64()), nullable=False),
        pa.field("presence", pa.large_list(pa.float64()), nullable=False),
        pa.field("ids", pa.large_list(pa.int64())),
        pa.field("uncertainty", pa.large_list(pa.float64())),
        pa.field("whole_bags", pa.large_list(pa.float64())),
    ]
)
NONE = np.empty(0, np.int64)


@dataclass(frozen=True, kw_only=True)
class Counted:
    """The features whose lookups make up one distribution: those of a table, or a single one."""

    num_rows: int
    features: tuple[str, ...]
    bags: bool = False
    """Whether rows are summed over bags, so that whole bags are counted too."""


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Distributions by the name of their table or feature."""

    rows: Mapping[str, RowDistribution]
    samples: int = 0
    """The number of samples that were counted; 0 for formulas."""
    batch_size: int = 0
    """The number of samples in a batch of one rank; 0 if it is not known."""

    def __getitem__(self, name: str) -> RowDistribution:
        if name not in self.rows:
            raise DataError(f"profile: has no {name!r}; {nearest(name, self.rows)}")
        return self.rows[name]

    def save(self, path: str | Path) -> None:
        """One Arrow IPC file: a row per distribution, its bands as lists."""
        schema = SCHEMA.with_metadata(
            {
                METADATA_KEY: json.dumps(
                    {"samples": self.samples, "batch_size": self.batch_size}
                ).encode()
            }
        )
        each = list(self.rows.values())
        columns = [
            pa.array(list(self.rows), pa.string()),
            pa.array([rows.error for rows in each], pa.float64()),
            *(
                pa.array([getattr(rows, name) for rows in each], schema.field(name).type)
                for name in ("counts", "p", "presence", "ids", "uncertainty", "whole_bags")
            ),
        ]
        write_arrow(path, pa.table(columns, schema=schema))

    @classmethod
    def load(cls, path: str | Path) -> Profile:
        """The profile that `save` wrote. Raises `DataError` for any other file."""
        table = read_arrow(
            path, METADATA_KEY, SCHEMA, "A profile is meant: `recd data profile` writes one."
        )
        try:
            metadata = json.loads(table.schema.metadata[METADATA_KEY])
            rows = {}
            for at in range(len(table)):
                name = table["name"][at].as_py()
                rows[name] = RowDistribution(
                    counts=_array(table["counts"][at]),
                    p=_array(table["p"][at]),
                    presence=_array(table["presence"][at]),
                    ids=_known(table["ids"][at]),
                    error=table["error"][at].as_py(),
                    uncertainty=_known(table["uncertainty"][at]),
                    whole_bags=_known(table["whole_bags"][at]),
                )
                _check_ids(name, rows[name])
            size = int(metadata.get("batch_size", 0))
            return cls(rows=rows, samples=int(metadata["samples"]), batch_size=size)
        except DataError as error:
            raise DataError(f"{path}: {error}") from error
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"{path}: is not a profile as this version writes it ({error}). `recd data "
                "profile` writes one."
            ) from error


@dataclass(kw_only=True)
class Tally:
    """The counts of one rank, from which each distribution is made."""

    counted: Mapping[str, Counted]
    exact_rows: int = EXACT_ROWS
    """The most rows of all tables that are counted exactly: the largest tables are sketched, until
    the others together have no more rows than this."""
    samples: int = 0
    batches: int = 0
    """The number of batches with these samples; if no batch had a sample, the number of batches
    without one."""
    left_out: int = 0
    """The number of further batches, each too small to be counted."""
    epoch: float = 0
    """The number of batches of an epoch, on all ranks; 0 if it is not known."""
    in_order: bool = False
    """Whether these are the first batches of loaders that can only read in their own order."""
    alike: bool = False
    """Whether these are the counts of several ranks that read the same batches."""
    comes_again: Mapping[str, float] | None = None
    """The share of each table's counted lookups that an epoch has again, as its next one showed;
    the others are drawn anew. None if no other epoch was seen."""
    counters: dict[str, Counter] = field(init=False)
    bags: dict[str, SampledBags] = field(init=False)
    """A sample of the bags of the tables that are summed over bags."""
    no_row: dict[str, int] = field(default_factory=dict)
    """The number of ids that are not a row of the table, for tables with such ids: they are not
    counted. In training TorchRec looks up another row for each, and so do tiers."""
    variable: frozenset[str] = frozenset()
    """The features that came in KJTs whose keys differ in batch size."""
    weighted: frozenset[str] = frozenset()
    """The features whose ids each came with a weight."""

    def __post_init__(self) -> None:
        rows = {name: part.num_rows for name, part in self.counted.items()}
        self.counters = counters(rows, exact_rows=self.exact_rows)
        self.bags = {name: SampledBags() for name, part in self.counted.items() if part.bags}

    def add(self, batches: Iterable[Any], features: FeaturesOf | None = None) -> Tally:
        """Count the lookups in batches of one rank; `batch_lookups` finds them.

        Consecutive batches are in the same fold, if it is known how many there are.
        Batches may differ in size; those of less than half the mean so far, such as the last of an
        epoch, are left out: they would blur `presence`.
        """
        expected = len(batches) if isinstance(batches, Sized) else 0
        for number, batch in enumerate(batches):
            fold = number * FOLDS // expected if number < expected else number % FOLDS
            self.count(batch, fold, features)
        return self

    def count(self, batch: Any, fold: int, features: FeaturesOf | None = None) -> None:
        """Count one batch in a fold."""
        lookups = batch_lookups(batch, features)
        self.variable |= lookups.variable
        self.weighted |= lookups.weighted
        size = lookups.samples
        if 2 * size < self.batch_size:
            self.left_out += 1
            return
        self.came(size, 1)
        if not size:
            return
        for name, part in self.counted.items():
            each = [lookups[feature] for feature in part.features]
            ids = each[0] if len(each) == 1 else np.concatenate([NONE, *each])
            if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < part.num_rows:
                row = (ids >= 0) & (ids < part.num_rows)
                self.no_row[name] = self.no_row.get(name, 0) + int(np.count_nonzero(~row))
                ids = ids[row]
            self.counters[name].add(ids, size, fold)
            if name in self.bags:
                for feature in part.features:
                    bags = lookups[feature], lookups.lengths[feature]
                    self.bags[name].add(*bags, part.num_rows, fold)

    def came(self, samples: int, batches: int) -> None:
        """Note that `samples` samples came in `batches` batches."""
        if samples and not self.samples:
            self.batches = 0
        if samples or not self.samples:
            self.batches += batches
        self.samples += samples

    def merge(self, other: Tally) -> None:
        """Add the counts of other batches of the same epoch, and free the other's counters."""
        self.came(other.samples, other.batches)
        self.left_out += other.left_out
        self.epoch = max(self.epoch, other.epoch)
        self.variable |= other.variable
        self.weighted |= other.weighted
        for name, bags in other.bags.items():
            self.bags[name].merge(*bags.state())
        for name, ids in other.no_row.items():
            self.no_row[name] = self.no_row.get(name, 0) + ids
        if not any(counter.samples for counter in self.counters.values()):
            self.counters = other.counters
            return
        for name, counter in self.counters.items():
            counter.merge(*other.counters.pop(name).state())

    @property
    def batch_size(self) -> int:
        """The mean number of samples in a batch."""
        return round(self.samples / self.batches) if self.batches else 0

    @property
    def counted_share(self) -> float:
        """The share of an epoch's batches that was read; 0 if it is not known."""
        return min((self.batches + self.left_out) / self.epoch, 1.0) if self.epoch else 0.0

    def shares_of_no_row(self, profile: Profile) -> dict[str, float]:
        """The share of each table's ids that are not a row of it, for tables with such ids."""
        found = {}
        for name, ids in self.no_row.items():
            found[name] = ids / (ids + profile[name].lookups * profile.samples)
        return found

    def explain(self) -> str:
        """The counts, in words."""
        share = f", {self.counted_share:.1%} of an epoch" if self.epoch else ""
        counted = f"{so_many(self.samples, 'sample')}{share}"
        if not self.in_order or self.counted_share == 1:
            found = f"counted: {counted}, from all over it" if share else f"counted: {counted}"
            return found + self._of_other_epochs() if self.in_order else found
        return (
            f"counted: {counted}, the first of the trainer's own loader: what comes later is taken "
            "to be like them, and intervals are as wide as such batches differ, and as rows drift "
            "within them. Where rows drift, re-tier (train.retier_every), or count a profile of "
            "batches from all over the data; where kinds of batches take turns, count more of them "
            "(profile_batches)"
        )

    def _of_other_epochs(self) -> str:
        """What is known of the epochs after one that was counted, in words."""
        if self.comes_again is None:
            return (
                ". If the trainer's loader draws ids anew in each epoch, as negatives, other rows "
                "come later than these: pass it without a length"
            )
        anew = {name: 1 - share for name, share in self.comes_again.items() if share < 1}
        if not anew:
            return "; its next epoch began with the same rows"
        tables = listed([f"{name} ({share:.0%})" for name, share in anew.items()], kind="table")
        return (
            f"; in its next epoch, ids of {tables} are drawn anew: these are forecast from "
            "held-out batches"
        )

    def exact(self, name: str) -> RowCounter | None:
        """The exact counts of a table; None if a sketch has given them up."""
        counter = self.counters[name]
        return counter if isinstance(counter, RowCounter) else counter.exact

    def distributions(self) -> Iterator[tuple[str, RowDistribution]]:
        """The forecast lookups of each table that is counted exactly."""
        for name, counter in self.counters.items():
            if isinstance(counter, RowCounter) and counter.samples:
                yield name, counter.distribution(sample=True)

    def profile(self, *, counted_share: float | None = None) -> Profile:
        """The distributions as they will be in training (`RowCounter.distribution`). The counters
        are freed one by one.

        `counted_share` of the batches to come are the counted ones themselves: by default the share
        of an epoch that was counted.
        """
        share = self.counted_share if counted_share is None else counted_share
        if not self.samples and self.batches:
            raise DataError(
                f"profile: there are no samples to count: {so_many(self.batches, 'batch')} came, "
                "and none had a sample. Check what the loader, or the collate_fn that makes its "
                "batches, leaves out."
            )
        if not self.samples:
            raise DataError(
                "profile: there are no batches to count: the train split, or the trainer's "
                "loader, is empty."
            )
        rows = {name: self._rows(name, share) for name in self.counted}
        return Profile(rows=rows, samples=self.samples, batch_size=self.batch_size)

    def _rows(self, name: str, share: float) -> RowDistribution:
        share *= (self.comes_again or {}).get(name, 1.0)
        exact, counter = self.exact(name), self.counters.pop(name)
        rows = distribution(
            counter,
            self.counted[name].num_rows,
            sample=True,
            counted_share=share,
            in_order=self.in_order,
        )
        if exact is None or name not in self.bags:
            return rows
        return replace(rows, whole_bags=self.bags[name].whole(exact, share))


def profile_batches(
    batches: Iterable[Any],
    counted: Mapping[str, Counted],
    *,
    features: FeaturesOf | None = None,
    exact_rows: int = EXACT_ROWS,
) -> Profile:
    """Count the lookups in batches of one rank or several, after every transform.

    A deduplicated feature counts the lookups of its unique samples, which are what a model with
    dedup looks up; p is still per sample of the batch. The result is a forecast for batches like
    these, not what these batches had (`RowCounter.distribution`). If the tables have more than
    `exact_rows` rows in all, the largest are sketched. `features` says where a batch has its sparse
    features (`batch_lookups`).
    """
    tally = Tally(counted=counted, exact_rows=exact_rows)
    return tally.add(batches, features).profile()


def _check_ids(name: str, rows: RowDistribution) -> None:
    """Refuse ids that are not a row of the table, and a row that is named twice."""
    if rows.ids is None or not len(rows.ids):
        return
    low, high = int(rows.ids.min()), int(rows.ids.max())
    if low < 0 or high >= rows.num_rows:
        raise DataError(
            f"{name!r} names row {low if low < 0 else high:,}, but has "
            f"{so_many(rows.num_rows, 'row')}."
        )
    if named_twice(rows.ids):
        raise DataError(f"{name!r} names a row twice.")


def _known(scalar: pa.LargeListScalar) -> NDArray[Any] | None:
    return _array(scalar) if scalar.is_valid else None


def _array(scalar: pa.LargeListScalar) -> NDArray[Any]:
    found: NDArray[Any] = scalar.values.to_numpy(zero_copy_only=False)
    return found

"""A window of batches, and which of its samples go into which hot or normal batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from recd_plugins.api import CapabilityError, DataError, so_many
from recd_plugins.api.batch import (
    Batch,
    JoinedFeatures,
    OwnBatches,
    SparseFeatures,
    all_features_of,
    marked_batch,
)
from recd_scars.hot_batches.hot_rows import HotRows
from recd_scars.hot_batches.window_samples import WindowSamples

__all__ = [
    "BatchWindow",
    "DealtWindow",
    "check_marks",
    "hot_counts",
    "hot_places",
    "mixed",
    "most_hot",
    "share_to_come",
]


Bools: TypeAlias = npt.NDArray[np.bool_]
I64: TypeAlias = npt.NDArray[np.int64]

WINDOWS = 200
"""Windows that are drawn to forecast hot batches."""


class BatchWindow:
    """Batches that follow each other in a loader, between its states `start` and `end`."""

    def __init__(
        self,
        batches: Sequence[Any],
        *,
        start: dict[str, Any] | None,
        end: dict[str, Any] | None,
        own: OwnBatches,
    ) -> None:
        """A loader may have no states."""
        self.start, self.end = start, end
        self._own = own
        self._features = list(zip(*(_sparse_features(one, own) for one in batches), strict=True))
        """For each KJT that a batch holds, those of all batches."""
        self.dealt: DealtWindow | None = None
        self.version: str | None = None
        """The version of the tier plan by which `hot` marks samples."""
        self._batches = batches
        self._sizes = [features.stride() for features in self._features[0]]
        self.hot: Bools = np.zeros(sum(self._sizes), np.bool_)
        """[N]: which samples look up replicated rows alone."""

    def __len__(self) -> int:
        return len(self._batches)

    @property
    def most_hot(self) -> int:
        """The hot batches that this rank can form."""
        return most_hot(int(self.hot.sum()), self._sizes)

    def classify(self, rows: HotRows) -> None:
        """Find the hot samples by a tier plan: those that are hot in each KJT of their batch; an
        error where no batch can be marked as hot, before the first one is."""
        self.version = rows.version
        if rows.any and self._own.select is None:
            check_marks(self._batches[0], self._own, rows.version)
        by_kjt = (self._hot_samples(rows, kjt) for kjt in range(len(self._features)))
        self.hot = reduce(np.logical_and, by_kjt)
        if self._changes_places(self.most_hot) and self._own.select is None:
            _ = self._samples  # join them now, where there is time for it

    def _hot_samples(self, rows: HotRows, kjt: int) -> Bools:
        """[N]: which samples have only hot ids in one of the KJTs that a batch holds."""
        features, joined = self._features[kjt], self._joined[kjt]
        if joined is None:
            return np.concatenate([rows.samples(of_batch) for of_batch in features])
        return rows.samples_of_all(joined, features)

    def _changes_places(self, num_hot: int) -> bool:
        """Whether samples change places for so many hot batches: none do where all batches are hot,
        or none is."""
        return 0 < num_hot < len(self)

    def deal(self, num_hot: int) -> None:
        """Deal the samples out to so many hot batches, and normal ones."""
        self.dealt = DealtWindow(
            hot=self.hot, num_hot=num_hot, num_batches=len(self), version=self.version
        )

    def deal_again(self, dealt: DealtWindow) -> None:
        """Deal the samples out as before, after its batches were read again."""
        if (len(self), len(self.hot)) != (dealt.num_batches, len(dealt.hot)):
            raise DataError(
                f"the reader's state is within a window of {so_many(dealt.num_batches, 'batch')} "
                f"of {len(dealt.hot)} samples, but the loader yields {len(self)} of "
                f"{len(self.hot)} there: the table or the batch size changed. Start afresh."
            )
        self.hot, self.version, self.dealt = dealt.hot, dealt.version, dealt

    def is_hot(self, index: int) -> bool:
        return self._places[index]

    def batch(self, index: int) -> Any:
        """One of the new batches."""
        assert self.dealt is not None
        hot_under = self.version if self.is_hot(index) else None
        if not self._changes_places(self.dealt.num_hot):
            return _marked_as(self._batches[index], hot_under, self._own)
        if self._own.select is not None:
            batch = self._own.select(self._batches, torch.from_numpy(self._rows[index]))
            self._check(batch, index)
        else:
            batch = self._samples.batch(self._rows[index])
        return _marked_as(batch, hot_under, self._own)

    def _check(self, batch: Any, index: int) -> None:
        size = _sparse_features(batch, self._own)[0].stride()
        if size != len(self._rows[index]):
            raise DataError(
                f"select: made a batch of {so_many(size, 'sample')}, but was asked for "
                f"{len(self._rows[index])}: places of samples are counted over all batches."
            )

    @cached_property
    def _places(self) -> list[bool]:
        assert self.dealt is not None
        return hot_places(len(self), self.dealt.num_hot)

    @cached_property
    def _rows(self) -> list[I64]:
        """The samples of each batch."""
        assert self.dealt is not None
        return mixed(self.hot, self._sizes, self.dealt.num_hot)

    @cached_property
    def _samples(self) -> WindowSamples:
        joined = [one for one in self._joined if one is not None]
        return WindowSamples(self._batches, self._sizes, joined)

    @cached_property
    def _joined(self) -> list[JoinedFeatures | None]:
        """For each KJT that a batch holds, the plain features of all batches, where these join."""
        plain = [[one.plain for one in features] for features in self._features]
        return [JoinedFeatures(kjts) if JoinedFeatures.alike(kjts) else None for kjts in plain]


@dataclass(frozen=True, kw_only=True)
class DealtWindow:
    """How a window was dealt out: all that it takes to do so again, even when the plan has
    changed."""

    hot: Bools
    """[N]: which of its samples were hot."""
    num_hot: int
    """The number of its batches that are hot."""
    num_batches: int
    version: str | None
    """The version of the tier plan that it was dealt out by; None before the first."""

    def to_state(self) -> dict[str, Any]:
        return {
            "batches": self.num_batches,
            "hot_batches": self.num_hot,
            "plan": self.version,
            "samples": len(self.hot),
            "hot": np.packbits(self.hot).tobytes().hex(),
        }

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> DealtWindow:
        bits = np.frombuffer(bytes.fromhex(state["hot"]), np.uint8)
        return cls(
            hot=np.unpackbits(bits, count=state["samples"]).view(np.bool_),
            num_hot=state["hot_batches"],
            num_batches=state["batches"],
            version=state["plan"],
        )


def _sparse_features(batch: Any, own: OwnBatches) -> tuple[SparseFeatures, ...]:
    """The sparse features of each KJT of a batch, of the same samples, on the CPU."""
    every: tuple[SparseFeatures, ...]
    try:
        if isinstance(batch, Batch):
            every = (SparseFeatures.of(batch.features, batch.dedup),)
        else:
            every = tuple(map(SparseFeatures.of, all_features_of(batch, own.features)))
    except CapabilityError as error:
        raise CapabilityError(f"{error} Or set cache.hot_batches to false.") from None
    for features in every:
        _check_takes_apart(features)
    sizes = [features.stride() for features in every]
    if len(set(sizes)) > 1:
        raise DataError(
            f"features: the KeyedJaggedTensors of a batch have {sizes} samples, so it is unknown "
            "which belong together. Name only those that have the same number."
        )
    return every


def _check_takes_apart(features: SparseFeatures) -> None:
    """Refuse what no samples can be taken from."""
    if features.device().type != "cpu":
        raise CapabilityError(
            f"cache.hot_batches: batches lie on {features.device()}, but their samples are put "
            "into batches on the CPU. Order the loader before its batches are moved, or set "
            "hot_batches to false."
        )
    if features.plain.variable_stride_per_key():
        raise CapabilityError(
            "cache.hot_batches: keys of a batch differ in their number of samples (variable "
            "stride, VBE), so that no sample can move to another batch. Set hot_batches to false."
        )


def check_marks(batch: Any, own: OwnBatches, hot_under: str = "any plan") -> None:
    """`DataError` where the batch could not be marked as hot, as where `features` makes a KJT that
    the batch does not hold."""
    try:
        _marked_as(batch, hot_under, own)
    except DataError as error:
        raise DataError(f"{error} Or set `cache.hot_batches: false`.") from None


def _marked_as(batch: Any, hot_under: str | None, own: OwnBatches) -> Any:
    """The batch as a hot one, or as a normal one."""
    if isinstance(batch, Batch):
        if batch.hot_under == hot_under:
            return batch
        return dataclasses.replace(batch, hot_under=hot_under)
    for features in all_features_of(batch, own.features):
        batch = marked_batch(batch, features, hot_under)
    return batch


def most_hot(num_hot: int, sizes: Sequence[int]) -> int:
    """The number of batches of a window that `num_hot` samples surely fill, whichever of these
    `sizes` they have."""
    largest = np.sort(np.asarray(sizes, np.int64))[::-1].cumsum()
    return int(np.searchsorted(largest, num_hot, side="right"))


def hot_counts(batches: Sequence[Batch], rows: HotRows) -> list[int]:
    """The number of hot samples of each batch."""
    own = OwnBatches()
    every = (_sparse_features(batch, own) for batch in batches)
    return [int(rows.samples(features).sum()) for (features,) in every]


def share_to_come(hot: Sequence[int], sizes: Sequence[int], window: int, world_size: int) -> float:
    """The forecast share of hot batches, from batches of these sizes that have so many hot samples.

    Windows of `window` batches are drawn from them for every rank; each forms as many hot ones as
    the rank with the fewest hot samples fills.
    """
    drawn = np.random.default_rng(0).integers(len(hot), size=(WINDOWS, world_size, window))
    counts, each = np.asarray(hot)[drawn].sum(axis=2).min(axis=1), np.asarray(sizes).max()
    return float(np.mean(np.minimum(counts // each, window)) / window)


def hot_places(count: int, num_hot: int) -> list[bool]:
    """The batches of a window that are hot: `num_hot` of them, spread evenly."""
    ends = [place * num_hot // count for place in range(count + 1)]
    return [ends[place + 1] > ends[place] for place in range(count)]


def mixed(hot: Bools, sizes: Sequence[int], num_hot: int) -> list[I64]:
    """The samples of each batch [size], ascending, every sample of the window [N] in one.

    `num_hot` batches, at `hot_places`, take hot samples alone, in their order; the others take
    what is left, hot ones among it, in the window's order. `num_hot` is at most `most_hot`.
    """
    places = hot_places(len(sizes), num_hot)
    taken = sum(size for size, place in zip(sizes, places, strict=True) if place)
    chosen = np.flatnonzero(hot)[:taken]
    left = np.ones(len(hot), np.bool_)
    left[chosen] = False
    sources = {True: chosen, False: np.flatnonzero(left)}
    at = {True: 0, False: 0}
    batches = []
    for size, place in zip(sizes, places, strict=True):
        batches.append(sources[place][at[place] : at[place] + size])
        at[place] += size
    return batches

"""Transforms that make a new feature: n-grams, crosses, intersections, unions, places."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from recd_dsi.transforms.lists import lengths_kept, places_in_rows
from recd_dsi.transforms.mixing import fold, key_of, mix
from recd_dsi.transforms.row_sets import in_others, intersected, united
from recd_plugins.api import Config, Context, Range, RegistryError
from recd_plugins.api.data import Schema, SparseFeature
from recd_plugins.api.rows import kernel, spread_rows, with_feature

if TYPE_CHECKING:
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

__all__ = [
    "Cartesian",
    "CartesianConfig",
    "Enumerate",
    "EnumerateConfig",
    "Intersection",
    "NGram",
    "NGramConfig",
    "PairConfig",
    "Union",
    "build_cartesian",
    "build_enumerate",
    "build_intersection",
    "build_n_gram",
    "build_union",
]

I64 = npt.NDArray[np.int64]
Arrays = tuple[I64, I64]
"""The ids and lengths of a feature's rows, for compiled loops."""


class Rows(NamedTuple):
    """B rows of a feature."""

    ids: Tensor
    """[lengths.sum()] int64."""
    lengths: Tensor
    """[B] int64."""
    weights: Tensor | None = None
    """[lengths.sum()]."""

    @classmethod
    def of(cls, features: KeyedJaggedTensor, name: str) -> Rows:
        # Slices, because `features[name]` would also compute every row's offset.
        place, stride = features.keys().index(name), features.stride()
        first, last = features.offset_per_key()[place : place + 2]
        weights = features.weights_or_none()
        return cls(
            features.values()[first:last].long(),
            features.lengths()[place * stride : (place + 1) * stride].long(),
            None if weights is None else weights[first:last],
        )

    @classmethod
    def of_arrays(cls, ids: I64, lengths: I64) -> Rows:
        return cls(torch.from_numpy(ids), torch.from_numpy(lengths))

    def arrays(self) -> Arrays:
        """The ids and lengths, for compiled loops."""
        return self.ids.contiguous().numpy(), self.lengths.contiguous().numpy()

    @property
    def begins(self) -> Tensor:
        """[B]: where each row begins."""
        return self.lengths.cumsum(0) - self.lengths


def _arrays(features: KeyedJaggedTensor, names: Sequence[str]) -> Iterator[Arrays]:
    """`Rows.of(...).arrays()` of some features on CPU, without tensors in between: making these
    would take longer than the work on a small batch's ids."""
    ids, lengths = features.values().numpy(), features.lengths().numpy()
    keys, ends, stride = features.keys(), features.offset_per_key(), features.stride()
    for place in map(keys.index, names):
        yield (
            np.ascontiguousarray(ids[ends[place] : ends[place + 1]], np.int64),
            np.ascontiguousarray(lengths[place * stride : (place + 1) * stride], np.int64),
        )


@dataclass(frozen=True, kw_only=True)
class NewFeatureConfig(Config):
    """The feature that is made, and what becomes of those that it is made of."""

    into: str
    """The name of the new feature."""
    keep: bool = True
    """Whether the features from which it is made stay."""
    sequence: bool = False
    """Whether the order of its ids has a meaning."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.into.strip():
            raise RegistryError("is empty, but must be a name. Write one.", "into")


class NewFeature(nn.Module, ABC):
    """Features by name -> the same features, followed by a new one; or only the new one."""

    def __init__(self, takes: tuple[str, ...], config: NewFeatureConfig) -> None:
        super().__init__()
        self.takes = takes
        self.config = config

    @property
    def adds(self) -> str | None:
        """The feature that is added to those that it takes; None if these are removed."""
        return self.config.into if self.config.keep else None

    @abstractmethod
    def made(self, features: KeyedJaggedTensor) -> Rows:
        """The rows of the new feature, made from the features `takes` among others."""

    @abstractmethod
    def num_ids(self, sources: tuple[SparseFeature, ...]) -> int:
        """The number of ids of the new feature."""

    def scored(self, sources: tuple[SparseFeature, ...]) -> bool:
        """Whether the new feature's ids have weights."""
        return False

    def forward(self, features: KeyedJaggedTensor) -> KeyedJaggedTensor:
        made = self.made(features)
        if self.config.keep:
            return with_feature(features, self.config.into, *made)
        weights = made.weights
        if weights is None and (held := features.weights_or_none()) is not None:
            weights = held.new_ones(len(made.ids))
        return type(features)(
            keys=[self.config.into],
            values=made.ids,
            lengths=made.lengths.to(features.lengths().dtype),
            weights=weights,
            stride=features.stride(),
        )

    def schema(self, schema: Schema) -> Schema:
        sources = tuple(schema.feature(name) for name in self.takes)
        made = SparseFeature(
            name=self.config.into,
            num_ids=self.num_ids(sources),
            kind="user" if all(one.kind == "user" for one in sources) else "item",
            sequence=self.config.sequence,
            scored=self.scored(sources),
        )
        return (schema if self.config.keep else schema.drop(self.takes)).add([made])

    def extra_repr(self) -> str:
        return f"{', '.join(self.takes)} -> {self.config.into}"


@dataclass(frozen=True, kw_only=True)
class NGramConfig(NewFeatureConfig):
    """The features that grams are made of, and how long these are."""

    of: tuple[str, ...]
    """The features whose rows are joined, in this order, and cut into n-grams."""
    n: Annotated[int, Range(ge=1, le=64)] = 2
    """The number of ids of an n-gram."""
    modulo: Annotated[int, Range(ge=1, le=2**62)]
    """The number of ids that come out, which are in [0, modulo)."""
    salt: Annotated[int, Range(ge=0, le=2**62)] = 0
    """A number that changes the hash."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.of or len(set(self.of)) < len(self.of):
            raise RegistryError("must name at least one feature, and none twice.", "of")


class NGram(NewFeature):
    """Row [x_1, ..., x_k], of several features joined, -> k - n + 1 ids, or none if k < n.

    Id i is h mod modulo, where h = fmix64(salt) and, for each x of x_i, ..., x_(i+n-1),
    h = fmix64(h ^ x); h is read as a signed number.
    """

    def __init__(self, config: NGramConfig) -> None:
        super().__init__(config.of, config)
        self.n, self.modulo, self._key = config.n, config.modulo, key_of(config.salt)

    def made(self, features: KeyedJaggedTensor) -> Rows:
        if features.values().is_cpu and len(self.takes) == 1:
            return self._by_kernel(*_arrays(features, self.takes))
        rows = _side_by_side([Rows.of(features, name) for name in self.takes])
        if rows.ids.is_cpu:
            return self._by_kernel(rows.arrays())
        counts = (rows.lengths - (self.n - 1)).clamp_(min=0)
        return Rows(self._by_torch(rows, counts), counts)

    def _by_kernel(self, arrays: Arrays) -> Rows:
        made, counts = np.empty_like(arrays[0]), np.empty_like(arrays[1])
        key, modulo = np.int64(self._key), np.int64(self.modulo)
        return Rows.of_arrays(made[: _n_grams(*arrays, self.n, key, modulo, made, counts)], counts)

    def _by_torch(self, rows: Rows, counts: Tensor) -> Tensor:
        first = torch.repeat_interleave(rows.begins - (counts.cumsum(0) - counts), counts)
        first += torch.arange(len(first), device=first.device)
        columns = [rows.ids[first + i] if i else rows.ids[first] for i in range(self.n)]
        return fold(columns, self._key, self.modulo)

    def num_ids(self, sources: tuple[SparseFeature, ...]) -> int:
        return self.modulo


@kernel
def _n_grams(
    ids: I64, lengths: I64, n: int, key: np.int64, modulo: np.int64, out: I64, counts: I64
) -> int:
    """Write the grams row by row. Returns their number."""
    begin = made = 0
    for row in range(len(lengths)):
        before = made
        for first in range(begin, begin + lengths[row] - n + 1):
            h = np.uint64(key)
            for i in range(first, first + n):
                h = mix(h ^ np.uint64(ids[i]))
            out[made] = np.int64(h) % modulo
            made += 1
        counts[row] = made - before
        begin += lengths[row]
    return made


def _side_by_side(parts: list[Rows]) -> Rows:
    """For each row, the ids of the first part, followed by those of the next parts."""
    if len(parts) == 1:
        return parts[0]
    ids, lengths = torch.cat([part.ids for part in parts]), [part.lengths for part in parts]
    shift, starts = 0, []
    for part in parts:
        starts.append(part.begins + shift)
        shift += len(part.ids)
    by_row = torch.stack(lengths, dim=1)
    joined = spread_rows(ids, torch.stack(starts, dim=1).view(-1), by_row.view(-1))
    return Rows(joined, by_row.sum(1))


def build_n_gram(config: NGramConfig, context: Context) -> NGram:
    """The record's build."""
    return NGram(config)


@dataclass(frozen=True, kw_only=True)
class PairConfig(NewFeatureConfig):
    """The two features that one is made of."""

    left: str
    """The first of the two features."""
    right: str
    """The second of the two features."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.left == self.right:
            raise RegistryError(f"must be another feature than left ({self.left}).", "right")


@dataclass(frozen=True, kw_only=True)
class CartesianConfig(PairConfig):
    """The two features that one is made of, and how many ids come out."""

    modulo: Annotated[int, Range(ge=1, le=2**62)]
    """The number of ids that come out, which are in [0, modulo)."""
    salt: Annotated[int, Range(ge=0, le=2**62)] = 0
    """A number that changes the hash."""


class Cartesian(NewFeature):
    """Rows [a_1, ..., a_k] and [b_1, ..., b_m] -> an id for each of the k m pairs, b fastest.

    The id of (a, b) is fmix64(fmix64(a ^ fmix64(salt)) ^ b), read as a signed number, mod modulo.
    """

    def __init__(self, config: CartesianConfig) -> None:
        super().__init__((config.left, config.right), config)
        self.modulo, self._key = config.modulo, key_of(config.salt)

    def made(self, features: KeyedJaggedTensor) -> Rows:
        if features.values().is_cpu:
            a, b = _arrays(features, self.takes)
            counts = a[1] * b[1]
            made = np.empty(counts.sum(), np.int64)
            key, modulo = np.int64(self._key), np.int64(self.modulo)
            _pairs(*a, *b, key, modulo, made)
            return Rows.of_arrays(made, counts)
        left, right = (Rows.of(features, name) for name in self.takes)
        return Rows(self._by_torch(left, right), left.lengths * right.lengths)

    def _by_torch(self, left: Rows, right: Rows) -> Tensor:
        partners = torch.repeat_interleave(right.lengths, left.lengths)  # of each left id
        first = torch.repeat_interleave(right.begins, left.lengths)
        lefts = torch.repeat_interleave(left.ids, partners)
        rights = spread_rows(right.ids, first, partners)
        return fold([lefts, rights], self._key, self.modulo)

    def num_ids(self, sources: tuple[SparseFeature, ...]) -> int:
        return self.modulo


@kernel
def _pairs(
    left: I64,
    left_lengths: I64,
    right: I64,
    right_lengths: I64,
    key: np.int64,
    modulo: np.int64,
    out: I64,
) -> None:
    at = begin = made = 0
    for row in range(len(left_lengths)):
        for i in range(at, at + left_lengths[row]):
            h = mix(np.uint64(key) ^ np.uint64(left[i]))
            for j in range(begin, begin + right_lengths[row]):
                out[made] = np.int64(mix(h ^ np.uint64(right[j]))) % modulo
                made += 1
        at += left_lengths[row]
        begin += right_lengths[row]


def build_cartesian(config: CartesianConfig, context: Context) -> Cartesian:
    """The record's build."""
    return Cartesian(config)


class Intersection(NewFeature):
    """Rows a and b -> the ids of a that b also has, in the order of a, with their weights."""

    def __init__(self, config: PairConfig) -> None:
        super().__init__((config.left, config.right), config)

    def made(self, features: KeyedJaggedTensor) -> Rows:
        if features.values().is_cpu and features.weights_or_none() is None:
            a, b = _arrays(features, self.takes)
            made, lengths = np.empty_like(a[0]), np.empty_like(a[1])
            return Rows.of_arrays(made[: intersected(*a, *b, made, lengths)], lengths)
        left, right = (Rows.of(features, name) for name in self.takes)
        return _kept(left, in_rows(left, right))

    def num_ids(self, sources: tuple[SparseFeature, ...]) -> int:
        return min(one.num_ids for one in sources)

    def scored(self, sources: tuple[SparseFeature, ...]) -> bool:
        return sources[0].scored


def build_intersection(config: PairConfig, context: Context) -> Intersection:
    """The record's build."""
    return Intersection(config)


class Union(NewFeature):
    """Rows a and b -> a, then the ids of b that a lacks, in the order of b, with their weights."""

    def __init__(self, config: PairConfig) -> None:
        super().__init__((config.left, config.right), config)

    def made(self, features: KeyedJaggedTensor) -> Rows:
        if features.values().is_cpu and features.weights_or_none() is None:
            a, b = _arrays(features, self.takes)
            made, lengths = np.empty(len(a[0]) + len(b[0]), np.int64), np.empty_like(a[1])
            return Rows.of_arrays(made[: united(*a, *b, made, lengths)], lengths)
        left, right = (Rows.of(features, name) for name in self.takes)
        more = _kept(right, ~in_rows(right, left))
        joined = _side_by_side([left, more])
        if left.weights is None or more.weights is None:
            return joined
        weights = _side_by_side(
            [Rows(part.weights, part.lengths) for part in (left, more) if part.weights is not None]
        )
        return Rows(joined.ids, joined.lengths, weights.ids)

    def num_ids(self, sources: tuple[SparseFeature, ...]) -> int:
        return max(one.num_ids for one in sources)

    def scored(self, sources: tuple[SparseFeature, ...]) -> bool:
        return any(one.scored for one in sources)


def build_union(config: PairConfig, context: Context) -> Union:
    """The record's build."""
    return Union(config)


def _kept(rows: Rows, kept: Tensor) -> Rows:
    """The rows, with only the ids that `kept` [lengths.sum()] marks."""
    weights = None if rows.weights is None else rows.weights[kept]
    return Rows(rows.ids[kept], lengths_kept(rows.lengths, kept), weights)


def in_rows(rows: Rows, others: Rows) -> Tensor:
    """[rows.lengths.sum()] bool: whether each id is in the row of `others` for the same sample."""
    if not rows.ids.is_cpu:
        return in_rows_by_torch(rows, others)
    found = torch.empty(len(rows.ids), dtype=torch.bool, device="cpu")
    in_others(*rows.arrays(), *others.arrays(), found.numpy())
    return found


def in_rows_by_torch(rows: Rows, others: Rows) -> Tensor:
    """`in_rows` on any device."""
    number = torch.arange(len(rows.lengths), device=rows.ids.device)
    both = torch.cat((rows.ids, others.ids))
    _, codes = torch.unique(both, return_inverse=True)
    row = torch.cat([torch.repeat_interleave(number, each.lengths) for each in (rows, others)])
    pairs = row * max(len(both), 1) + codes
    return torch.isin(pairs[: len(rows.ids)], pairs[len(rows.ids) :])


@dataclass(frozen=True, kw_only=True)
class EnumerateConfig(NewFeatureConfig):
    """The feature that is enumerated, and how far it counts."""

    of: str
    """The feature whose ids are counted."""
    longest: Annotated[int, Range(ge=1, le=2**31 - 1)]
    """The number of places that come out, which are in [0, longest). Ids that are further on get
    the last place."""


class Enumerate(NewFeature):
    """Row [x_0, ..., x_k] -> [0, ..., k], each at most longest - 1: the place of each id."""

    def __init__(self, config: EnumerateConfig) -> None:
        super().__init__((config.of,), config)
        self.longest = config.longest

    def made(self, features: KeyedJaggedTensor) -> Rows:
        if features.values().is_cpu:
            ((ids, lengths),) = _arrays(features, self.takes)
            made = np.empty(len(ids), np.int64)
            _count_up(lengths, self.longest, made)
            return Rows.of_arrays(made, lengths)
        rows = Rows.of(features, self.takes[0])
        return Rows(places_in_rows(rows.lengths).clamp_(max=self.longest - 1), rows.lengths)

    def num_ids(self, sources: tuple[SparseFeature, ...]) -> int:
        return self.longest


@kernel
def _count_up(lengths: I64, longest: int, out: I64) -> None:
    at = 0
    for row in range(len(lengths)):
        for place in range(lengths[row]):
            out[at + place] = min(place, longest - 1)
        at += lengths[row]


def build_enumerate(config: EnumerateConfig, context: Context) -> Enumerate:
    """The record's build."""
    return Enumerate(config)

"""Partial IKJT: samples whose rows are equal or shifted share their values.

Paper: no offsets; each row is [offset, length] into shared values. b = [3,4,5], [4,5,6],
[3,4,5] becomes values [3,4,5,6] and rows [0,3], [1,3], [0,3].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
from torchrec.streamable import Pipelineable

from recd_plugins.errors import DataError, nearest
from recd_plugins.sparse.shared_rows import SharedRows, Symbols
from recd_plugins.sparse.unique import group_codes, unique_rows

__all__ = ["PartialInverseKeyedJaggedTensor"]

Groups = tuple[tuple[str, ...], ...]


@dataclass(frozen=True, eq=False)
class PartialInverseKeyedJaggedTensor(Pipelineable):
    """B samples of features in G groups; a group's features share one inverse lookup.

    [offset, length] are kept per unique sample, behind the inverse lookup: B + 2U numbers
    where the paper's form (`rows`) takes 2B, and unique samples can still be pooled alone.
    """

    kjt: KeyedJaggedTensor
    """One row per key: its K shared values, and their weights where ids are weighted. A plain
    attribute, so that TorchRec's pipeline can follow it from the batch."""
    groups: Groups
    """The keys of `kjt`, each in one group."""
    spans: Tensor
    """[R, 2] int64: [offset, length] among its key's shared values of every unique sample of
    the key's group, one key after another."""
    inverse_lookup: Tensor
    """[G, B] int64: which of the group's unique samples each sample is."""
    unique_counts: tuple[int, ...]
    """The unique samples of each group."""

    @classmethod
    def from_kjt(
        cls, features: KeyedJaggedTensor, groups: Sequence[Sequence[str]] | None = None
    ) -> PartialInverseKeyedJaggedTensor:
        """Deduplicate; `groups` name every key once, by default each key is one.

        Samples of a group are one where all its features agree; then each feature's unique
        rows are laid over their neighbours. A weight is part of its id: both must agree, bit
        by bit. This runs on the CPU; what lies on another device goes there and back.
        """
        if features.variable_stride_per_key():
            raise DataError(
                "a partial IKJT holds the same samples under every key, but this KJT has a "
                "stride per key. Expand it to the batch first."
            )
        keys = features.keys()
        named = tuple(tuple(group) for group in groups or [[key] for key in keys])
        _check_groups(named, keys)
        if features.device().type != "cpu":
            return cls.from_kjt(features.to(torch.device("cpu")), named).to(features.device())
        symbols = dict(zip(keys, _symbols(features), strict=True))
        codes = {key: unique_rows(one.values, one.offsets) for key, one in symbols.items()}
        shared, lookups = {}, []
        for group in named:
            unique = codes[group[0]]
            if len(group) > 1:
                unique = group_codes([codes[key].inverse_lookup for key in group])
            lookups.append(unique.inverse_lookup)
            for key in group:
                rows = symbols[key].share(codes[key].firsts)
                which = codes[key].inverse_lookup[unique.firsts]
                shared[key] = rows._replace(spans=rows.spans[which])
        counts = tuple(len(shared[group[0]].spans) for group in named)
        lookup = _stack(lookups, features.stride())
        return _assembled(features, {key: shared[key] for key in keys}, named, lookup, counts)

    def to_kjt(self) -> KeyedJaggedTensor:
        """Every sample's rows in full: what `from_kjt` was given."""
        rows = self._rows()
        lengths = rows[:, :, 1].reshape(-1)
        starts = (rows[:, :, 0] + self.kjt.offsets()[:-1, None]).view(-1)
        # Value n of the result lies as far behind its row's start as n behind its row's begin.
        moves = starts - (lengths.cumsum(0) - lengths)
        where = torch.repeat_interleave(moves, lengths)
        where += torch.arange(where.numel(), device=where.device)
        weights = self.kjt.weights_or_none()
        return KeyedJaggedTensor(
            keys=self.keys(),
            values=self.kjt.values()[where],
            weights=None if weights is None else weights[where],
            lengths=lengths.to(self.kjt.lengths().dtype),
            stride=len(self),
        )

    def __len__(self) -> int:
        return self.inverse_lookup.size(1)

    def keys(self) -> list[str]:
        keys: list[str] = self.kjt.keys()
        return keys

    def rows(self, key: str) -> Tensor:
        """[B, 2]: each sample's [offset, length] in `shared_values(key)`, as the paper has it."""
        return self._rows()[self._index(key)]

    def shared_values(self, key: str) -> Tensor:
        """[K] the values that the key's rows share."""
        return self._shared()[self._index(key)].values

    def values_kept(self) -> int:
        """Values held, over all keys."""
        return int(self.kjt.values().numel())

    def dedupe_factor(self) -> float:
        """Values of the KJT over values kept; 1 where it has none."""
        kept = self.values_kept()
        return float(self._rows()[:, :, 1].sum()) / kept if kept else 1.0

    def select(self, samples: Tensor) -> PartialInverseKeyedJaggedTensor:
        """Samples [N] in this order, repeats included; values that none of them needs go."""
        found = [torch.unique(one[samples], return_inverse=True) for one in self.inverse_lookup]
        shared = {
            key: rows.select(found[group][0])
            for key, rows, group in zip(self.keys(), self._shared(), self._group_of(), strict=True)
        }
        lookup = _stack([lookup for _, lookup in found], samples.numel())
        counts = tuple(len(unique) for unique, _ in found)
        return _assembled(self.kjt, shared, self.groups, lookup, counts)

    @staticmethod
    def concat(
        parts: Sequence[PartialInverseKeyedJaggedTensor],
    ) -> PartialInverseKeyedJaggedTensor:
        """The samples of all parts, one part after another; nothing is shared across parts."""
        first = parts[0]
        for part in parts[1:]:
            if (part.keys(), part.groups) != (first.keys(), first.groups):
                raise DataError(
                    f"partial IKJTs in groups {first.groups} and {part.groups} do not join: "
                    "convert them with the same groups, the keys in the same order."
                )
        columns = zip(*(part._shared() for part in parts), strict=True)
        shared = {
            key: SharedRows.concat(rows) for key, rows in zip(first.keys(), columns, strict=True)
        }
        lookups, done = [], [0] * len(first.groups)
        for part in parts:
            lookups.append(part.inverse_lookup + part.inverse_lookup.new_tensor(done)[:, None])
            done = [one + more for one, more in zip(done, part.unique_counts, strict=True)]
        return _assembled(first.kjt, shared, first.groups, torch.cat(lookups, 1), tuple(done))

    def validate(self) -> PartialInverseKeyedJaggedTensor:
        """Itself, if every row lies within its key's shared values; else `DataError`."""
        _check_groups(self.groups, self.keys())
        shape, counts = self.inverse_lookup.shape, self.unique_counts
        if self.kjt.stride() != 1:
            raise _broken(f"`kjt` has {self.kjt.stride()} rows per key, not 1")
        if len(counts) != len(self.groups) or any(count < 0 for count in counts):
            raise _broken(f"unique counts {counts} are not one for each of {self.groups}")
        if len(shape) != 2 or shape[0] != len(counts):
            raise _broken(f"`inverse_lookup` is {list(shape)}, not [{len(counts)}, B]")
        num_rows = sum(counts[group] for group in self._group_of())
        if self.spans.shape != (num_rows, 2):
            raise _broken(
                f"`spans` is {list(self.spans.shape)}, but the unique counts make [{num_rows}, 2]"
            )
        for group, lookup, count in zip(self.groups, self.inverse_lookup, counts, strict=True):
            outside = lookup[(lookup < 0) | (lookup >= count)]
            if outside.numel():
                raise _broken(
                    f"the inverse lookup of {', '.join(group)} points to unique sample "
                    f"{int(outside[0])} of {count}"
                )
        for key, (values, _, spans) in zip(self.keys(), self._shared(), strict=True):
            outside = spans[(spans < 0).any(1) | (spans[:, 0] > values.numel() - spans[:, 1])]
            if outside.numel():
                raise _broken(
                    f"a row [offset, length] of {key!r} is {outside[0].tolist()}, beyond its "
                    f"{values.numel()} shared values"
                )
        return self

    def to(
        self, device: torch.device, non_blocking: bool = False
    ) -> PartialInverseKeyedJaggedTensor:
        return self._with(
            self.kjt.to(device, non_blocking=non_blocking),
            self.spans.to(device, non_blocking=non_blocking),
            self.inverse_lookup.to(device, non_blocking=non_blocking),
        )

    def pin_memory(self) -> PartialInverseKeyedJaggedTensor:
        return self._with(
            self.kjt.pin_memory(), self.spans.pin_memory(), self.inverse_lookup.pin_memory()
        )

    def record_stream(self, stream: torch.Stream) -> None:
        for part in (self.kjt, self.spans, self.inverse_lookup):
            part.record_stream(stream)

    def _with(
        self, kjt: KeyedJaggedTensor, spans: Tensor, inverse_lookup: Tensor
    ) -> PartialInverseKeyedJaggedTensor:
        return PartialInverseKeyedJaggedTensor(
            kjt, self.groups, spans, inverse_lookup, self.unique_counts
        )

    def _index(self, key: str) -> int:
        if key not in self.keys():
            raise DataError(f"no feature {key!r}; {nearest(key, self.keys())}")
        return self.keys().index(key)

    def _group_of(self) -> list[int]:
        """Per key the index of its group."""
        group_of = {key: index for index, group in enumerate(self.groups) for key in group}
        return [group_of[key] for key in self.keys()]

    def _shared(self) -> list[SharedRows]:
        """Each key's unique rows."""
        sizes = self.kjt.lengths().tolist()
        values, weights = self.kjt.values().split(sizes), self.kjt.weights_or_none()
        spans = self.spans.split([self.unique_counts[group] for group in self._group_of()])
        weighted = [None] * len(sizes) if weights is None else weights.split(sizes)
        return [SharedRows(*parts) for parts in zip(values, weighted, spans, strict=True)]

    def _rows(self) -> Tensor:
        """[n_keys, B, 2]: each sample's [offset, length]."""
        group_of = self._group_of()
        sizes = [self.unique_counts[group] for group in group_of]
        index = torch.tensor([group_of, [*accumulate(sizes, initial=0)][:-1]], dtype=torch.int64)
        groups, firsts = index.to(self.spans.device)
        return self.spans[self.inverse_lookup[groups] + firsts[:, None]]


def _assembled(
    like: KeyedJaggedTensor,
    shared: Mapping[str, SharedRows],
    groups: Groups,
    inverse_lookup: Tensor,
    counts: tuple[int, ...],
) -> PartialInverseKeyedJaggedTensor:
    """In the dtypes of `like`, which also stands in where there are no keys."""
    parts = list(shared.values())
    weights = [part.weights for part in parts if part.weights is not None]
    sizes = [part.values.numel() for part in parts]
    return PartialInverseKeyedJaggedTensor(
        kjt=KeyedJaggedTensor(
            keys=list(shared),
            values=torch.cat([like.values()[:0], *(part.values for part in parts)]),
            weights=torch.cat(weights) if weights else like.weights_or_none(),
            lengths=like.lengths().new_tensor(sizes),
            stride=1,
        ),
        groups=groups,
        spans=torch.cat([inverse_lookup.new_empty(0, 2), *(part.spans for part in parts)]),
        inverse_lookup=inverse_lookup,
        unique_counts=counts,
    )


def _symbols(features: KeyedJaggedTensor) -> list[Symbols]:
    """Each key's rows; the offsets are those of the whole KJT, so its values need no cut."""
    symbols = Symbols.of(features.values(), features.weights_or_none(), features.offsets())
    stride = features.stride()
    firsts = (index * stride for index in range(len(features.keys())))
    return [
        symbols._replace(offsets=symbols.offsets[first : first + stride + 1]) for first in firsts
    ]


def _stack(lookups: Sequence[Tensor], num_samples: int) -> Tensor:
    return torch.stack(list(lookups)) if lookups else torch.empty(0, num_samples, dtype=torch.int64)


def _flatten(partial: PartialInverseKeyedJaggedTensor) -> tuple[list[Any], Any]:
    tensors = [partial.kjt, partial.spans, partial.inverse_lookup]
    return tensors, (partial.groups, partial.unique_counts)


def _unflatten(parts: Any, context: Any) -> PartialInverseKeyedJaggedTensor:
    (kjt, spans, inverse_lookup), (groups, unique_counts) = parts, context
    return PartialInverseKeyedJaggedTensor(kjt, groups, spans, inverse_lookup, unique_counts)


def _check_groups(groups: Groups, keys: Sequence[str]) -> None:
    named = [key for group in groups for key in group]
    for key in named:
        if key not in keys:
            raise DataError(f"group of {key!r}: no such feature; {nearest(key, keys)}")
        if named.count(key) > 1:
            raise DataError(f"feature {key!r} is in two groups: keep it in one of {groups}.")
    for key in keys:
        if key not in named:
            raise DataError(f"feature {key!r} is in no group of {groups}: add it to one.")


def _broken(what: str) -> DataError:
    return DataError(
        f"not a partial IKJT: {what}. Make them with from_kjt; if this one came from a file or "
        "a socket, its writer is of another version or it was damaged on the way."
    )


pytree.register_pytree_node(
    PartialInverseKeyedJaggedTensor,
    _flatten,
    _unflatten,
    serialized_type_name="recd_plugins.sparse.partial.PartialInverseKeyedJaggedTensor",
)

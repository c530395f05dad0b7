"""Partial IKJT: samples whose rows are equal or shifted share their values.

As in the paper, there are no offsets; each row is [offset, length] into shared values. b = [3,4,5],
[4,5,6], [3,4,5] becomes values [3,4,5,6] and rows [0,3], [1,3], [0,3].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import pyarrow as pa
import torch
from torch import Tensor
from torch.nn.functional import pad
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.errors import DataError, nearest, so_many
from recd_plugins.sparse import wire
from recd_plugins.sparse.deduplicated import DeduplicatedFeatures
from recd_plugins.sparse.groups import Groups, check_groups
from recd_plugins.sparse.ikjt import InverseKeyedJaggedTensor
from recd_plugins.sparse.rows.deduplicate import unique_each
from recd_plugins.sparse.rows.memory import numbers_on
from recd_plugins.sparse.rows.shared import SharedRows
from recd_plugins.sparse.rows.unique import group_codes

__all__ = ["PartialInverseKeyedJaggedTensor"]


@dataclass(frozen=True, eq=False)
class PartialInverseKeyedJaggedTensor(DeduplicatedFeatures):
    """B samples of features in G groups; a group's features share one inverse lookup.

    [offset, length] are kept per unique sample, which the inverse lookup points to: B + 2U numbers
    where the paper's form (`rows`) takes 2B, and unique samples can still be pooled by themselves.
    """

    shares_values = True

    kjt: KeyedJaggedTensor
    """One row per key, in the order of the groups: the key's K shared values, and their weights if
    ids have weights. A plain attribute, so that TorchRec's pipeline can follow it."""
    spans: Tensor
    """[R, 2] int64, key after key: for every unique sample of the key's group, [offset, length] in
    the key's shared values."""
    inverse_lookup: Tensor
    """[G, B] int64: which of the group's unique samples each sample is."""
    groups: Groups
    unique_counts: tuple[int, ...]
    """The number of unique samples of each group."""

    @classmethod
    def from_kjt(
        cls, features: KeyedJaggedTensor, groups: Sequence[Sequence[str]] | None = None
    ) -> PartialInverseKeyedJaggedTensor:
        """Deduplicate the keys that `groups` name; by default every key is a group.

        Samples are merged in a group if all its features match, weights included; then each
        feature's unique rows share values with their neighbours.
        """
        if features.variable_stride_per_key():
            raise DataError(
                "a partial IKJT holds the same samples under every key, but this KJT has a "
                "stride per key. Expand it to the batch first."
            )
        return cls.from_ikjt(InverseKeyedJaggedTensor.from_kjt(features, groups))

    @classmethod
    def from_ikjt(cls, ikjt: InverseKeyedJaggedTensor) -> PartialInverseKeyedJaggedTensor:
        """The same samples; each feature's unique rows share values with their neighbours.

        This runs on the CPU, as it does in readers: what lies elsewhere is copied there and back.
        """
        device = ikjt.inverse_lookup.device
        if device.type != "cpu":
            return cls.from_ikjt(ikjt.to(torch.device("cpu"))).to(device)
        shared, parts = {}, ikjt.parts()
        for group in ikjt.groups:
            features = [parts[key] for key in group]
            for key, feature, unique in zip(group, features, unique_each(features), strict=True):
                # Equal rows of a feature share their values, even if the group's samples differ.
                rows = SharedRows.of(feature, unique.firsts)
                shared[key] = rows._replace(spans=rows.spans[unique.inverse_lookup])
        return cls._of(ikjt.groups, shared, ikjt.inverse_lookup, ikjt.kjt.lengths().dtype)

    @classmethod
    def _of(
        cls,
        groups: Groups,
        shared: Mapping[str, SharedRows],
        inverse_lookup: Tensor,
        lengths: torch.dtype,
    ) -> PartialInverseKeyedJaggedTensor:
        """Make one from each key's unique rows, in the order of the groups; `lengths` is the type
        of the KJT's lengths."""
        rows = list(shared.values())
        weights = [one.weights for one in rows if one.weights is not None]
        sizes = [one.values.numel() for one in rows]
        return cls(
            kjt=KeyedJaggedTensor(
                keys=list(shared),
                values=torch.cat([one.values for one in rows]),
                lengths=numbers_on(inverse_lookup.device, sizes).to(lengths),
                weights=torch.cat(weights) if weights else None,
                stride=1,
                length_per_key=sizes,
            ),
            spans=torch.cat([one.spans for one in rows]),
            inverse_lookup=inverse_lookup,
            groups=groups,
            unique_counts=tuple(len(shared[group[0]].spans) for group in groups),
        )

    def parts(self) -> dict[str, SharedRows]:
        """Each key's unique rows over its shared values, as views."""
        sizes = self.kjt.length_per_key()
        values, weights = self.kjt.values().split(sizes), self.kjt.weights_or_none()
        weighted = [None] * len(sizes) if weights is None else weights.split(sizes)
        spans = self.spans.split([self.unique_counts[group] for group in self.group_of.values()])
        rows = zip(values, weighted, spans, strict=True)
        return {key: SharedRows(*one) for key, one in zip(self.kjt.keys(), rows, strict=True)}

    def to_kjt(self, keys: Sequence[str] | None = None) -> KeyedJaggedTensor:
        """All B samples of `keys`, in this order; by default all, in the order of the groups."""
        chosen = self.kjt.keys() if keys is None else list(keys)
        firsts = dict(zip(self.kjt.keys(), self.kjt.offset_per_key(), strict=False))
        spans = [
            rows + rows.new_tensor([firsts[key], 0])
            for key, rows in zip(chosen, self._rows(chosen), strict=True)
        ]
        every = SharedRows(self.kjt.values(), self.kjt.weights_or_none(), torch.cat(spans))
        rows = every.spread(self.kjt.lengths().dtype)
        return KeyedJaggedTensor(
            keys=chosen,
            values=rows.values,
            lengths=rows.lengths,
            weights=rows.weights,
            stride=self.batch_size,
        )

    def to_ikjt(self) -> InverseKeyedJaggedTensor:
        """The same unique samples, each with values of its own; nothing is compared. On CUDA this
        waits once, for the number of each key's values."""
        dtype = self.kjt.lengths().dtype
        counts = [self.unique_counts[group] for group in self.group_of.values()]
        ends = numbers_on(self.spans.device, [0, *accumulate(counts)])
        numels = pad(self.spans[:, 1].cumsum(0), (1, 0)).index_select(0, ends).diff().tolist()
        rows = {
            key: shared.spread(dtype, numel)
            for (key, shared), numel in zip(self.parts().items(), numels, strict=True)
        }
        return InverseKeyedJaggedTensor.from_parts(self.groups, rows, self.inverse_lookup)

    @classmethod
    def from_bytes(cls, data: bytes | pa.Buffer) -> PartialInverseKeyedJaggedTensor:
        """The partial IKJT that `to_bytes` was given, on the same memory; always checked."""
        return cls._of(*wire.partial_from_batch(wire.from_bytes(data))).validate()

    def to_bytes(self) -> pa.Buffer:
        """An Arrow IPC stream: a dictionary of list views per group; nothing is pickled."""
        here = self.to(torch.device("cpu"))
        parts, dtype = here.parts(), here.kjt.lengths().dtype
        batch = wire.partial_to_batch(here.groups, parts, here.inverse_lookup, dtype)
        return wire.to_bytes(batch)

    def rows(self, key: str) -> Tensor:
        """[B, 2]: each sample's [offset, length] in the key's shared values: the paper's form."""
        return self._rows([key])[0]

    def values_kept(self, key: str | None = None) -> int:
        """The number of shared values, for one key or for all."""
        if key is not None:
            self._check(key)
            return self.parts()[key].values.numel()
        return int(self.kjt.values().numel())

    def id_counts(self, key: str | None = None) -> tuple[int, int]:
        """The number of ids of the B samples, and of the values kept for them; for one key, or for
        all."""
        keys = self.kjt.keys() if key is None else [key]
        return sum(int(rows[:, 1].sum()) for rows in self._rows(keys)), self.values_kept(key)

    def select(self, samples: Tensor) -> PartialInverseKeyedJaggedTensor:
        """The samples at `samples` [N], in this order, repeats included; values that none of them
        needs are dropped."""
        looked = self.inverse_lookup[:, samples]
        found = [group_codes([row]) for row in looked]
        shared = {
            key: rows.select(looked[group][found[group].firsts])
            for (key, rows), group in zip(self.parts().items(), self.group_of.values(), strict=True)
        }
        lookups = torch.stack([unique.inverse_lookup for unique in found])
        return self._of(self.groups, shared, lookups, self.kjt.lengths().dtype)

    @classmethod
    def concat(
        cls, parts: Sequence[PartialInverseKeyedJaggedTensor]
    ) -> PartialInverseKeyedJaggedTensor:
        """The samples of all parts, one part after another; nothing is shared across parts."""
        groups = parts[0].groups
        lookups, done = [], [0] * len(groups)
        for part in parts:
            if part.groups != groups:
                raise DataError(
                    f"concat: its parts differ in their groups, {groups} and {part.groups}. "
                    "Convert all batches with the same groups."
                )
            lookups.append(part.inverse_lookup + part.inverse_lookup.new_tensor(done)[:, None])
            done = [one + more for one, more in zip(done, part.unique_counts, strict=True)]
        by_part = [part.parts() for part in parts]
        shared = {key: SharedRows.concat([part[key] for part in by_part]) for key in by_part[0]}
        return cls._of(groups, shared, torch.cat(lookups, dim=1), parts[0].kjt.lengths().dtype)

    def validate(self) -> PartialInverseKeyedJaggedTensor:
        """Returns the partial IKJT, or raises `DataError` for the first rule that it breaks."""
        check_groups(self.groups, self.kjt.keys())
        keys, counts = [key for group in self.groups for key in group], self.unique_counts
        shape = list(self.inverse_lookup.shape)
        _hold(
            self.kjt.keys() == keys, f"its keys are {self.kjt.keys()}, those of its groups {keys}"
        )
        _hold(self.kjt.stride() == 1, f"`kjt` has {self.kjt.stride()} rows per key, not 1")
        _hold(
            len(counts) == len(self.groups) == len(self.inverse_lookup) and len(shape) == 2,
            f"it has {so_many(len(self.groups), 'group')}, "
            f"{so_many(len(counts), 'unique count')} and an inverse lookup of shape {shape}, which "
            "must be [groups, batch size]",
        )
        num_rows = sum(counts[group] for group in self.group_of.values())
        _hold(
            min(counts) >= 0 and self.spans.shape == (num_rows, 2),
            f"`spans` is {list(self.spans.shape)}, but its unique counts {counts} make "
            f"[{num_rows}, 2]",
        )
        for group, lookup, count in zip(self.groups, self.inverse_lookup, counts, strict=True):
            outside = lookup[(lookup < 0) | (lookup >= count)].tolist()
            _hold(
                not outside,
                f"the inverse lookup of {group} points to unique sample {outside[:1]} of {count}",
            )
        for key, (values, _, spans) in self.parts().items():
            offsets, lengths = spans.unbind(1)
            outside = spans[(spans < 0).any(1) | (offsets > values.numel() - lengths)].tolist()
            _hold(
                not outside,
                f"rows [offset, length] of {key!r} lie beyond its {values.numel()} shared values: "
                f"{outside[:1]}",
            )
        return self

    def _rows(self, keys: Sequence[str]) -> list[Tensor]:
        """[B, 2] per key."""
        for key in keys:
            self._check(key)
        parts, group_of = self.parts(), self.group_of
        return [parts[key].spans[self.inverse_lookup[group_of[key]]] for key in keys]

    def _check(self, key: str) -> None:
        keys: list[str] = self.kjt.keys()
        if key not in keys:
            raise DataError(f"there is no key {key!r}; {nearest(key, keys)}")


def _hold(kept: bool, what: str) -> None:
    if not kept:
        raise DataError(
            f"a PartialInverseKeyedJaggedTensor breaks its rules: {what}. Build it by from_kjt, "
            "or send it again."
        )

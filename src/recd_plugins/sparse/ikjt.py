"""InverseKeyedJaggedTensor: the unique samples of groups of features, and which sample has which.

As in the paper, sample i's row of feature f is unique row `inverse_lookup[group of f, i]` of f.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.errors import DataError, listed, nearest, so_many
from recd_plugins.sparse import wire
from recd_plugins.sparse.deduplicated import DeduplicatedFeatures
from recd_plugins.sparse.groups import Groups, check_groups, real_rows
from recd_plugins.sparse.jagged import Jagged, WeightedJagged
from recd_plugins.sparse.rows.deduplicate import deduplicate, unique_of_group
from recd_plugins.sparse.rows.memory import numbers_on
from recd_plugins.sparse.rows.unique import unique_numbers

__all__ = ["InverseKeyedJaggedTensor", "check_lookup"]


@dataclass(frozen=True, eq=False)
class InverseKeyedJaggedTensor(DeduplicatedFeatures):
    """B samples of features in G groups; each unique sample of a group is kept once.

    Every unique sample occurs among the samples. When made from samples, they differ and are in
    order of first appearance; a transform that runs on them may make some of them equal.
    """

    kjt: KeyedJaggedTensor
    """The unique samples, with keys in the order of the groups. Its stride is that of the largest
    group; the keys of others end in rows of length 0. A plain attribute, so that TorchRec's
    pipeline can follow it from the batch."""
    inverse_lookup: Tensor
    """[G, B] int64: which of the group's unique samples each sample is."""
    groups: Groups
    unique_counts: tuple[int, ...]
    """The number of unique samples of each group."""

    @classmethod
    def from_kjt(
        cls,
        features: KeyedJaggedTensor,
        groups: Sequence[Sequence[str]] | None = None,
        *,
        validate: bool = False,
    ) -> InverseKeyedJaggedTensor:
        """Deduplicate the keys that `groups` name; by default every key is a group.

        Samples are merged in a group only if all of its features match, weights included.
        """
        if features.variable_stride_per_key():
            raise DataError(
                "from_kjt: its keys differ in batch size (a VBE KJT). Expand it to the batch first."
            )
        keys = features.keys()
        groups = check_groups([[key] for key in keys] if groups is None else groups, keys)
        ikjt = cls._of(groups, *deduplicate(groups, WeightedJagged.by_key(features)))
        return ikjt.validate() if validate else ikjt

    @classmethod
    def from_jagged(
        cls,
        features: Mapping[str, Jagged],
        groups: Sequence[Sequence[str]] | None = None,
        *,
        validate: bool = False,
    ) -> InverseKeyedJaggedTensor:
        """Like `from_kjt`, for features that are not yet joined: only unique samples are ever
        copied."""
        groups = check_groups([[key] for key in features] if groups is None else groups, features)
        rows = {key: WeightedJagged(*features[key]) for group in groups for key in group}
        sizes = {feature.lengths.numel() for feature in rows.values()}
        if len(sizes) > 1:
            raise DataError(
                f"from_jagged: its features have {sorted(sizes)} rows, but must have one number "
                "of rows, that of the batch."
            )
        ikjt = cls._of(groups, *deduplicate(groups, rows))
        return ikjt.validate() if validate else ikjt

    @classmethod
    def from_rows(
        cls, groups: Groups, rows: Mapping[str, WeightedJagged], lookups: Sequence[Tensor]
    ) -> InverseKeyedJaggedTensor:
        """Make one from each key's rows and each group's inverse lookup [B] into them, checked.

        Rows that no sample has are dropped; the others are put in order of first appearance.
        """
        _check_of_groups(groups, rows, lookups)
        kept: dict[str, WeightedJagged] = {}
        inverse_lookup = []
        for group, lookup in zip(groups, lookups, strict=True):
            counts = {rows[key].lengths.numel() for key in group}
            if len(counts) > 1:
                raise DataError(
                    f"the keys of group {group} have {sorted(counts)} unique rows, but must have "
                    "one number of them. Give each a group of its own."
                )
            count = counts.pop()
            check_lookup(lookup, count, group)
            unique = unique_numbers(lookup)
            inverse_lookup.append(unique.inverse_lookup)
            used = lookup[unique.firsts]
            whole = torch.equal(used, torch.arange(count, device=used.device))
            kept |= {key: rows[key] if whole else rows[key].select(used) for key in group}
        return cls.from_parts(groups, kept, torch.stack(inverse_lookup)).validate()

    @classmethod
    def from_parts(
        cls, groups: Groups, rows: Mapping[str, WeightedJagged], inverse_lookup: Tensor
    ) -> InverseKeyedJaggedTensor:
        """Make one from each key's unique rows and an inverse lookup [G, B], unchecked."""
        counts = tuple(rows[group[0]].lengths.numel() for group in groups)
        parts = [rows[key] for group in groups for key in group]
        numels = [part.values.numel() for part in parts]
        return cls._of(
            groups, WeightedJagged.joined(parts, padded=True), inverse_lookup, counts, numels
        )

    @classmethod
    def _of(
        cls,
        groups: Groups,
        rows: WeightedJagged,
        inverse_lookup: Tensor,
        counts: tuple[int, ...],
        length_per_key: list[int] | None = None,
    ) -> InverseKeyedJaggedTensor:
        """Make one from the unique rows of all keys, padded to the largest group."""
        kjt = KeyedJaggedTensor(
            keys=[key for group in groups for key in group],
            values=rows.values,
            lengths=rows.lengths,
            weights=rows.weights,
            stride=max(counts),
            length_per_key=length_per_key,
        )
        return cls(kjt, inverse_lookup, groups, counts)

    @classmethod
    def from_arrow(
        cls,
        columns: Mapping[str, pa.DictionaryArray],
        groups: Sequence[Sequence[str]] | None = None,
    ) -> InverseKeyedJaggedTensor:
        """Read columns dictionary<list<integer>>; those of a group must have equal indices.

        By default neighbouring columns with equal indices are a group. Values stay where they are
        if the dictionaries lie one after another in one array, as `to_arrow` leaves them; else the
        unique rows are joined by one copy. Always checked.
        """
        return cls.from_rows(*wire.from_columns(columns, groups))

    @classmethod
    def from_record_batch(cls, batch: pa.RecordBatch) -> InverseKeyedJaggedTensor:
        """The IKJT that `to_record_batch` wrote; always checked."""
        return cls._of(*wire.ikjt_from_batch(batch)).validate()

    @classmethod
    def from_bytes(cls, data: bytes | pa.Buffer) -> InverseKeyedJaggedTensor:
        """The IKJT that `to_bytes` wrote; always checked."""
        return cls.from_record_batch(wire.from_bytes(data))

    @classmethod
    def concat(cls, parts: Sequence[InverseKeyedJaggedTensor]) -> InverseKeyedJaggedTensor:
        """The samples of all parts, one part after another; what they share is kept once."""
        groups = parts[0].groups
        if any(part.groups != groups for part in parts):
            raise DataError(
                "concat: its parts differ in their groups: "
                f"{' and '.join(sorted({str(part.groups) for part in parts}))}. Convert all "
                "batches with the same groups."
            )
        by_part = [part.parts() for part in parts]
        rows: dict[str, WeightedJagged] = {}
        lookups = []
        for index, group in enumerate(groups):
            joined = {key: WeightedJagged.joined([part[key] for part in by_part]) for key in group}
            lookup, firsts = unique_of_group(list(joined.values()))
            counts = [part.unique_counts[index] for part in parts]
            theirs = zip(parts, lookup.split(counts), strict=True)
            lookups.append(torch.cat([codes[part.inverse_lookup[index]] for part, codes in theirs]))
            rows |= {key: feature.select(firsts) for key, feature in joined.items()}
        return cls.from_parts(groups, rows, torch.stack(lookups))

    @classmethod
    def from_ikjt(cls, ikjt: InverseKeyedJaggedTensor) -> InverseKeyedJaggedTensor:
        return ikjt

    def to_ikjt(self) -> InverseKeyedJaggedTensor:
        return self

    def parts(self) -> dict[str, WeightedJagged]:
        """Each key's unique rows, without padding, as views: what `from_parts` takes."""
        counts = {
            key: count
            for group, count in zip(self.groups, self.unique_counts, strict=True)
            for key in group
        }
        return {
            key: WeightedJagged(rows.values, rows.lengths[: counts[key]], rows.weights)
            for key, rows in WeightedJagged.by_key(self.kjt).items()
        }

    def to_kjt(self, keys: Sequence[str] | None = None) -> KeyedJaggedTensor:
        """All B samples of `keys`, in this order; by default all, in the order of the groups."""
        keys = self.kjt.keys() if keys is None else keys
        group_of, position = self.group_of, {key: i for i, key in enumerate(self.kjt.keys())}
        for key in keys:
            if key not in position:
                raise DataError(f"to_kjt: there is no key {key!r}; {nearest(key, position)}")
        stride, device = self.kjt.stride(), self.inverse_lookup.device
        groups, firsts = numbers_on(
            device, [[group_of[key] for key in keys], [position[key] * stride for key in keys]]
        )
        lookups = self.inverse_lookup.index_select(0, groups) + firsts[:, None]
        rows = WeightedJagged.of(self.kjt).select(lookups.view(-1))
        return KeyedJaggedTensor(
            keys=list(keys),
            values=rows.values,
            lengths=rows.lengths,
            weights=rows.weights,
            stride=self.batch_size,
        )

    def to_arrow(self) -> dict[str, pa.DictionaryArray]:
        """Each key as a column dictionary<list<integer>>, on the values of `kjt`."""
        here = self.to(torch.device("cpu"))
        return wire.to_columns(here.groups, here.parts(), list(here.inverse_lookup))

    def to_record_batch(self) -> pa.RecordBatch:
        """One row with a column for each tensor, weights included: the form that travels."""
        here = self.to(torch.device("cpu"))
        return wire.ikjt_to_batch(
            here.groups, WeightedJagged.of(here.kjt), here.inverse_lookup, here.unique_counts
        )

    def to_bytes(self) -> pa.Buffer:
        """The record batch as an Arrow IPC stream: nothing is pickled, and no sample expanded."""
        return wire.to_bytes(self.to_record_batch())

    def select(self, samples: Tensor) -> InverseKeyedJaggedTensor:
        """The samples at `samples` [N], in this order, repeats included; unused rows are
        dropped."""
        return self.from_rows(self.groups, self.parts(), list(self.inverse_lookup[:, samples]))

    def id_counts(self, key: str | None = None) -> tuple[int, int]:
        """The number of ids of the B samples, and how many are kept; for one key, or for all."""
        before, kept = 0, 0
        group_of = self.group_of
        for name, rows in self.parts().items():
            if key in (None, name):
                before += int(rows.lengths[self.inverse_lookup[group_of[name]]].sum())
                kept += rows.values.numel()
        return before, kept

    def validate(self) -> InverseKeyedJaggedTensor:
        """Returns the IKJT, or raises `DataError` for the first invariant that does not hold."""
        _check_ikjt(self)
        return self


FIX = "Build it by one of InverseKeyedJaggedTensor's from_..., or send it again."


def _check_of_groups(
    groups: Groups, rows: Mapping[str, WeightedJagged], lookups: Sequence[Tensor]
) -> None:
    """Raises `DataError` unless there are rows for each key, and an inverse lookup for each
    group."""
    if not isinstance(rows, Mapping):
        raise DataError(
            f"from_rows: `rows` is a {type(rows).__name__}, where it must be a mapping from each "
            "key to its WeightedJagged."
        )
    if lacking := {key for group in groups for key in group} - rows.keys():
        raise DataError(f"from_rows: `rows` lacks {listed(sorted(lacking))}, which groups name.")
    if len(lookups) != len(groups):
        raise DataError(
            f"from_rows: of {so_many(len(groups), 'group')} it has "
            f"{so_many(len(lookups), 'inverse lookup')}. Give one for each."
        )
    shapes = {(one.dtype, tuple(one.shape)) for one in lookups}
    if len(shapes) > 1 or not all(len(of) == 1 and kind is torch.int64 for kind, of in shapes):
        found = listed(sorted(f"{list(of)} of {kind}" for kind, of in shapes))
        raise DataError(
            f"from_rows: its inverse lookups are {found}, where each must be [batch size] of "
            "torch.int64: which unique row each sample has."
        )


def _check_ikjt(ikjt: InverseKeyedJaggedTensor) -> None:
    """Raises `DataError` for the first invariant that does not hold, for an IKJT from outside."""
    kjt, counts, lookup = ikjt.kjt, ikjt.unique_counts, ikjt.inverse_lookup
    keys = [key for group in ikjt.groups for key in group]
    check_groups(ikjt.groups, kjt.keys())
    _hold(kjt.keys() == keys, f"its keys are {kjt.keys()}, but those of its groups {keys}")
    _hold(
        lookup.dim() == 2 and len(lookup) == len(ikjt.groups) == len(counts),
        f"it has {so_many(len(ikjt.groups), 'group')}, {so_many(len(counts), 'unique count')} and "
        f"an inverse lookup of shape {list(lookup.shape)}, which must be [groups, batch size]",
    )
    _hold(lookup.dtype == torch.int64, f"its inverse lookup is {lookup.dtype}, not int64")
    _hold(min(counts) >= 0, f"its unique counts are {counts}")
    _check_rows(ikjt, keys)
    wanted = torch.tensor(counts, device=lookup.device)
    outside = ((lookup < 0) | (lookup >= wanted[:, None])).any(1)
    for index in outside.nonzero().flatten().tolist():
        check_lookup(lookup[index], counts[index], ikjt.groups[index])
    # Numbered in order of first appearance: each may exceed all before it by at most 1.
    steps = lookup.cummax(1).values.diff(dim=1, prepend=lookup.new_full((len(lookup), 1), -1))
    unordered = (steps > 1).any(1) | (steps.sum(1) != wanted)
    for index in unordered.nonzero().flatten().tolist():
        raise _broken(
            f"the inverse lookup of group {ikjt.groups[index]} does not number its "
            f"{so_many(counts[index], 'unique sample')} in the order in which they first appear"
        )


def check_lookup(lookup: Tensor, count: int, group: Sequence[str]) -> None:
    """Raises `DataError` unless each of `lookup` [B] is one of `count` unique samples."""
    if lookup.numel():
        low, high = (int(bound) for bound in lookup.aminmax())
        _hold(
            low >= 0 and high < count,
            f"the inverse lookup of group {tuple(group)} reaches from {low} to {high}, outside "
            f"of its {so_many(count, 'unique sample')}",
        )


def _check_rows(ikjt: InverseKeyedJaggedTensor, keys: Sequence[str]) -> None:
    kjt, stride = ikjt.kjt, max(ikjt.unique_counts)
    lengths, weights = kjt.lengths(), kjt.weights_or_none()
    _hold(
        kjt.stride() == stride and lengths.numel() == len(keys) * stride,
        f"it has {so_many(lengths.numel(), 'length')} and stride {kjt.stride()}, but "
        f"{so_many(len(keys), 'key')} with {so_many(stride, 'unique sample')} in the largest group",
    )
    _hold(not lengths.numel() or int(lengths.min()) >= 0, "one of its lengths is negative")
    total = int(lengths.sum())
    _hold(
        kjt.values().numel() == total and (weights is None or weights.numel() == total),
        f"its lengths add up to {total}, but it has "
        f"{so_many(kjt.values().numel(), 'value')}"
        + ("" if weights is None else f" and {so_many(weights.numel(), 'weight')}"),
    )
    behind = lengths.bool() & ~real_rows(ikjt.groups, ikjt.unique_counts, lengths.device)
    for place in behind.nonzero().flatten().tolist():
        key = keys[place // stride]
        count = ikjt.unique_counts[ikjt.group_of[key]]
        raise _broken(f"{key!r} has ids after the {count} unique samples of its group")


def _hold(kept: bool, what: str) -> None:
    if not kept:
        raise _broken(what)


def _broken(what: str) -> DataError:
    return DataError(f"an InverseKeyedJaggedTensor breaks its rules: {what}. {FIX}")

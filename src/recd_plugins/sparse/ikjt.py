"""InverseKeyedJaggedTensor: groups of features as their unique samples and who has which.

The paper's: sample i's row of feature f is unique row `inverse_lookup[group of f, i]` of f.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.errors import DataError, nearest
from recd_plugins.sparse.bundle import Bundle
from recd_plugins.sparse.groups import Groups, agreed_groups, check_groups
from recd_plugins.sparse.invariants import check_ikjt, check_lookup
from recd_plugins.sparse.jagged import Jagged
from recd_plugins.sparse.padding import real_rows
from recd_plugins.sparse.rows.deduplicate import deduplicate, unique_samples
from recd_plugins.sparse.rows.unique import unique_numbers
from recd_plugins.sparse.rows.weighted import Weighted
from recd_plugins.sparse.wire import columns as dictionaries
from recd_plugins.sparse.wire import ikjt as wire
from recd_plugins.sparse.wire import stream

__all__ = ["InverseKeyedJaggedTensor"]


@dataclass(frozen=True, eq=False)
class InverseKeyedJaggedTensor(Bundle):
    """B samples of features in G groups; of each group, its unique samples are kept.

    Every unique sample is some sample's. They are different when made from samples, and in
    order of first appearance; a transform that runs on them may make some of them equal.
    """

    kjt: KeyedJaggedTensor
    """The unique samples, keys in the order of the groups. Its stride is that of the largest
    group; the others end in rows of length 0. A plain attribute, so that TorchRec's pipeline
    can follow it from the batch."""
    inverse_lookup: Tensor
    """[G, B] int64: which of the group's unique samples each sample is."""
    groups: Groups
    unique_counts: tuple[int, ...]
    """The unique samples of each group."""

    @classmethod
    def from_kjt(
        cls,
        features: KeyedJaggedTensor,
        groups: Sequence[Sequence[str]] | None = None,
        *,
        validate: bool = False,
    ) -> InverseKeyedJaggedTensor:
        """Deduplicate the keys that `groups` name; by default every key is a group.

        Samples of a group are merged only where all of its features match, weights included.
        """
        if features.variable_stride_per_key():
            raise DataError(
                "from_kjt: its keys differ in batch size (a VBE KJT): use from_vbe_kjt."
            )
        keys = features.keys()
        groups = check_groups([[key] for key in keys] if groups is None else groups, keys)
        ikjt = cls._of(groups, *deduplicate(groups, Weighted.by_key(features)))
        return ikjt.validate() if validate else ikjt

    @classmethod
    def from_jagged(
        cls,
        features: Mapping[str, Jagged],
        groups: Sequence[Sequence[str]] | None = None,
        *,
        validate: bool = False,
    ) -> InverseKeyedJaggedTensor:
        """As `from_kjt`, of features not yet joined: only unique samples are ever copied."""
        groups = check_groups([[key] for key in features] if groups is None else groups, features)
        rows = {key: Weighted(*features[key]) for group in groups for key in group}
        sizes = {feature.lengths.numel() for feature in rows.values()}
        if len(sizes) > 1:
            raise DataError(
                f"from_jagged: its features have {sorted(sizes)} rows, but must have one number "
                "of rows, that of the batch."
            )
        ikjt = cls._of(groups, *deduplicate(groups, rows))
        return ikjt.validate() if validate else ikjt

    @classmethod
    def from_vbe_kjt(
        cls, features: KeyedJaggedTensor, groups: Sequence[Sequence[str]] | None = None
    ) -> InverseKeyedJaggedTensor:
        """From TorchRec's variable-batch form; keys of one group must agree in their inverse.

        By default those that lie side by side and agree are a group. Checked always.
        """
        if features.inverse_indices_or_none() is None or any(
            len(strides) != 1 for strides in features.stride_per_key_per_rank()
        ):
            raise DataError(
                "from_vbe_kjt: it has no inverse_indices, or strides of several ranks: hand over "
                "a KJT of one rank that was built with inverse_indices."
            )
        names, inverse = features.inverse_indices()
        lookups = {key: inverse[names.index(key)].to(torch.int64) for key in features.keys()}  # noqa: SIM118
        checked, agreed = agreed_groups(lookups, groups, "from_vbe_kjt")
        return cls.from_rows(checked, Weighted.by_key(features), agreed)

    @classmethod
    def from_rows(
        cls, groups: Groups, rows: Mapping[str, Weighted], lookups: Sequence[Tensor]
    ) -> InverseKeyedJaggedTensor:
        """Of rows of each key and each group's inverse lookup [B] into them, checked.

        Rows that no sample has are dropped, the others put in order of first appearance.
        """
        kept: dict[str, Weighted] = {}
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
        cls, groups: Groups, rows: Mapping[str, Weighted], inverse_lookup: Tensor
    ) -> InverseKeyedJaggedTensor:
        """Of each key's unique rows and an inverse lookup [G, B], as they are."""
        counts = tuple(rows[group[0]].lengths.numel() for group in groups)
        parts = [rows[key] for group in groups for key in group]
        numels = [part.values.numel() for part in parts]
        return cls._of(groups, Weighted.joined(parts, padded=True), inverse_lookup, counts, numels)

    @classmethod
    def _of(
        cls,
        groups: Groups,
        rows: Weighted,
        inverse_lookup: Tensor,
        counts: tuple[int, ...],
        length_per_key: list[int] | None = None,
    ) -> InverseKeyedJaggedTensor:
        """Of the unique rows of all keys, padded to the largest group's."""
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
        """From columns dictionary<list<integer>>; those of one group must agree in their indices.

        By default those that agree and lie side by side are a group. Values stay where they
        are if the dictionaries lie one after another in one array, as `to_arrow` leaves them;
        else the unique rows are joined by one copy. Checked always.
        """
        return cls.from_rows(*dictionaries.from_columns(columns, groups))

    @classmethod
    def from_record_batch(cls, batch: pa.RecordBatch) -> InverseKeyedJaggedTensor:
        """What `to_record_batch` made; checked always."""
        return cls._of(*wire.from_record_batch(batch)).validate()

    @classmethod
    def from_bytes(cls, data: bytes | pa.Buffer) -> InverseKeyedJaggedTensor:
        """What `to_bytes` made; checked always."""
        return cls.from_record_batch(stream.from_bytes(data))

    @classmethod
    def concat(cls, parts: Sequence[InverseKeyedJaggedTensor]) -> InverseKeyedJaggedTensor:
        """The samples of each part, one part after another; what they share is kept once."""
        groups = parts[0].groups
        if any(part.groups != groups for part in parts):
            raise DataError(
                "concat: its parts differ in their groups: "
                f"{' and '.join(sorted({str(part.groups) for part in parts}))}. Convert all "
                "batches with the same groups."
            )
        by_part = [part.parts() for part in parts]
        rows: dict[str, Weighted] = {}
        lookups = []
        for index, group in enumerate(groups):
            joined = {key: Weighted.joined([part[key] for part in by_part]) for key in group}
            lookup, firsts = unique_samples(list(joined.values()))
            counts = [part.unique_counts[index] for part in parts]
            theirs = zip(parts, lookup.split(counts), strict=True)
            lookups.append(torch.cat([codes[part.inverse_lookup[index]] for part, codes in theirs]))
            rows |= {key: feature.select(firsts) for key, feature in joined.items()}
        return cls.from_parts(groups, rows, torch.stack(lookups))

    @property
    def batch_size(self) -> int:
        return self.inverse_lookup.shape[1]

    def parts(self) -> dict[str, Weighted]:
        """Each key's unique rows, without padding, as views: what `from_parts` takes."""
        counts = {
            key: count
            for group, count in zip(self.groups, self.unique_counts, strict=True)
            for key in group
        }
        return {
            key: replace(rows, lengths=rows.lengths[: counts[key]])
            for key, rows in Weighted.by_key(self.kjt).items()
        }

    def to_kjt(self, keys: Sequence[str] | None = None) -> KeyedJaggedTensor:
        """All B samples of `keys`, in this order; by default all, in the order of the groups."""
        keys = self.kjt.keys() if keys is None else keys
        group_of, position = self.group_of, {key: i for i, key in enumerate(self.kjt.keys())}
        for key in keys:
            if key not in position:
                raise DataError(f"to_kjt: there is no key {key!r}; {nearest(key, position)}")
        firsts = torch.tensor([position[key] * self.kjt.stride() for key in keys])
        lookups = self.inverse_lookup[[group_of[key] for key in keys]]
        rows = Weighted.of(self.kjt).select((lookups + firsts[:, None].to(lookups)).view(-1))
        return KeyedJaggedTensor(
            keys=list(keys),
            values=rows.values,
            lengths=rows.lengths,
            weights=rows.weights,
            stride=self.batch_size,
        )

    def to_vbe_kjt(self) -> KeyedJaggedTensor:
        """TorchRec's variable-batch form: the unique samples, unpadded, and inverse_indices."""
        keys, group_of, counts = self.kjt.keys(), self.group_of, self.unique_counts
        return KeyedJaggedTensor(
            keys=keys,
            values=self.kjt.values(),
            lengths=self.kjt.lengths()[real_rows(self.groups, counts, self.kjt.device())],
            weights=self.kjt.weights_or_none(),
            stride_per_key_per_rank=[[counts[group_of[key]]] for key in keys],
            inverse_indices=(keys, self.inverse_lookup[[group_of[key] for key in keys]]),
        )

    def to_arrow(self) -> dict[str, pa.DictionaryArray]:
        """Each key as a column dictionary<list<integer>>, on the values of `kjt`."""
        here = self.to(torch.device("cpu"))
        return dictionaries.to_columns(here.groups, here.parts(), list(here.inverse_lookup))

    def to_record_batch(self) -> pa.RecordBatch:
        """One row, a column for each tensor, weights included: what travels."""
        here = self.to(torch.device("cpu"))
        return wire.to_record_batch(
            here.groups, Weighted.of(here.kjt), here.inverse_lookup, here.unique_counts
        )

    def to_bytes(self) -> pa.Buffer:
        """The record batch as an Arrow IPC stream: nothing pickled, no sample expanded."""
        return stream.to_bytes(self.to_record_batch())

    def select(self, samples: Tensor) -> InverseKeyedJaggedTensor:
        """Samples `samples` [N], in this order, repeats included; unused rows are dropped."""
        return self.from_rows(self.groups, self.parts(), list(self.inverse_lookup[:, samples]))

    def dedupe_factor(self, key: str | None = None) -> float:
        """DedupeFactor: ids of the B samples over ids kept; of one key, or of all together.

        1 where there are no ids.
        """
        before, kept = 0, 0
        group_of = self.group_of
        for name, rows in self.parts().items():
            if key in (None, name):
                before += int(rows.lengths[self.inverse_lookup[group_of[name]]].sum())
                kept += rows.values.numel()
        return before / kept if kept else 1.0

    def validate(self) -> InverseKeyedJaggedTensor:
        """Itself, or `DataError` for the first invariant that does not hold."""
        check_ikjt(self)
        return self

    @property
    def group_of(self) -> dict[str, int]:
        return {key: index for index, group in enumerate(self.groups) for key in group}

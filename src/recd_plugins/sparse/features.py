"""All sparse features of a batch, deduplicated or not: the only place that looks into an IKJT."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from tensordict import TensorDict
from torch import Tensor
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor
from torchrec.sparse.tensor_dict import maybe_td_to_kjt

from recd_plugins.compat.pytorch import writes_to
from recd_plugins.errors import CapabilityError
from recd_plugins.sparse.bundle import Bundle
from recd_plugins.sparse.deduplicated import DeduplicatedFeatures
from recd_plugins.sparse.ikjt import InverseKeyedJaggedTensor
from recd_plugins.sparse.jagged import WeightedJagged
from recd_plugins.sparse.keyed import marked
from recd_plugins.sparse.rows.counted import CountedRows
from recd_plugins.sparse.rows.memory import numbers_on

__all__ = ["FeatureCounts", "FeatureLookup", "SparseFeatures"]


class FeatureLookup(NamedTuple):
    """The unique samples of a deduplicated feature, and which of them each of the B samples has."""

    num_unique: int
    inverse_lookup: Tensor
    """[B] int64."""


class FeatureCounts(NamedTuple):
    """What is counted of a deduplicated feature."""

    num_values: int
    """The ids of all B samples."""
    unique: CountedRows | None
    """What is counted of the unique samples, where a device has them; on the CPU whoever needs it
    counts."""


EXPANDED = frozenset(
    [
        *("values", "weights", "weights_or_none", "lengths", "lengths_or_none"),
        *("offsets", "offsets_or_none", "length_per_key", "length_per_key_or_none"),
        *("offset_per_key", "offset_per_key_or_none", "index_per_key", "size_in_bytes"),
        *("split", "permute", "flatten_lengths", "inverse_indices", "inverse_indices_or_none"),
        *("stride_per_key_per_rank", "lengths_offset_per_key"),
        *("dist_labels", "dist_splits", "dist_tensors"),
    ]
)
"""Other attributes of a KJT, which are answered from `to_kjt` here."""


def _own_names() -> frozenset[str]:
    none = torch.empty(0, dtype=torch.int64, device="cpu")
    names = dir(KeyedJaggedTensor(keys=[], values=none, lengths=none))
    return frozenset(name for name in names if name[:1] == "_" != name[1:2])


OF_KJT = _own_names()
"""Private attributes that TorchRec's functions, such as `KeyedJaggedTensor.concat` and
`ComputeKJTToJTDict`, read from a KJT."""


@dataclass(frozen=True, eq=False)
class SparseFeatures(Bundle):
    """All sparse features of B samples; a feature is in `plain` or in `dedup`.

    It stands for a KJT of all B samples: a trainer moves, pins and pickles it like one. A model
    that reads ids itself finds them as in a KJT, expanded.
    """

    plain: KeyedJaggedTensor
    """The features that are not deduplicated, B rows each."""
    dedup: InverseKeyedJaggedTensor | None = None
    """The deduplicated features: the unique samples of each group, and which sample has which."""
    order: tuple[str, ...] = ()
    """The keys of the KJT that it stands for, in order; by default `plain`'s, then `dedup`'s."""

    @classmethod
    def of(
        cls, features: KeyedJaggedTensor | TensorDict | SparseFeatures, dedup: object = None
    ) -> SparseFeatures:
        """Plain features, and what a `dedup` converter made of the others.

        A TensorDict becomes a KJT, as in TorchRec. The unique samples of a partial IKJT get values
        of their own.
        """
        if isinstance(features, SparseFeatures):
            return features
        plain = maybe_td_to_kjt(features)
        if dedup is None:
            return cls(plain)
        if not isinstance(dedup, DeduplicatedFeatures):
            raise CapabilityError(
                f"dedup: batches are deduplicated into a {type(dedup).__name__}, in which only its "
                "author can find unique samples. Let the converter make an "
                "InverseKeyedJaggedTensor, or take another converter."
            )
        return cls(plain, dedup.to_ikjt())

    @cached_property
    def rows(self) -> Mapping[str, WeightedJagged]:
        """Each feature's rows: its unique samples, or all B."""
        plain = WeightedJagged.by_key(self.plain)
        return plain if self.dedup is None else plain | self.dedup.parts()

    @cached_property
    def lookups(self) -> Mapping[str, FeatureLookup]:
        """Each deduplicated feature's unique samples."""
        if self.dedup is None:
            return {}
        by_group = zip(self.dedup.unique_counts, self.dedup.inverse_lookup.unbind(), strict=True)
        lookups = [FeatureLookup(count, lookup) for count, lookup in by_group]
        return {key: lookups[group] for key, group in self.dedup.group_of.items()}

    @cached_property
    def counts(self) -> Mapping[str, FeatureCounts]:
        """What is counted of each deduplicated feature; waits for CUDA once."""
        if self.dedup is None:
            return {}
        kjt, group_of = self.dedup.kjt, self.dedup.group_of
        lengths = kjt.lengths().view(len(kjt.keys()), kjt.stride())
        groups = [group_of[key] for key in kjt.keys()]  # noqa: SIM118  # a KJT is no mapping
        lookups = self.dedup.inverse_lookup
        lookups = lookups.index_select(0, numbers_on(lookups.device, groups))
        numbers = lengths.gather(1, lookups).sum(1)
        if not (lengths.is_cuda and lengths.numel()):
            return {
                key: FeatureCounts(numel, None)
                for key, numel in zip(kjt.keys(), numbers.tolist(), strict=True)
            }
        every = torch.stack([numbers, lengths.amax(1).long(), lengths.count_nonzero(1)])
        return {
            key: FeatureCounts(numel, CountedRows(longest, filled))
            for key, numel, longest, filled in zip(kjt.keys(), *every.tolist(), strict=True)
        }

    def marked(self, hot_under: str | None) -> SparseFeatures:
        """The same features with the mark of a hot batch, or none (`sparse.keyed`)."""
        dedup = self.dedup
        if dedup is not None:
            dedup = dataclasses.replace(dedup, kjt=marked(dedup.kjt, hot_under))
        return dataclasses.replace(self, plain=marked(self.plain, hot_under), dedup=dedup)

    def keys(self) -> list[str]:
        return list(self.order) or [*self.plain.keys(), *self.lookups]

    def stride(self) -> int:
        """B."""
        return int(self.plain.stride())

    def stride_per_key(self) -> list[int]:
        """[F]: B."""
        return [self.stride()] * len(self.keys())

    def variable_stride_per_key(self) -> bool:
        """Whether keys differ in their number of samples: never."""
        return False

    def device(self) -> torch.device:
        device: torch.device = self.plain.device()
        return device

    def sync(self) -> SparseFeatures:
        """Returns itself: a KJT would count the ids of its keys here, but unique samples do not
        change."""
        return self

    def unsync(self) -> SparseFeatures:
        return self

    def to_kjt(self) -> KeyedJaggedTensor:
        """All B rows of all features, in the order of `keys`: the KJT that this stands for."""
        return self.plain if self.dedup is None else self._read("", self._expanded)

    def check_not_written(self) -> None:
        """Raises `CapabilityError` if code has written into ids that were expanded from unique
        samples: the unique samples are looked up, so what was written would be lost."""
        if any(_writes(kjt) > before for kjt, before in self._reads.values()):
            raise CapabilityError(
                "dedup: the model writes into the ids of its batch, or into their lengths or "
                "weights, but unique samples are looked up, so the change would be lost. Let "
                "`preprocess`, or the loader before it converts, change ids; or let the model make "
                "its own KeyedJaggedTensor of them, which is looked up for all samples."
            )

    @cached_property
    def _reads(self) -> dict[str, tuple[KeyedJaggedTensor, int]]:
        """The expanded rows that were read, of one feature or of all (""), and how often they had
        been written to when they were made."""
        return {}

    def _read(self, name: str, expand: Callable[[], KeyedJaggedTensor]) -> KeyedJaggedTensor:
        """The rows of all samples: the same tensors whenever they are read, as in a KJT."""
        if name not in self._reads:
            kjt = expand()
            self._reads[name] = kjt, _writes(kjt)
        return self._reads[name][0]

    def _expanded(self) -> KeyedJaggedTensor:
        assert self.dedup is not None
        parts = WeightedJagged.by_key(self.plain) | WeightedJagged.by_key(self.dedup.to_kjt())
        rows = WeightedJagged.joined([parts[key] for key in self.keys()])
        return KeyedJaggedTensor(
            keys=self.keys(),
            values=rows.values,
            lengths=rows.lengths,
            weights=rows.weights,
            stride=self.stride(),
        )

    def __getattr__(self, name: str) -> Any:
        """Answer as the KJT would: for the attributes in `EXPANDED`, and for the private ones that
        TorchRec's functions read."""
        if name not in EXPANDED and name not in OF_KJT:
            raise AttributeError(
                f"{type(self).__name__} has no attribute {name!r}. `dedup` puts it in place of a "
                "batch's KeyedJaggedTensor: `.to_kjt()` makes the KeyedJaggedTensor again, with "
                "all samples."
            )
        return getattr(self.to_kjt(), name)

    def __getitem__(self, key: str) -> JaggedTensor:
        """All B rows of a feature."""
        dedup = self.dedup
        if dedup is not None and key in self.lookups:
            return self._read(key, lambda: dedup.to_kjt([key]))[key]
        return self.plain[key]

    def to_dict(self) -> dict[str, JaggedTensor]:
        """All B rows of every feature."""
        found: dict[str, JaggedTensor] = self.to_kjt().to_dict()
        return found


def _writes(kjt: KeyedJaggedTensor) -> int:
    """How often the KJT's tensors were changed in place."""
    tensors = kjt.values(), kjt.lengths(), kjt.weights_or_none()
    return sum(writes_to(one) for one in tensors if one is not None)


KeyedJaggedTensor.register(SparseFeatures)
"""In a model, `isinstance(features, KeyedJaggedTensor)` is true, as for the KJT: code that must
distinguish the two checks for SparseFeatures first."""

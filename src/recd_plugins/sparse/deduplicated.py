"""Deduplicated features: what an IKJT and a partial IKJT have in common.

Code that accepts either takes `DeduplicatedFeatures` and calls its methods: `to_ikjt` gives unique
samples values of their own if they share some. Only code that writes both (`data.wired_batch`)
distinguishes them by class.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Self

from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.sparse.bundle import Bundle
from recd_plugins.sparse.groups import Groups

if TYPE_CHECKING:
    from recd_plugins.sparse.ikjt import InverseKeyedJaggedTensor

__all__ = ["DeduplicatedFeatures"]


class DeduplicatedFeatures(Bundle):
    """B samples of features in G groups; each unique sample of a group is kept once."""

    shares_values: ClassVar[bool] = False
    """Whether rows of `kjt` are values that unique samples share, rather than the unique
    samples."""

    kjt: KeyedJaggedTensor
    inverse_lookup: Tensor
    """[G, B] int64: which of the group's unique samples each sample is."""
    groups: Groups
    unique_counts: tuple[int, ...]
    """The number of unique samples of each group."""

    @classmethod
    @abstractmethod
    def from_ikjt(cls, ikjt: InverseKeyedJaggedTensor) -> Self:
        """The same samples in this form."""

    @abstractmethod
    def to_ikjt(self) -> InverseKeyedJaggedTensor:
        """The same unique samples, each with values of its own."""

    @abstractmethod
    def to_kjt(self, keys: Sequence[str] | None = None) -> KeyedJaggedTensor:
        """All B samples of `keys`, in this order; by default all, in the order of the groups."""

    @abstractmethod
    def id_counts(self, key: str | None = None) -> tuple[int, int]:
        """The number of ids of the B samples, and how many are kept; for one key, or for all."""

    @property
    def batch_size(self) -> int:
        return self.inverse_lookup.shape[1]

    @property
    def group_of(self) -> dict[str, int]:
        """The group of each key, with keys in the order of the groups."""
        return {key: index for index, group in enumerate(self.groups) for key in group}

    def dedupe_factor(self, key: str | None = None) -> float:
        """DedupeFactor: ids of the B samples over ids kept; for one key, or for all.

        1 if there are no ids.
        """
        before, kept = self.id_counts(key)
        return before / kept if kept else 1.0

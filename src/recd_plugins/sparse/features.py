"""What a model that takes deduplicated batches is given as its features."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor

from recd_plugins.sparse.ikjt import InverseKeyedJaggedTensor
from recd_plugins.sparse.jagged import WeightedJagged

__all__ = ["SparseFeatures"]


@dataclass(frozen=True)
class SparseFeatures:
    """All sparse features of B samples, each in one of the two.

    Where a model reads ids itself, it finds them as in a KJT: by key, expanded.
    """

    plain: KeyedJaggedTensor
    """Those that are not deduplicated, B rows each."""
    dedup: InverseKeyedJaggedTensor
    """Those that are: the unique samples of each group, and which sample has which."""

    @cached_property
    def rows(self) -> Mapping[str, WeightedJagged]:
        """Each feature's rows: its unique samples, or all B."""
        return WeightedJagged.by_key(self.plain) | self.dedup.parts()

    @cached_property
    def group_of(self) -> Mapping[str, int]:
        """The group of each deduplicated feature."""
        return self.dedup.group_of

    @cached_property
    def num_values(self) -> Mapping[str, int]:
        """How many ids all B samples of each deduplicated feature have; CUDA is waited for once."""
        kjt, group_of = self.dedup.kjt, self.group_of
        lengths = kjt.lengths().view(len(kjt.keys()), kjt.stride())
        lookups = self.dedup.inverse_lookup[[group_of[key] for key in kjt.keys()]]  # noqa: SIM118
        numels = lengths.gather(1, lookups).sum(1).tolist()
        return dict(zip(kjt.keys(), numels, strict=True))

    def keys(self) -> list[str]:
        return [*self.plain.keys(), *self.dedup.kjt.keys()]

    def stride(self) -> int:
        """B."""
        return int(self.plain.stride())

    def __getitem__(self, key: str) -> JaggedTensor:
        """All B rows of a feature."""
        of = self.dedup.to_kjt([key]) if key in self.group_of else self.plain
        return of[key]

    def to_dict(self) -> dict[str, JaggedTensor]:
        """All B rows of every feature."""
        return {**self.plain.to_dict(), **self.dedup.to_kjt().to_dict()}

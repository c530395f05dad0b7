"""The sparse features of a batch before they are joined: what a `dedup` converter is given."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import chain

import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.errors import PluginError
from recd_plugins.sparse.groups import Groups, check_groups
from recd_plugins.sparse.ikjt import InverseKeyedJaggedTensor
from recd_plugins.sparse.rows.pool import Picked, join_picked
from recd_plugins.sparse.rows.unique_samples import unique_samples

__all__ = ["ASKABLE", "Columns", "JoinedColumns", "PooledColumns"]


ASKABLE = ("session_id", "timestamp")
"""What a converter may ask for beside features, by an attribute `asks`."""


class Columns(ABC):
    """Some sparse features of B samples, wherever their ids lie."""

    def __init__(self, beside: Mapping[str, Tensor] | None = None) -> None:
        """`beside` has each of `ASKABLE` that was requested, [B] int64."""
        self._beside = beside or {}

    @property
    def session_id(self) -> Tensor:
        """[B] int64: the session of each sample, for a converter whose `asks` names it."""
        return self._asked("session_id")

    @property
    def timestamp(self) -> Tensor:
        """[B] int64: the time of each sample in ms, for a converter whose `asks` names it."""
        return self._asked("timestamp")

    def _asked(self, name: str) -> Tensor:
        if name not in self._beside:
            raise PluginError(
                f"dedup: the columns have no {name}, because no converter asked for it. Give the "
                f"converter an attribute `asks = ({name!r},)`."
            )
        return self._beside[name]

    @property
    @abstractmethod
    def keys(self) -> list[str]:
        """The features."""

    @abstractmethod
    def to_kjt(self) -> KeyedJaggedTensor:
        """All B samples of all features: each id is copied, however often it repeats."""

    @abstractmethod
    def to_ikjt(self, groups: Sequence[Sequence[str]]) -> InverseKeyedJaggedTensor:
        """The unique samples of each group: ids that repeat are not copied.

        The same as `InverseKeyedJaggedTensor.from_kjt` of `to_kjt`.
        """


class JoinedColumns(Columns):
    """The columns of a KJT, from a reader that joins first."""

    def __init__(
        self, features: KeyedJaggedTensor, beside: Mapping[str, Tensor] | None = None
    ) -> None:
        super().__init__(beside)
        self._features = features

    @property
    def keys(self) -> list[str]:
        keys: list[str] = self._features.keys()
        return keys

    def to_kjt(self) -> KeyedJaggedTensor:
        return self._features

    def to_ikjt(self, groups: Sequence[Sequence[str]]) -> InverseKeyedJaggedTensor:
        return InverseKeyedJaggedTensor.from_kjt(self._features, groups)


class PooledColumns(Columns):
    """Rows in pools, which already hold equal rows once: no id is compared again."""

    def __init__(
        self,
        keys: Sequence[str],
        parts: Sequence[Picked],
        beside: Mapping[str, Tensor] | None = None,
    ) -> None:
        """The B samples may lie in several windows: they come in parts, each with its pool."""
        super().__init__(beside)
        self._keys = list(keys)
        self._parts = parts

    @property
    def keys(self) -> list[str]:
        return self._keys

    def to_kjt(self) -> KeyedJaggedTensor:
        return join_picked(self._parts).kjt(self._keys)

    def to_ikjt(self, groups: Sequence[Sequence[str]]) -> InverseKeyedJaggedTensor:
        found = _found(tuple(self._keys), tuple(map(tuple, groups)))
        made = [_unique(part, *found) for part in self._parts]
        return made[0] if len(made) == 1 else InverseKeyedJaggedTensor.concat(made)


@lru_cache(maxsize=64)
def _found(
    keys: tuple[str, ...], groups: Groups
) -> tuple[Groups, tuple[tuple[int, ...], ...], list[str]]:
    """The groups, checked, the places of their features among the keys, and these features' names:
    all batches have the same."""
    checked = check_groups(groups, keys)
    at = {key: index for index, key in enumerate(keys)}
    places = tuple(tuple(at[key] for key in group) for group in checked)
    return checked, places, [*chain.from_iterable(checked)]


def _unique(
    part: Picked, groups: Groups, places: tuple[tuple[int, ...], ...], keys: list[str]
) -> InverseKeyedJaggedTensor:
    """The unique samples of a batch, or of the part of it that one window has."""
    unique = unique_samples(part.rows, places)
    scored = tuple(part.scored[place] for group in places for place in group)
    return InverseKeyedJaggedTensor(
        join_picked([Picked(part.pool, unique.rows, scored)]).kjt(keys),
        torch.from_numpy(unique.inverse_lookup),
        groups,
        tuple(unique.counts.tolist()),
    )

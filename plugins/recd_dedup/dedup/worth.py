"""The worth of deduplication: what it saves in a step, and what it costs, in seconds or in bytes.

For a feature f in group g, with B samples of which U are unique, N ids of which N_u are kept, and
rows of D floats, a step saves

    lookup     reading (N - N_u) rows, and updating them by their gradients
    exchange   8 (N - N_u) bytes of ids; and 2 * 4 D (N - N_u) of rows and their gradients, or
               2 * 4 D (B - U) of sums, fewer with codecs: over the links, and in a rank's copies
    pooling    the pooling of all samples, less the pooling of unique samples

and pays for

    conversion comparing and copying ids, and the inverse lookup
    expansion  B rows of D floats, whose gradients are summed again; N rows if no pooling of the
               feature is known
    pooling    the difference, if pooling unique samples takes longer
    handling   the calls for a group, and for each of its features' tables.

A step in which anything is deduplicated also pays for some calls.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from recd_dedup.dedup.sample import SampledBatches
from recd_plugins.api.embedding import (
    CALLS_OF_A_FEATURE,
    CALLS_OF_A_GROUP,
    CALLS_OF_A_PART,
    CALLS_OF_A_STEP,
    PoolingSeconds,
)

__all__ = ["FeatureUse", "NoWorth", "StepPrices", "Worth", "WorthInBytes", "WorthInSeconds"]

Group = Sequence[str]
ID_BYTES = 8
FLOAT_BYTES = 4


class Worth(ABC):
    """Weighs groups by what sampled batches show about them."""

    def __init__(self, sample: SampledBatches) -> None:
        self._sample = sample

    @abstractmethod
    def saved(self, name: str, group: Group) -> dict[str, float]:
        """What the feature saves in a group, by kind."""

    @abstractmethod
    def cost(self, group: Group) -> dict[str, float]:
        """What the group costs, by kind."""

    @abstractmethod
    def words(self, parts: Mapping[str, float]) -> str:
        """Savings or costs, as a clause."""

    def knows(self, name: str) -> bool:
        """Whether the feature was weighed at all."""
        return True

    def settled(self, groups: Sequence[tuple[str, ...]]) -> SettledGroups:
        """The groups that pay together, among groups each of which pays."""
        return SettledGroups(tuple(groups))

    @property
    def sure(self) -> float:
        """How many times its cost a group must save."""
        return 1.0

    @property
    def spared(self) -> float:
        """The most by which two groups are worth more as one; infinite if that is unknown."""
        return math.inf

    def net(self, group: Group) -> float:
        """What a group saves, minus what it must save to be chosen."""
        saved = sum(sum(self.saved(name, group).values()) for name in group)
        return saved - self.sure * sum(self.cost(group).values())


class SettledGroups(NamedTuple):
    """The groups that are deduplicated in the end."""

    groups: tuple[tuple[str, ...], ...]
    why: tuple[str, ...] = ()
    """Why other groups are not, though each of them would pay."""


class WorthInBytes(Worth):
    """Weighs groups by the bytes per sample between reader and trainer: ids saved against the
    inverse lookup.

    A group g saves Σ_f 8 · l(f) · (1 - 1 / F(f, g)) bytes of the ids of its features f, and costs
    2 · w(U) for its inverse lookup. w = 1, 2, 4 or 8 bytes per sample suffice to number U unique
    samples; they count twice, to cover the work of making and using the lookup.
    """

    LOOKUPS = 2

    def saved(self, name: str, group: Group) -> dict[str, float]:
        factor = self._sample.factors(group)[name]
        return {"ids": ID_BYTES * self._sample.length(name) * (1 - 1 / factor)}

    def cost(self, group: Group) -> dict[str, float]:
        largest = max(0, self._sample.most_unique(group) - 1)
        return {"lookup": float(self.LOOKUPS * np.min_scalar_type(largest).itemsize)}

    def words(self, parts: Mapping[str, float]) -> str:
        return f"{sum(parts.values()):.1f} bytes a sample"


@dataclass(frozen=True, kw_only=True)
class FeatureUse:
    """How a model uses a feature."""

    sums: tuple[int, ...] = ()
    """D of each table that yields one sum per sample."""
    rows: tuple[int, ...] = ()
    """D of each table that yields single embeddings."""
    kept_ids: float = 1.0
    """The number of ids that `preprocess` keeps, over the number that the reader delivers."""


@dataclass(frozen=True, kw_only=True)
class StepPrices:
    """The prices of a step, in seconds on this device and over these links."""

    conversion: Mapping[str, float]
    """To convert a batch's samples, by feature."""
    lookup: Mapping[int, float]
    """To look up a row of D floats for a copy of a sample, by D."""
    copy: float
    """To copy a float to a sample, and to sum its gradient."""
    byte: float = 0.0
    """To send a byte in an all-to-all; 0 on one rank."""
    carried: float = 1.0
    """The bytes in which floats are sent, over their own size: fewer with codecs."""
    call: float
    """For an operation on a small tensor, including the Python around it."""
    waits: float = 0.0
    """To wait for the exchanges of a further part to begin, whatever they send; 0 on one rank."""
    pooling: Mapping[str, PoolingSeconds]
    """To pool a batch's sequences, by feature, if its pooling is known."""


MOVES = 2.0
"""How many copies a rank makes of each row that it exchanges, besides the exchange; each is priced
as one expansion."""


class WorthInSeconds(Worth):
    """Weighs groups by the seconds of one rank's step."""

    def __init__(
        self,
        sample: SampledBatches,
        batch_size: int,
        prices: StepPrices,
        uses: Mapping[str, FeatureUse],
    ) -> None:
        super().__init__(sample)
        self._batch_size = batch_size
        self._prices = prices
        self._uses = uses

    def knows(self, name: str) -> bool:
        return name in self._prices.conversion

    def net(self, group: Group) -> float:
        return super().net(group) if all(map(self.knows, group)) else -math.inf

    def settled(self, groups: Sequence[tuple[str, ...]]) -> SettledGroups:
        """The groups that pay together.

        A step that deduplicates anything pays a fixed cost. It pays another one if it deduplicates
        features that are summed: their collection is then looked up in parts, each with its own
        exchanges.
        """
        sums = [group for group in groups if self._are_sums(group)]
        kept, why = tuple(groups), []
        prices = self._prices
        a_part, beside = CALLS_OF_A_PART * prices.call + prices.waits, CALLS_OF_A_STEP * prices.call
        for some, costs, what in ((sums, a_part, "sums"), (kept, beside, "anything")):
            left = [group for group in some if group in kept]
            gain, pays = sum(map(self.net, left)), self.sure * costs
            if left and gain <= pays:
                kept = tuple(group for group in kept if group not in left)
                names = ", ".join(name for group in left for name in group)
                why.append(
                    f"left as they are after all, {names}: together they would save "
                    f"{self.words({'': gain})} a step, and a step that deduplicates {what} pays "
                    f"{self.words({'': pays})}"
                )
        return SettledGroups(kept, tuple(why))

    def _are_sums(self, group: Group) -> bool:
        return not any(self._uses[name].rows for name in group)

    @property
    def sure(self) -> float:
        return 1.25

    @property
    def spared(self) -> float:
        """The calls of a group: what else it costs is the sum over its features, none of which
        saves more in a larger group. And a picosecond, by which rounded sums do not differ."""
        return self.sure * self._prices.call * CALLS_OF_A_GROUP + 1e-12

    def saved(self, name: str, group: Group) -> dict[str, float]:
        prices, use = self._prices, self._uses.get(name, FeatureUse())
        ids = self._ids(name)
        spared = ids * (1 - 1 / self._sample.factors(group)[name])
        samples = self._batch_size * (1 - self._sample.unique_share(group))
        floats = sum(dim * spared for dim in use.rows) + sum(dim * samples for dim in use.sums)
        tables = len(use.rows) + len(use.sums)
        sent = tables * ID_BYTES * spared + 2 * FLOAT_BYTES * prices.carried * floats
        found = {
            "lookup": sum(prices.lookup[dim] * spared for dim in (*use.rows, *use.sums)),
            "exchange": prices.byte * sent + MOVES * prices.copy * floats,
        }
        if name in prices.pooling and use.rows:
            pooling = prices.pooling[name]
            found["pooling"] = max(0.0, pooling.all - pooling.unique)
        return found

    def cost(self, group: Group) -> dict[str, float]:
        prices, copied, tables = self._prices, 0.0, 0
        for name in group:
            use = self._uses.get(name, FeatureUse())
            copied += self._batch_size * sum(use.sums)
            tables += len(use.rows) + len(use.sums)
            if name not in prices.pooling:
                copied += self._ids(name) * sum(use.rows)
        more = [one.unique - one.all for one in map(prices.pooling.get, group) if one is not None]
        return {
            "pooling": sum(max(0.0, seconds) for seconds in more),
            "conversion": sum(prices.conversion[name] for name in group),
            "expansion": prices.copy * copied,
            "handling": prices.call * (CALLS_OF_A_GROUP + CALLS_OF_A_FEATURE * tables),
        }

    def words(self, parts: Mapping[str, float]) -> str:
        kinds = [
            f"{1e3 * seconds:.2g} ms" + f" of {kind}" * bool(kind)
            for kind, seconds in parts.items()
            if seconds >= 5e-6
        ]
        return ", ".join(kinds[:-1]) + (" and " if len(kinds) > 1 else "") + (kinds or ["0 ms"])[-1]

    def _ids(self, name: str) -> float:
        """The number of a feature's ids in a batch that are looked up."""
        kept = self._uses.get(name, FeatureUse()).kept_ids
        return self._batch_size * self._sample.length(name) * kept


class NoWorth(Worth):
    """The worth of features that the model does not look up, or of all if the model is unknown."""

    def knows(self, name: str) -> bool:
        return False

    def saved(self, name: str, group: Group) -> dict[str, float]:
        return {}

    def cost(self, group: Group) -> dict[str, float]:
        return {}

    def words(self, parts: Mapping[str, float]) -> str:
        return "nothing"

"""The worth of deduplication: what it saves of a step, and what it costs, in seconds or in bytes.

For a feature f in group g, with B samples of which U are unique, N ids of which N_u are kept, and
rows of D floats, a step saves

    lookup     (N - N_u) rows read, and updated by their gradients
    exchange   8 (N - N_u) bytes of ids; and 2 * 4 D (N - N_u) of rows and their gradients, or
               2 * 4 D (B - U) of sums, fewer by codecs: over the links, and through a rank's copies
    pooling    its pooling on all samples, less the same on unique ones

and pays for

    conversion ids compared and copied, and the inverse lookup
    expansion  B rows of D floats, whose gradients are summed again; N of them where nobody knows
               a pooling of the feature
    pooling    where a pooling of unique samples takes longer
    handling   the calls of a group, and of each feature that is looked up otherwise than others.

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
    OfPooling,
)

__all__ = ["Bytes", "FeatureUse", "Nothing", "Seconds", "StepPrices", "Worth"]

Group = Sequence[str]
ID_BYTES = 8
FLOAT_BYTES = 4


class Worth(ABC):
    """Weighs groups by what sampled batches show of them."""

    def __init__(self, sample: SampledBatches) -> None:
        self._sample = sample

    @abstractmethod
    def saved(self, name: str, group: Group) -> dict[str, float]:
        """The savings of the feature's group, by kind."""

    @abstractmethod
    def cost(self, group: Group) -> dict[str, float]:
        """The cost of the group, by kind."""

    @abstractmethod
    def words(self, parts: Mapping[str, float]) -> str:
        """The savings, or the costs, as a clause."""

    def knows(self, name: str) -> bool:
        """Whether the feature was weighed at all."""
        return True

    def settled(self, groups: Sequence[tuple[str, ...]]) -> Settled:
        """Of the groups that each pay, those that pay together."""
        return Settled(tuple(groups))

    @property
    def sure(self) -> float:
        """The multiple of its cost that a group must save."""
        return 1.0

    def net(self, group: Group) -> float:
        """The savings of a group, minus what it must save to be chosen."""
        saved = sum(sum(self.saved(name, group).values()) for name in group)
        return saved - self.sure * sum(self.cost(group).values())


class Settled(NamedTuple):
    """The groups that are deduplicated after all."""

    groups: tuple[tuple[str, ...], ...]
    why: tuple[str, ...] = ()
    """Why others are not, though they would pay by themselves."""


class Bytes(Worth):
    """Bytes of a sample on its way from reader to trainer: ids, against the inverse lookup.

    A group g saves Σ_f 8 · l(f) · (1 - 1 / F(f, g)) bytes of the ids of its features f, and costs 2
    · w(U) for its inverse lookup: w = 1, 2, 4 or 8 bytes a sample suffice to number U unique
    samples, and the work to find and to follow them counts as if they were sent twice.
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
    """The uses that a model makes of a feature."""

    sums: tuple[int, ...] = ()
    """D of each table that yields a sum for each sample."""
    rows: tuple[int, ...] = ()
    """D of each table that yields embeddings one by one."""
    kept_ids: float = 1.0
    """The ids that `preprocess` leaves, over those that the reader delivers."""


@dataclass(frozen=True, kw_only=True)
class StepPrices:
    """Seconds on this device and over these links."""

    conversion: Mapping[str, float]
    """To convert a batch's samples of a feature."""
    lookup: Mapping[int, float]
    """To look up a row of D floats for a copy of a sample."""
    copy: float
    """To copy a float to a sample, and to sum it into its gradient."""
    byte: float = 0.0
    """To send a byte by an all-to-all; 0 on one rank."""
    carried: float = 1.0
    """The bytes in which floats are sent, over their own: fewer by codecs."""
    call: float
    """The seconds of an operation on a small tensor, with the Python around it."""
    waits: float = 0.0
    """The seconds until the exchanges of a further part begin, whatever they send; 0 on one
    rank."""
    pooling: Mapping[str, OfPooling]
    """To pool a batch's sequences, by feature; those of which a pooling is known."""


MOVES = 2.0
"""The copies that a rank makes of a row that it exchanges, beside the exchange, each priced as one
expansion."""


class Seconds(Worth):
    """Seconds of a step of one rank."""

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

    def settled(self, groups: Sequence[tuple[str, ...]]) -> Settled:
        """A step that deduplicates anything pays a fixed cost, and another one for sums: their
        collection is then looked up in parts, each with exchanges of its own."""
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
        return Settled(kept, tuple(why))

    def _are_sums(self, group: Group) -> bool:
        return not any(self._uses[name].rows for name in group)

    @property
    def sure(self) -> float:
        return 1.25

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
        """The ids of a batch that are looked up."""
        kept = self._uses.get(name, FeatureUse()).kept_ids
        return self._batch_size * self._sample.length(name) * kept


class Nothing(Worth):
    """The worth of features that the model does not look up, or where the model is not known."""

    def knows(self, name: str) -> bool:
        return False

    def saved(self, name: str, group: Group) -> dict[str, float]:
        return {}

    def cost(self, group: Group) -> dict[str, float]:
        return {}

    def words(self, parts: Mapping[str, float]) -> str:
        return "nothing"

"""The compute of a rank's step beside lookups and exchanges: dense layers, poolings, reading.

All is in seconds of one rank, forward and backward, and in proportion to samples: of a feature's
pooling, a part to all samples, and a part to the unique samples of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

from recd_plugins.errors import DataError

__all__ = ["Compute", "FeatureCompute"]


@dataclass(frozen=True, kw_only=True)
class FeatureCompute:
    """The seconds that one feature takes, of each sample."""

    pooled: float = 0.0
    """Seconds of a unique sample that is pooled, by a module behind its embeddings."""
    queried: float = 0.0
    """Seconds of each sample, unique or not, whose own query the pooling weighs embeddings by."""
    expanded: float = 0.0
    """Seconds of a sample that gets the row of its unique sample, and adds its gradient to it."""
    converted: float = 0.0
    """Seconds of a sample that the loader compares with others."""
    activations: float = 0.0
    """Bytes that a pooling keeps of a sample until backward."""


@dataclass(frozen=True, kw_only=True)
class Compute:
    """The seconds that a model takes of one rank: measured on this device, or counted for a data
    sheet's."""

    fixed: float = 0.0
    """Seconds of a step, whatever its batch: TorchRec's own Python, and an optimizer's."""
    dense: float = 0.0
    """Seconds of a sample in all that is no pooling: dense layers, interaction, loss."""
    features: Mapping[str, FeatureCompute] = field(default_factory=dict)
    """The compute by feature; those without an entry take nothing."""
    reading: float = 0.0
    """Seconds of a sample in the loader, without conversion."""
    call: float = 0.0
    """Seconds of an operation on a small tensor, with the Python around it."""
    dense_bytes: float = 0.0
    """Bytes of the dense parameters, whose gradients all ranks reduce."""
    dense_carried: float = 1.0
    """What travels of them, over that: less where they travel in fewer bits."""
    activations: float = 0.0
    """Bytes that all but poolings keep of a sample until backward."""
    ranks: int = 1
    """Ranks that shared the device, or the processor's cores, when this was measured: what they
    take from each other is in the seconds, and in no other number of ranks'."""
    measured: bool = False
    """Whether a clock found the seconds, rather than a data sheet."""

    def __post_init__(self) -> None:
        seconds = {"fixed": self.fixed, "dense": self.dense, "reading": self.reading}
        seconds["call"] = self.call
        for name, one in self.features.items():
            seconds |= {f"{name}: {part}": value for part, value in vars(one).items()}
        for name, value in seconds.items():
            if not 0 <= value < float("inf"):
                raise DataError(f"compute: {name} must be finite, and 0 or more, but is {value}.")

    def ms(self, batch_size: float, unique: Mapping[str, float]) -> dict[str, float]:
        """Milliseconds of a step with B samples, by part, of which a share u(f) in 0 to 1 are
        `unique` samples; features that `unique` is silent on are not deduplicated.

        fixed, dense       fixed, B dense
        pooling            sum over f of B (u(f) pooled(f) + queried(f)), u = 1 where f is not
                           deduplicated
        expansion          sum over deduplicated f of B expanded(f)
        conversion         sum over deduplicated f of B converted(f), in the loader
        reading            B reading, in the loader
        """
        each, dedup = self.features.items(), [self.features.get(f) for f in unique]
        found = {
            "fixed": self.fixed,
            "dense": batch_size * self.dense,
            "pooling": batch_size
            * sum(unique.get(f, 1.0) * one.pooled + one.queried for f, one in each),
            "expansion": batch_size * sum(one.expanded for one in dedup if one),
            "conversion": batch_size * sum(one.converted for one in dedup if one),
            "reading": batch_size * self.reading,
        }
        return {part: 1000 * seconds for part, seconds in found.items()}

    def memory(self, batch_size: float, unique: Mapping[str, float]) -> float:
        """Bytes of activations, and of dense parameters four times over: weights, gradients, and
        the two states of Adam."""
        pooled = sum(unique.get(f, 1.0) * one.activations for f, one in self.features.items())
        return 4 * self.dense_bytes + batch_size * (self.activations + pooled)

    def slower(self, times: float) -> Compute:
        """The same on a device that takes so many times the seconds."""
        features = {
            name: dataclasses.replace(
                one,
                pooled=times * one.pooled,
                queried=times * one.queried,
                expanded=times * one.expanded,
                converted=times * one.converted,
            )
            for name, one in self.features.items()
        }
        return dataclasses.replace(
            self,
            fixed=times * self.fixed,
            dense=times * self.dense,
            reading=times * self.reading,
            call=times * self.call,
            features=features,
        )

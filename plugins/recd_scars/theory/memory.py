"""What fits: a device's memory is shared by cached rows and the batch."""

from __future__ import annotations

from dataclasses import dataclass

from recd_plugins.api import RegistryError

__all__ = ["Memory"]


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Of a device, in numbers."""

    capacity: float
    """M: numbers that fit, after what does not depend on batch or cache."""
    per_sample: float
    """a: numbers that one sample's activations take."""
    width: int
    """d: numbers in a row."""
    least: float = 1.0
    """The smallest batch that is of use: communication alone may be least in one of a sample."""

    def __post_init__(self) -> None:
        needed = self.least * self.per_sample
        if self.per_sample <= 0 or self.width <= 0 or self.capacity < needed:
            samples = "one sample" if self.least == 1 else f"{self.least:,.0f} samples"
            raise RegistryError(
                f"memory for {self.capacity:,.0f} numbers does not hold {samples} of "
                f"{self.per_sample:,.0f}: give more memory, or a smaller model."
            )

    def batch_size(self, cached: int) -> float:
        """b = (M - |C| d) / a: what is left for samples (equation 7)."""
        return (self.capacity - cached * self.width) / self.per_sample

    @property
    def most_cached(self) -> int:
        """The rows that leave room for the smallest batch."""
        return int((self.capacity - self.least * self.per_sample) // self.width)

"""What the `build` of each slot's record may know, with what its neighbour slots built."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from recd_plugins.data.dataset import Tables
from recd_plugins.data.schema import Schema
from recd_plugins.registry.choices import Registry
from recd_plugins.slots import SLOTS, Context

if TYPE_CHECKING:
    from recd_plugins.data.batch import Batch

__all__ = ["Contexts"]


@dataclass(frozen=True, kw_only=True)
class Contexts:
    """Of one registry, on one device."""

    registry: Registry
    device: Literal["cpu", "cuda"]
    read: Callable[[int, int], Iterable[Batch]]
    """The train split's batches of a rank, of so many ranks."""

    def of(self, slot: str, schema: Schema | None = None, tables: Tables | None = None) -> Context:
        """A slot's; its neighbours are built for it, with the same schema."""
        train = self.registry.train
        profiles = slot in ("sharding", "cache") and "dataset" in self.registry.choices
        return Context(
            device=self.device,
            seed=0 if slot in ("dataset", "etl") else train.seed,
            folder=self.registry.folder,
            batch_size=train.batch_size,
            fused=train.optimizer.fused_params(),
            schema=schema,
            tables=tables,
            batches=(lambda: self.read(0, train.ranks)) if profiles else None,
            neighbours=self._neighbours(slot, schema),
        )

    def _neighbours(self, slot: str, schema: Schema | None) -> dict[str, Any]:
        """What the slots built that the slot's records use."""
        built: dict[str, Any] = {}
        uses = {use for choice in self.registry.chosen(slot) for use in choice.record.uses}
        for use in sorted(uses):
            choices = self.registry.chosen(use)
            parts = [choice.build(self.of(use, schema)) for choice in choices]
            match SLOTS[use].fills:
                case "one":
                    built[use] = parts[0] if parts else None
                case "many":
                    built[use] = parts
                case "by feature":
                    built[use] = {
                        choice.features[0]: part
                        for choice, part in zip(choices, parts, strict=True)
                    }
        return built

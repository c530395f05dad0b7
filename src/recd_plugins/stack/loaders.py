"""The batches of a rank, as the reader of a registry yields them from tables."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from recd_plugins.data.dataset import Split, Tables
from recd_plugins.data.schema import Schema
from recd_plugins.registry.choices import Registry
from recd_plugins.registry.contexts import Contexts
from recd_plugins.registry.delivery import Delivery
from recd_plugins.registry.feature_steps import FeatureSteps
from recd_plugins.slots import Loader, Reader
from recd_plugins.slots.built import LOADER, check_parts
from recd_plugins.stack.usage import Usage

__all__ = ["Loaders"]


class Loaders:
    """Opens loaders of a registry's reader, and checks the batches of each."""

    def __init__(
        self,
        registry: Registry,
        contexts: Contexts,
        features: FeatureSteps,
        usage: Usage,
        schema: Callable[[], Schema],
    ) -> None:
        """`schema` returns the schema of the batches."""
        self._registry, self._contexts = registry, contexts
        self._features, self._usage, self._schema = features, usage, schema

    def open(self, tables: Tables, rank: int, world_size: int, split: Split) -> Loader:
        """The batches of a rank in the reader's own order."""
        context = dataclasses.replace(self._contexts.of("reader"), delivery=self.delivery)
        choice = self._registry.one("reader")
        reader: Reader = choice.build(context)
        transform = self._features.transform
        with choice.named("when asked for a loader"):
            loader: Loader = reader.loader(
                tables[split],
                rank=rank,
                world_size=world_size,
                batch_size=self._registry.train.batch_size,
                split=split,
                transform=transform,
            )
        check_parts(loader, "Loader", LOADER, f"{choice.who}: its `loader` returned")
        if getattr(loader, "checks_ids", False):
            return loader
        from recd_plugins.slots.batch_check import BatchCheck, checked

        check = BatchCheck(
            self._schema(),
            f"{choice.who}: its loader yielded",
            converted=bool(getattr(self._features.converter, "groups", ())),
        )
        return checked(
            loader, check, lambda device: self._usage.unseen(choice, device), choice.named
        )

    def delivery(self) -> Delivery:
        """What another process needs to make the same batches."""
        converter, columns = self._features.converter, self._features.columns
        return Delivery.of(self._registry, None if converter is None else converter.groups, columns)

"""The batches of a rank, as the reader of a registry yields them from tables."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from recd_plugins.data.dataset import Split, Tables
from recd_plugins.data.schema import Schema
from recd_plugins.registry.choice import Choice
from recd_plugins.registry.contexts import Contexts
from recd_plugins.registry.delivery import Delivery
from recd_plugins.registry.feature_steps import FeatureSteps
from recd_plugins.registry.registry import Registry
from recd_plugins.slots import Loader, Reader
from recd_plugins.slots.built import LOADER, check_parts
from recd_plugins.stack.usage import Usage

if TYPE_CHECKING:
    from recd_plugins.data.preprocess.batch_transform import BatchTransform

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
        asked = False

        def delivery() -> Delivery:
            nonlocal asked
            asked = True
            return self.delivery()

        context = dataclasses.replace(self._contexts.of("reader"), delivery=delivery)
        choice = self._registry.one("reader")
        reader: Reader = choice.build(context)
        self._usage.found(choice.notices(reader))
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
        return self._checked(loader, choice, transform, lambda: asked, split)

    def _checked(
        self,
        loader: Loader,
        choice: Choice,
        transform: BatchTransform | None,
        is_delivered: Callable[[], bool],
        split: Split,
    ) -> Loader:
        """The loader, its batches checked by what it does not check itself; a notice of those that
        come without the `transform`, or in another size than a step's. Where it `is_delivered`,
        another process has the transform by the delivery."""
        from recd_plugins.data.reader.local_loader import LocalLoader
        from recd_plugins.slots.batch_check import BatchCheck, checked

        groups = getattr(self._features.converter, "groups", ())
        steps = [*self._registry.chosen("preprocess")]
        if groups:
            steps += self._registry.chosen("dedup")

        def sized(samples: int) -> None:
            if split == "train":
                self._usage.other_sizes(choice, samples)

        def came() -> None:
            if not (transform is None or transform.taken_up or is_delivered()):
                self._usage.untransformed(choice, steps)

        if type(loader) is LocalLoader:  # it has a transform from the beginning, or none
            if transform is not None and loader.source.transform is None:
                self._usage.untransformed(choice, steps)
            return loader
        checks_ids = bool(getattr(loader, "checks_ids", False))
        if checks_ids and (transform is None or is_delivered()):
            return loader
        check = BatchCheck(
            self._schema(),
            f"{choice.who}: its loader yielded",
            ids=not checks_ids,
            converted=bool(groups),
        )
        unseen = partial(self._usage.unseen, choice)
        return checked(loader, check, unseen, choice.named, came, sized)

    def delivery(self) -> Delivery:
        """What another process needs to make the same batches."""
        converter, columns = self._features.converter, self._features.columns
        return Delivery.of(self._registry, None if converter is None else converter.groups, columns)

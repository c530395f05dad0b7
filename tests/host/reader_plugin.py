"""A reader and a transform of a stranger's: one of their ids is rarely that of another row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.api import Config, Context, PreprocessRecord, ReaderRecord, hookimpl
from recd_plugins.api.batch import Batch, LocalLoader, WrappedLoader
from recd_plugins.api.data import Schema
from recd_plugins.api.reading import LocalReader, LocalReaderConfig
from recd_plugins.api.rows import with_ids


@dataclass(frozen=True, kw_only=True)
class RareConfig(Config):
    """Where the id is."""

    at: int = 2
    """The batch, from 0 on."""
    id: int = 99
    """The last id of the first feature there."""
    device: str = "cpu"
    """The device on which batches come."""
    lasts: int | None = None
    """The batches that an epoch has, of those of the local reader; by default all."""
    says: int | None = None
    """What `__len__` says; by default as the local reader's."""
    smaller: int = 1
    """By what its batches are smaller than they are to be."""
    spreads: bool = False
    """Whether its loader begins anywhere in the epoch."""
    transforms: Literal["inside", "outside", "never", "never, bare", "never, wrapped"] = "inside"
    """Who calls the transform: the local reader, its own loader, or nobody; and what its loader is
    then, if not its own: the local reader's, or one in front of that."""


class RareReader:
    def __init__(self, config: RareConfig, context: Context) -> None:
        self.config, self.seed = config, context.seed

    def loader(self, table: Any, *, transform: Any = None, **share: Any) -> Any:
        local = LocalReader(LocalReaderConfig(), seed=self.seed, pin_memory=False)
        calls = self.config.transforms
        share["batch_size"] //= self.config.smaller
        inner = local.loader(table, transform=transform if calls == "inside" else None, **share)
        if calls == "never, bare":
            return inner
        if calls in ("never, wrapped", "outside"):
            return InFront(inner, transform if calls == "outside" else None)
        kind = SpreadLoader if self.config.spreads else RareLoader
        return kind(inner, self.config)


class RareLoader:
    """The local reader's batches, but for one id."""

    def __init__(self, inner: LocalLoader, config: RareConfig) -> None:
        self.inner, self.config = inner, config
        self.own = "its own"

    def __len__(self) -> int:
        return len(self.inner) if self.config.says is None else self.config.says

    def __iter__(self) -> Iterator[Batch]:
        for number, batch in enumerate(self.inner):
            if number == self.config.lasts:
                break
            yield self.changed(batch) if number == self.config.at else batch

    def changed(self, batch: Batch) -> Batch:
        ids = batch.features.values().clone()
        ids[-1] = self.config.id
        features = with_ids(batch.features, ids)
        return replace(batch, features=features).to(torch.device(self.config.device))

    def state_dict(self) -> dict[str, Any]:
        return self.inner.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.inner.load_state_dict(state)


class InFront(WrappedLoader):
    """The local reader's loader, and a transform of its batches."""

    def __init__(self, inner: LocalLoader, transform: Callable[[Batch], Batch] | None) -> None:
        self._loader, self._transform = inner, transform

    def __iter__(self) -> Iterator[Batch]:
        for batch in self._loader:
            yield batch if self._transform is None else self._transform(batch)


class SpreadLoader(RareLoader):
    def spread(self, blocks: range, size: int, first: int | None = None) -> Iterator[Any]:
        for block, batch in self.inner.spread(blocks, size, first):
            yield block, self.changed(batch) if block == self.config.at else batch

    @property
    def places(self) -> int:
        return self.inner.places


class RareTransform:
    """An id beyond what its schema says, in one batch of the process."""

    def __init__(self, config: RareConfig, context: Context) -> None:
        self.config, self.calls = config, 0

    def __call__(self, features: KeyedJaggedTensor) -> KeyedJaggedTensor:
        ids = features.values().clone()
        if self.calls == self.config.at:
            ids[-1] = self.config.id
        self.calls += 1
        return with_ids(features, ids)

    def schema(self, schema: Schema) -> Schema:
        return schema


def record(kind: Any, build: Callable[[RareConfig, Context], Any]) -> Any:
    return kind(name="rare", summary="One id is wrong.", config=RareConfig, build=build)


@hookimpl
def recd_reader() -> list[Any]:
    return [record(ReaderRecord, RareReader)]


@hookimpl
def recd_preprocess() -> list[Any]:
    return [record(PreprocessRecord, RareTransform)]

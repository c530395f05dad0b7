"""Checks a reader's batches against the schema: an error names the reader and the part.

Without this check a model would fail deep in its code on a batch that does not fit, and an id
without a row would look up another row, or end the process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.data.batch import Batch
from recd_plugins.data.schema import Schema
from recd_plugins.errors import DataError, PluginError, check_made, listed, nearest, so_many
from recd_plugins.planning.access.sample import SpreadsBatches
from recd_plugins.slots.builds import Loader
from recd_plugins.sparse.deduplicated import DeduplicatedFeatures
from recd_plugins.sparse.features import SparseFeatures
from recd_plugins.sparse.id_bounds import IdBounds
from recd_plugins.sparse.ikjt import check_lookup
from recd_plugins.sparse.kept_batches import KeptBatches
from recd_plugins.sparse.wrapped_loader import WrappedLoader

__all__ = ["BatchCheck", "CheckedLoader", "Named", "checked", "kind_of"]

Named = Callable[[str], AbstractContextManager[None]]
"""Takes when something is done, as `choice.named` does."""

PIPELINED = 3
"""The batches that TorchRec's pipeline holds at a time: of a step, and of the two that follow."""
PARTS = ("to", "record_stream", "pin_memory")
"""The methods that a batch asks of what a converter made."""


class BatchCheck:
    """Checks each batch: types and shapes of its parts, and all of its ids."""

    def __init__(
        self, schema: Schema, whose: str, *, ids: bool = True, converted: bool = False
    ) -> None:
        """`whose` opens the messages: the reader's loader. `ids` is false if the reader has
        already checked the ids against the schema. `converted`: whether each batch has a
        `dedup`."""
        self._schema = schema
        self._converted = converted
        self._whose = whose
        self._ids = ids
        self._num_ids = {one.name: one.num_ids for one in schema.sparse}
        self._bounds = IdBounds(self._num_ids)
        self.unseen: torch.device | None = None
        """The device on which a batch came whose ids nobody looked at, if one did."""

    def __call__(self, batch: Any) -> None:
        """`PluginError` or `DataError` if it is not a batch of the schema."""
        check_made(batch, Batch, self._whose, "Yield those of recd_plugins.api.batch.")
        size = self._check_tensors(batch)
        features = batch.features
        if isinstance(features, SparseFeatures) or not isinstance(features, KeyedJaggedTensor):
            raise PluginError(
                f"{self._whose} features that are a {type(features).__name__}, where they must be "
                "a KeyedJaggedTensor."
            )
        self._check_converted(batch.dedup)
        shared = batch.dedup if isinstance(batch.dedup, DeduplicatedFeatures) else None
        if not features.variable_stride_per_key() and features.keys() and features.stride() != size:
            raise PluginError(
                f"{self._whose} features of {so_many(features.stride(), 'row')} for "
                f"{so_many(size, 'label')}. Give each sample a row of every feature: one without "
                "ids is an empty one."
            )
        if shared is not None and shared.inverse_lookup.shape[-1] != size:
            raise PluginError(
                f"{self._whose} a `dedup` of {so_many(shared.inverse_lookup.shape[-1], 'sample')} "
                f"for {size} labels. Let the converter give each sample a place in its inverse "
                "lookup."
            )
        converted = shared.kjt if shared is not None else batch.dedup
        kjts = [one for one in (features, converted) if isinstance(one, KeyedJaggedTensor)]
        whole = converted is None or isinstance(converted, KeyedJaggedTensor)
        self._check_keys([*chain.from_iterable(kjt.keys() for kjt in kjts)], whole=whole)
        if not self._ids:
            return
        for kjt in kjts:
            if not self._bounds.check(kjt, self._whose):
                self.unseen = kjt.values().device
        if shared is not None and shared.inverse_lookup.is_cpu:
            for group, count, lookup in zip(
                shared.groups, shared.unique_counts, shared.inverse_lookup, strict=True
            ):
                check_lookup(lookup, count, group)

    def overwritten(self, error: DataError) -> PluginError:
        return PluginError(f"{self._whose} batches that change afterwards: {error}")

    def miscounted(self, what: str) -> PluginError:
        return PluginError(
            f"{self._whose} {what}. Let `__len__` say how many batches `__iter__` yields from the "
            "beginning of an epoch to its end: as many on every rank."
        )

    def _check_tensors(self, batch: Batch) -> int:
        """The number of samples."""
        parts = {"dense": batch.dense, "labels": batch.labels, "weights": batch.weights}
        for name, part in parts.items():
            if not isinstance(part, Tensor) or part.dtype != torch.float32:
                found = part.dtype if isinstance(part, Tensor) else type(part).__name__
                raise PluginError(
                    f"{self._whose} {name} of {found}, where they must be a tensor of float32."
                )
        size, targets = len(batch.labels), len(self._schema.targets)
        if not size:
            raise PluginError(
                f"{self._whose} a batch of no samples, of which TorchRec can make none. Leave such "
                "batches out on all ranks, or pad them with samples of weight 0."
            )
        shapes = {
            "dense": (size, self._schema.dense_width),
            "labels": (size,) if targets <= 1 else (size, targets),
            "weights": (size,),
        }
        for name, wanted in shapes.items():
            if tuple(parts[name].shape) != wanted:
                raise PluginError(
                    f"{self._whose} {name} of shape {list(parts[name].shape)}, where the schema "
                    f"asks for {list(wanted)} in a batch of {so_many(size, 'sample')}."
                )
        return size

    def _check_converted(self, made: Any) -> None:
        if made is None and self._converted:
            raise PluginError(
                f"{self._whose} a batch without the `dedup` that registry.yaml asks for. Let the "
                "loader yield `transform(batch)`, by the `transform` that it is given."
            )
        lacks = [] if made is None else [part for part in PARTS if not hasattr(made, part)]
        if lacks:
            raise PluginError(
                f"{self._whose} `dedup` of {type(made).__name__}, which has no {lacks[0]}, but "
                "what a converter makes moves to a device with its batch. Let `convert` return an "
                "InverseKeyedJaggedTensor."
            )

    def _check_keys(self, keys: Sequence[str], *, whole: bool) -> None:
        """`whole`: whether these are all features of the batch."""
        for key in keys:
            if key not in self._num_ids:
                raise PluginError(
                    f"{self._whose} a feature {key!r}, which the schema does not have; "
                    f"{nearest(key, self._num_ids)}"
                )
        if whole and (missing := self._num_ids.keys() - keys):
            lacking = [name for name in self._num_ids if name in missing]
            raise PluginError(
                f"{self._whose} a batch without {listed(lacking, kind='feature')}, which the "
                "schema has. Give each sample a row of every feature: one without ids is an empty "
                "one."
            )


class CheckedLoader(WrappedLoader):
    """A loader that checks each batch as it comes; all else is the wrapped loader's."""

    def __init__(
        self,
        loader: Any,
        check: BatchCheck,
        unseen: Callable[[torch.device], None],
        named: Named = lambda when: nullcontext(),
        came: Callable[[], None] = lambda: None,
        sized: Callable[[int], None] = lambda samples: None,
    ) -> None:
        """`unseen` hears once of batches whose ids lie on a device, `came` of the first batch,
        and `sized` of the samples of an epoch's first. Inside of `named(when)`, an error of the
        loader's own becomes one that names whose it is."""
        self._loader, self._check, self._unseen = loader, check, unseen
        self._named, self._came, self._sized = named, came, sized
        self._is_first = True
        self._begins = True
        """Whether the loader stands at the beginning of an epoch, as far as is known."""

    def __iter__(self) -> Iterator[Batch]:
        """`PluginError` if an epoch that is read to its end has another number of batches than
        `__len__` says: ranks whose epochs end at different steps train on other samples, or wait
        for each other."""
        begins, self._begins = self._begins, False
        came, most = 0, len(self)
        held = KeptBatches("TorchRec's pipeline", "")
        with self._named("when its loader was iterated"):
            batches = iter(self._loader)
        while True:
            with self._named("when its loader was asked for a batch"):
                try:
                    batch = next(batches)
                except StopIteration:
                    break
            came += 1
            if came > most:
                raise self._check.miscounted(f"a batch beyond the {most} of an epoch")
            self._look_at(batch)
            if came > PIPELINED:
                held.take()
            try:
                held.keep(batch)
            except DataError as error:
                raise self._check.overwritten(error) from error
            if begins and came == 1:
                self._sized(len(batch.labels))
            yield batch
        if begins and came < most:
            raise self._check.miscounted(f"{came} batches in an epoch of {most}")
        self._begins = True

    def __len__(self) -> int:
        with self._named("when its loader was asked how many batches an epoch has"):
            return len(self._loader)

    @property
    def is_read(self) -> bool:
        """Whether anybody in this process has taken a batch of it."""
        return not self._is_first

    def state_dict(self) -> dict[str, Any]:
        with self._named("when its loader was asked for its state"):
            found: dict[str, Any] = self._loader.state_dict()
        return found

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._begins = False
        with self._named("when its loader was given a state"):
            self._loader.load_state_dict(state)

    def close(self) -> None:
        """A loader may have been written without it."""
        if hasattr(self._loader, "close"):
            self._loader.close()

    def _look_at(self, batch: Batch) -> None:
        if self._is_first:
            self._is_first = False
            self._came()
        before = self._check.unseen
        self._check(batch)
        if before is None and self._check.unseen is not None:
            self._unseen(self._check.unseen)


class CheckedSpreadingLoader(CheckedLoader):
    """The same of a loader that can begin anywhere in its epoch."""

    def spread(
        self, blocks: range, size: int, first: int | None = None
    ) -> Iterator[tuple[int, Batch]]:
        for block, batch in self._loader.spread(blocks, size, first):
            self._look_at(batch)
            yield block, batch

    @property
    def places(self) -> int:
        places: int = self._loader.places
        return places


def checked(
    loader: Loader,
    check: BatchCheck,
    unseen: Callable[[torch.device], None],
    named: Named = lambda when: nullcontext(),
    came: Callable[[], None] = lambda: None,
    sized: Callable[[int], None] = lambda samples: None,
) -> CheckedLoader:
    """The loader, its batches checked as they come; `came` hears of the first,
    and `sized` of the samples of an epoch's first."""
    kind = CheckedSpreadingLoader if isinstance(loader, SpreadsBatches) else CheckedLoader
    return kind(loader, check, unseen, named, came, sized)


def kind_of(loader: object) -> str:
    """The class of a loader, as whoever wrote it knows it."""
    from recd_plugins.data.preprocess.conversion import ConvertedLoader

    if isinstance(loader, CheckedLoader | ConvertedLoader):
        loader = loader._loader
    return type(loader).__name__

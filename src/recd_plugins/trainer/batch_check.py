"""The batches that a run trains on, held to the schema: an error names the reader and the part.

A model of tensors fails deep below a batch that does not fit, and an id that no table has a row for
is another row's, or ends the process.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.data.batch import Batch
from recd_plugins.data.schema import Schema
from recd_plugins.errors import DataError, PluginError, nearest
from recd_plugins.slots.built import check_made
from recd_plugins.sparse.deduplicated import DeduplicatedFeatures
from recd_plugins.sparse.ikjt import check_lookup

__all__ = ["BatchCheck"]

SPACED = 256
"""The most batches between two of which the ids are looked at."""
PARTS = ("to", "record_stream", "pin_memory")
"""The methods that a batch asks of what a converter made."""


class BatchCheck:
    """Checks each batch's shapes, and the ids of the 1st, 2nd, 4th, ... and then of every 256th:
    to look at all of them costs what reading them does."""

    def __init__(self, schema: Schema, whose: str) -> None:
        """`whose` opens the messages: the reader's loader."""
        self._schema = schema
        self._whose = whose
        self._count = 0
        self._num_ids = {one.name: one.num_ids for one in schema.sparse}

    def __call__(self, batch: Any) -> None:
        """`PluginError` or `DataError` where it is no batch of the schema."""
        check_made(batch, Batch, self._whose, "Yield those of recd_plugins.api.batch.")
        self._count += 1
        size = self._check_tensors(batch)
        features = batch.features
        if not isinstance(features, KeyedJaggedTensor):
            raise PluginError(
                f"{self._whose} features that are a {type(features).__name__}, where they must be "
                "a KeyedJaggedTensor."
            )
        self._check_converted(batch.dedup)
        shared = batch.dedup if isinstance(batch.dedup, DeduplicatedFeatures) else None
        if not features.variable_stride_per_key() and features.keys() and features.stride() != size:
            raise PluginError(
                f"{self._whose} features of {features.stride()} rows for {size} labels. Give each "
                "sample a row of every feature: one without ids is an empty one."
            )
        if shared is not None and shared.inverse_lookup.shape[-1] != size:
            raise PluginError(
                f"{self._whose} a `dedup` of {shared.inverse_lookup.shape[-1]} samples for {size} "
                "labels. Let the converter give each sample a place in its inverse lookup."
            )
        self._check_keys([*features.keys(), *(shared.kjt.keys() if shared else ())])
        seen = self._count
        if seen % SPACED == 0 or (seen < SPACED and seen & (seen - 1) == 0):
            self._check_ids(features)
            if shared is not None:
                for group, count, lookup in zip(
                    shared.groups, shared.unique_counts, shared.inverse_lookup, strict=True
                ):
                    check_lookup(lookup, count, group)
                self._check_ids(shared.kjt)

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
                "batches out, on all ranks alike, or pad them by samples of weight 0."
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
                    f"asks for {list(wanted)} in a batch of {size} samples."
                )
        return size

    def _check_converted(self, made: Any) -> None:
        lacks = [] if made is None else [part for part in PARTS if not hasattr(made, part)]
        if lacks:
            raise PluginError(
                f"{self._whose} `dedup` of {type(made).__name__}, which has no {lacks[0]}: what a "
                "converter makes goes to a device with its batch. Let `convert` return an "
                "InverseKeyedJaggedTensor."
            )

    def _check_keys(self, keys: Sequence[str]) -> None:
        for key in keys:
            if key not in self._num_ids:
                raise PluginError(
                    f"{self._whose} a feature {key!r}, which the schema has not; "
                    f"{nearest(key, self._num_ids)}"
                )

    def _check_ids(self, features: KeyedJaggedTensor) -> None:
        values, lengths = features.values(), features.lengths()
        if values.is_floating_point() or values.is_complex():
            raise PluginError(
                f"{self._whose} ids of {values.dtype}, where they must be integers: int64 or int32."
            )
        if lengths.numel() and (least := int(lengths.min())) < 0:
            raise PluginError(f"{self._whose} a row of {least} ids. A row without ids has 0.")
        if (total := int(lengths.sum())) != values.numel():
            raise PluginError(
                f"{self._whose} lengths that add up to {total} for {values.numel()} ids."
            )
        for key, ids in _by_key(features):
            if not ids.numel():
                continue
            least, most = (int(one) for one in ids.aminmax())
            if least < 0 or most >= self._num_ids[key]:
                raise DataError(
                    f"{self._whose} id {least if least < 0 else most} of feature {key!r}, outside "
                    f"[0, {self._num_ids[key]}), so that another row would be trained in its "
                    "place. Have whoever made it (the reader, a converter, a preprocess transform "
                    "and its `schema`) keep to that, or raise num_ids where the schema says it."
                )


def _by_key(features: KeyedJaggedTensor) -> Iterator[tuple[str, Tensor]]:
    ends = features.offset_per_key()
    for index, key in enumerate(features.keys()):
        yield key, features.values()[ends[index] : ends[index + 1]]

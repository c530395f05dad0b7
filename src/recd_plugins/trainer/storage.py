"""torch.distributed.checkpoint on disk without pickle: its metadata as JSON.

The stock `FileSystemWriter` pickles the file that says which tensor lies where. These
two write and read it as JSON; the tensors themselves are loaded with `weights_only`, in pieces.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    LoadPlanner,
    SavePlan,
    SavePlanner,
    WriteItem,
)
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from recd_plugins.errors import DataError
from recd_plugins.trainer.pieces import Part, alone, read_into

__all__ = ["JsonReader", "JsonWriter"]

METADATA = "metadata.json"


class JsonWriter(FileSystemWriter):
    """Writes tensors as DCP does, and `metadata.json` beside them. Only tensors are taken."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._folder = path

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        return super().write_data(plan, cast("SavePlanner", _Alone(planner)))

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        stored = {item.index: item.storage_data for results_ in results for item in results_}
        text = json.dumps(
            {
                "tensors": {
                    name: _tensor_to_json(name, value)
                    for name, value in metadata.state_dict_metadata.items()
                },
                "stored": [_stored_to_json(index, info) for index, info in stored.items()],
            }
        )
        with (self._folder / METADATA).open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())


class JsonReader(FileSystemReader):
    """Reads what `JsonWriter` wrote, onto any plan and world size."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._folder = path

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        for item in plan.items:
            stored = self.storage_data[item.storage_index]
            target = planner.resolve_tensor(item).detach()
            with (self._folder / stored.relative_path).open("rb") as file:
                part = Part(file, stored.offset, stored.length)
                read_into(target, part, item.storage_offsets, item.lengths)
            planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def check(self) -> None:
        """`DataError` where a file that the metadata names is not there, or cut short."""
        stored = self.read_metadata().storage_data or {}
        ends: dict[str, int] = {}
        for one in stored.values():
            ends[one.relative_path] = max(ends.get(one.relative_path, 0), one.offset + one.length)
        for name, end in ends.items():
            file = self._folder / name
            if not file.is_file() or file.stat().st_size < end:
                raise DataError(
                    f"{file}: is not there, or cut short. The checkpoint is damaged: remove its "
                    "folder, and --resume takes the one before."
                )

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        file = self._folder / METADATA
        try:
            said = json.loads(file.read_text())
            return Metadata(
                state_dict_metadata={
                    name: _tensor_from_json(value) for name, value in said["tensors"].items()
                },
                storage_data=dict(_stored_from_json(value) for value in said["stored"]),
                storage_meta=StorageMeta(load_id=self.load_id),
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(
                f"{file}: cannot be read ({error}). The checkpoint is damaged: remove its folder, "
                "and --resume takes the one before."
            ) from error


class _Alone:
    """Of a planner what a writer asks it for: the tensors, uncopied."""

    def __init__(self, planner: SavePlanner) -> None:
        self._planner = planner

    def resolve_data(self, item: WriteItem) -> Any:
        data = self._planner.resolve_data(item)
        return alone(data.detach()) if isinstance(data, Tensor) else data


def _tensor_to_json(name: str, value: object) -> dict[str, Any]:
    if not isinstance(value, TensorStorageMetadata):
        raise TypeError(f"{name} is no tensor; a checkpoint keeps such values in its job.json")
    return {
        "dtype": str(value.properties.dtype).removeprefix("torch."),
        "size": list(value.size),
        "chunks": [[list(chunk.offsets), list(chunk.sizes)] for chunk in value.chunks],
    }


def _tensor_from_json(value: dict[str, Any]) -> TensorStorageMetadata:
    dtype = getattr(torch, value["dtype"])
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"{value['dtype']!r} is no dtype")
    return TensorStorageMetadata(
        properties=TensorProperties(dtype=dtype),
        size=torch.Size(value["size"]),
        chunks=[
            ChunkStorageMetadata(offsets=torch.Size(offsets), sizes=torch.Size(sizes))
            for offsets, sizes in value["chunks"]
        ],
    )


def _stored_to_json(index: MetadataIndex, info: _StorageInfo) -> dict[str, Any]:
    return {
        "name": index.fqn,
        "offset": None if index.offset is None else list(index.offset),
        "file": info.relative_path,
        "at": info.offset,
        "bytes": info.length,
    }


def _stored_from_json(value: dict[str, Any]) -> tuple[MetadataIndex, _StorageInfo]:
    path = Path(value["file"])
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(f"{value['file']!r} leads out of the checkpoint")
    index = MetadataIndex(value["name"], value["offset"])
    return index, _StorageInfo(value["file"], value["at"], value["bytes"])

"""torch.distributed.checkpoint on disk without pickle, with tensors in pieces.

The stock `FileSystemWriter` pickles the file that says which tensor lies where. `JsonWriter` and
`JsonReader` write and read it as JSON; the tensors themselves are loaded with `weights_only`.
torch.distributed.checkpoint reads a stored tensor whole before it copies from it. Before it writes
a tensor that is a view, it copies it; fbgemm's tables are views of a kernel's tensor. Here a tensor
is read piece by piece and a view is written without a copy, so a table may be larger than memory.
"""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

import torch
from torch import Tensor
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
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

from recd_plugins.compat.pytorch import StoredBytes, narrow_tensor_by_index
from recd_plugins.trainer.checkpoints.files import damaged_file, refused, write_json

__all__ = ["FileSlice", "JsonReader", "JsonWriter", "alone", "read_into"]

METADATA = "metadata.json"

PIECE = 1 << 20
"""Bytes in memory at a time; one row if that is more."""


class JsonWriter(FileSystemWriter):
    """Writes tensors as DCP does, and `metadata.json` beside them. It takes only tensors."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._folder = path

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        try:
            return super().write_data(plan, cast("SavePlanner", _Alone(planner)))
        except RuntimeError as error:
            # torch's archive reports that its file is too short, not why. Other ranks would get
            # only this error, not its cause.
            cause = error.__cause__ or error.__context__
            raise cause if isinstance(cause, OSError) else error from None

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        stored = {item.index: item.storage_data for results_ in results for item in results_}
        listed = {
            "tensors": {
                name: _tensor_to_json(name, value)
                for name, value in metadata.state_dict_metadata.items()
            },
            "stored": [_stored_to_json(index, info) for index, info in stored.items()],
        }
        write_json(self._folder / METADATA, listed)


class JsonReader(FileSystemReader):
    """Reads what `JsonWriter` wrote, for any plan and world size."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._folder = path

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        for item in plan.items:
            stored = self.storage_data[item.storage_index]
            target = planner.resolve_tensor(item).detach()
            with (self._folder / stored.relative_path).open("rb") as file:
                part = FileSlice(file, stored.offset, stored.length)
                read_into(target, part, item.storage_offsets, item.lengths)
            planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        file = self._folder / METADATA
        try:
            metadata = json.loads(file.read_text())
            return Metadata(
                state_dict_metadata={
                    name: _tensor_from_json(value) for name, value in metadata["tensors"].items()
                },
                storage_data=dict(_stored_from_json(value) for value in metadata["stored"]),
                storage_meta=StorageMeta(load_id=self.load_id),
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            if refused(error):
                raise
            raise damaged_file(file, str(error)) from error


class _Alone:
    """The part of a planner that a writer uses: it resolves tensors without a copy."""

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


def _stored_to_json(index: MetadataIndex, info: StoredBytes) -> dict[str, Any]:
    return {
        "name": index.fqn,
        "offset": None if index.offset is None else list(index.offset),
        "file": info.relative_path,
        "at": info.offset,
        "bytes": info.length,
    }


def _stored_from_json(value: dict[str, Any]) -> tuple[MetadataIndex, StoredBytes]:
    path = Path(value["file"])
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(f"{value['file']!r} is outside of the checkpoint")
    index = MetadataIndex(value["name"], value["offset"])
    return index, StoredBytes(value["file"], value["at"], value["bytes"])


class FileSlice(io.RawIOBase):
    """`length` bytes of a file from `first` on, as a file."""

    def __init__(self, file: BinaryIO, first: int, length: int) -> None:
        super().__init__()
        self._file, self._first, self._length = file, first, length
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._length}[whence]
        self._at = max(0, start + offset)
        return self._at

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]
        wanted = min(len(buffer), max(0, self._length - self._at))
        self._file.seek(self._first + self._at)
        read = self._file.readinto(memoryview(buffer)[:wanted])  # type: ignore[attr-defined]
        self._at += read
        return int(read)


def read_into(
    target: Tensor, file: FileSlice, offsets: Sequence[int], sizes: Sequence[int]
) -> None:
    """Fill `target` with the part at `offsets`, of `sizes`, of the tensor that torch.save wrote.

    Rows are read piece by piece if they are stored one after another. A tensor that is read whole
    is checked against the checksum that was written with it. Raises errors of any kind if it is
    not that tensor; the checkpoint names the file, and says what to do.
    """
    # On the meta device: no number is read.
    stored = torch.load(cast("IO[bytes]", file), map_location="meta", weights_only=True)
    part = narrow_tensor_by_index(stored, offsets, sizes)
    if part.size() != target.size():
        raise ValueError(f"a tensor of {list(target.size())} is stored as {list(part.size())}")
    if not part.numel():
        return
    rows, into = (one.reshape(1) if one.dim() == 0 else one for one in (part, target))
    size, step = rows.element_size(), rows.stride(0)
    extent = 1 + sum((n - 1) * by for n, by in zip(rows.shape[1:], rows.stride()[1:], strict=True))
    disjoint = extent <= step
    each = max(1, (PIECE // size - extent) // step + 1) if disjoint else len(rows)
    file.seek(0)
    with zipfile.ZipFile(file) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/data/0"))
        with archive.open(name) as numbers:
            if start := int(rows.storage_offset()):
                numbers.seek(start * size)
            for first in range(0, len(rows), each):
                count = min(each, len(rows) - first)
                last = first + count == len(rows)
                # Read up to the next piece; the last one ends with its last row.
                wanted = ((count - 1) * step + extent if last else count * step) * size
                read = bytearray(numbers.read(wanted))
                flat = torch.frombuffer(read, dtype=rows.dtype)
                into[first : first + count].copy_(
                    flat.as_strided([count, *rows.shape[1:]], rows.stride())
                )
            if part.numel() == stored.numel():
                numbers.read()  # zipfile compares the checksum at the end


def alone(tensor: Tensor) -> Tensor:
    """The same numbers, as a tensor that fills its storage, if this needs no copy."""
    storage = tensor.untyped_storage()
    if not tensor.is_cpu or not tensor.is_contiguous() or len(storage) == tensor.nbytes:
        return tensor
    first = tensor.storage_offset() * tensor.element_size()
    own = storage[first : first + tensor.nbytes]
    return torch.empty(0, dtype=tensor.dtype, device="cpu").set_(
        own, 0, tensor.size(), tensor.stride()
    )

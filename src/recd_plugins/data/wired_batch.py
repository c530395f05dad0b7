"""A batch as a record batch of one row: what travels between processes, and lies in caches.

Each tensor is a list column, on the memory where it lay. Lengths, which are never negative, go in
as few bytes as the largest needs. An IKJT travels deduplicated, in the columns of `sparse/wire.py`
behind `dedup.`; a partial IKJT as their bytes. The schema's metadata has shapes, types and keys.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.data.batch import Batch
from recd_plugins.errors import DataError, PluginError
from recd_plugins.sparse.ikjt import InverseKeyedJaggedTensor
from recd_plugins.sparse.partial import PartialInverseKeyedJaggedTensor

__all__ = ["batch_from_record", "batch_to_record"]

KEY = b"recd_plugins.wired_batch"
DEDUP = "dedup."
TENSORS = ("dense", "labels", "weights")


def batch_to_record(batch: Batch) -> pa.RecordBatch:
    """One row of a batch on the CPU; `PluginError` for a `dedup` that is none of the host's."""
    wired = _Wired()
    for name in TENSORS:
        wired.add(name, getattr(batch, name))
    wired.add_kjt("features", batch.features)
    wired.head["hot_under"] = batch.hot_under
    metadata: dict[bytes, bytes] = {}
    match batch.dedup:
        case None:
            wired.head["dedup"] = None
        case KeyedJaggedTensor():
            wired.head["dedup"] = "kjt"
            wired.add_kjt("dedup", batch.dedup)
        case InverseKeyedJaggedTensor():
            wired.head["dedup"] = "ikjt"
            record = batch.dedup.to_record_batch()
            for name, column in zip(record.schema.names, record.columns, strict=True):
                wired.columns[DEDUP + name] = column
            metadata = record.schema.metadata
        case PartialInverseKeyedJaggedTensor():
            wired.head["dedup"] = "partial"
            whole = batch.dedup.to_bytes()
            wired.columns[DEDUP + "bytes"] = _one_list(pa.py_buffer(whole), np.dtype(np.uint8))
        case other:
            raise PluginError(
                f"dedup: made a {type(other).__name__}, which has no form between processes. Make "
                "an InverseKeyedJaggedTensor or a KeyedJaggedTensor, or choose `reader: local`."
            )
    fields = [pa.field(name, column.type) for name, column in wired.columns.items()]
    head = {**metadata, KEY: json.dumps(wired.head).encode()}
    schema = pa.schema(fields, metadata=head)
    return pa.RecordBatch.from_arrays([*wired.columns.values()], schema=schema)


def batch_from_record(record: pa.RecordBatch) -> Batch:
    """What `batch_to_record` was given, on memory of its own; checked always."""
    text = (record.schema.metadata or {}).get(KEY)
    if text is None:
        raise DataError(
            f"a record batch has no {KEY.decode()!r} in its metadata, so it is no batch. Make it "
            "by batch_to_record."
        )
    try:
        record.validate(full=True)
        head = json.loads(text)
        wired = _Wired(dict(zip(record.schema.names, record.columns, strict=True)), head)
        return Batch(
            **{name: wired.tensor(name) for name in TENSORS},
            features=wired.kjt("features"),
            dedup=_dedup(wired, record.schema.metadata),
            hot_under=head["hot_under"],
        )
    except (pa.ArrowException, ValueError, KeyError, TypeError, AssertionError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"a record batch is a damaged batch ({error}). Send it again.") from error


def _dedup(wired: _Wired, metadata: Mapping[bytes, bytes]) -> Any:
    match wired.head["dedup"]:
        case None:
            return None
        case "kjt":
            return wired.kjt("dedup")
        case "ikjt":
            columns = {
                name.removeprefix(DEDUP): _own(column)
                for name, column in wired.columns.items()
                if name.startswith(DEDUP)
            }
            fields = [pa.field(name, column.type) for name, column in columns.items()]
            schema = pa.schema(fields, metadata=metadata)
            return InverseKeyedJaggedTensor.from_record_batch(
                pa.RecordBatch.from_arrays([*columns.values()], schema=schema)
            )
        case "partial":
            whole = np.array(_numbers(wired.columns[DEDUP + "bytes"], DEDUP))
            return PartialInverseKeyedJaggedTensor.from_bytes(pa.py_buffer(whole))
        case other:
            raise ValueError(f"its dedup is {other!r}")


class _Wired:
    """The columns of a record batch, and what its metadata says of them."""

    def __init__(
        self, columns: dict[str, pa.Array] | None = None, head: dict[str, Any] | None = None
    ) -> None:
        self.columns = {} if columns is None else columns
        self.head: dict[str, Any] = {"tensors": {}, "kjts": {}} if head is None else head

    def add(self, name: str, tensor: Tensor, *, narrow: bool = False) -> None:
        numbers = tensor.detach().contiguous().reshape(-1).numpy()
        kept = numbers
        if narrow:
            kept = numbers.astype(np.min_scalar_type(numbers.max(initial=0)))
        self.columns[name] = _one_list(pa.py_buffer(kept), kept.dtype)
        self.head["tensors"][name] = [str(numbers.dtype), list(tensor.shape)]

    def add_kjt(self, name: str, kjt: KeyedJaggedTensor) -> None:
        if kjt.variable_stride_per_key():
            raise PluginError(
                f"{name}: the keys of this KeyedJaggedTensor differ in batch size (VBE), for which "
                "there is no form between processes. Choose `reader: local`."
            )
        self.head["kjts"][name] = {"keys": kjt.keys(), "stride": kjt.stride()}
        self.add(f"{name}.values", kjt.values())
        self.add(f"{name}.lengths", kjt.lengths(), narrow=True)
        if (weights := kjt.weights_or_none()) is not None:
            self.add(f"{name}.weights", weights)

    def tensor(self, name: str) -> Tensor:
        dtype, shape = self.head["tensors"][name]
        numbers = _numbers(self.columns[name], name)
        # A copy, as what comes over a wire is read-only, and lies at any address.
        return torch.from_numpy(np.array(numbers, dtype=np.dtype(dtype))).view(shape)

    def kjt(self, name: str) -> KeyedJaggedTensor:
        head = self.head["kjts"][name]
        keys, stride = head["keys"], int(head["stride"])
        values, lengths = self.tensor(f"{name}.values"), self.tensor(f"{name}.lengths")
        weights = None
        if f"{name}.weights" in self.head["tensors"]:
            weights = self.tensor(f"{name}.weights")
        if lengths.numel() != len(keys) * stride or int(lengths.sum()) != values.numel():
            raise ValueError(
                f"{name}: {lengths.numel()} lengths of {int(lengths.sum())} ids in all, but "
                f"{len(keys)} keys of {stride} rows, and {values.numel()} ids"
            )
        if weights is not None and weights.numel() != values.numel():
            raise ValueError(f"{name}: {weights.numel()} weights of {values.numel()} ids")
        return KeyedJaggedTensor(
            keys=keys, values=values, lengths=lengths, weights=weights, stride=stride
        )


def _one_list(buffer: pa.Buffer, dtype: np.dtype[Any]) -> pa.LargeListArray:
    """All numbers as the one row of a column, on the same memory, each as it lies."""
    numbers = np.frombuffer(buffer, np.uint8 if dtype.kind == "b" else dtype)
    return pa.LargeListArray.from_arrays(np.array([0, len(numbers)]), pa.array(numbers))


def _numbers(column: pa.Array, name: str) -> np.ndarray[Any, Any]:
    numbers = column.flatten()
    if len(column) != 1 or column.null_count or numbers.null_count:
        raise ValueError(f"{name} has nulls, or {len(column)} rows in place of one")
    found: np.ndarray[Any, Any] = numbers.to_numpy()
    return found


def _own(column: pa.Array) -> pa.Array:
    """The same on memory of its own."""
    numbers = np.array(column.flatten().to_numpy())
    return pa.LargeListArray.from_arrays(np.array([0, len(numbers)]), pa.array(numbers))

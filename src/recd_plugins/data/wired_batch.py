"""A batch as one buffer and a head: what travels between processes, and lies in caches.

The buffer has every tensor at a multiple of 64 bytes, the head, which is JSON, says of which type
and shape each is and at which place. So whoever receives both makes the batch of views of the
buffer. Lengths, which are never negative, go in as few bytes as the largest needs. An IKJT travels
deduplicated, as the numbers of `sparse/wire.py` behind `dedup.`; a partial IKJT as its bytes.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.data.batch import Batch
from recd_plugins.errors import DataError, PluginError
from recd_plugins.sparse.groups import check_groups
from recd_plugins.sparse.ikjt import InverseKeyedJaggedTensor
from recd_plugins.sparse.partial import PartialInverseKeyedJaggedTensor

__all__ = [
    "WIRED_SCHEMA",
    "batch_from_record",
    "batch_to_record",
    "head_and_body",
    "without_body",
]

WIRED_SCHEMA = pa.schema([("head", pa.large_binary()), ("body", pa.large_binary())])
"""The schema of one row: the same for all batches, so that one stream carries many of them."""
ALIGNED, ITEM = 64, 8
"""Bytes: where tensors begin, and the largest number."""
DEDUP = "dedup."
TENSORS = ("dense", "labels", "weights")
MOST_DIMENSIONS = 8
DAMAGES = (pa.ArrowException, ValueError, KeyError, TypeError, AttributeError, OverflowError)

Numbers = NDArray[Any]


def batch_to_record(batch: Batch) -> pa.RecordBatch:
    """One row of a batch on the CPU; `PluginError` for a `dedup` that is none of the host's."""
    packed = _Packed()
    for name in TENSORS:
        packed.add(name, _numpy(getattr(batch, name)))
    packed.add_kjt("features", batch.features)
    packed.head["hot_under"] = batch.hot_under
    match batch.dedup:
        case None:
            packed.head["dedup"] = None
        case KeyedJaggedTensor():
            packed.head["dedup"] = "kjt"
            packed.add_kjt("dedup", batch.dedup)
        case InverseKeyedJaggedTensor():
            ikjt = batch.dedup
            packed.head["dedup"] = "ikjt"
            packed.head["groups"] = ikjt.groups
            packed.head["length_per_key"] = ikjt.kjt.length_per_key_or_none()
            for name, numbers in ikjt.to_numbers().items():
                packed.add(DEDUP + name, numbers)
        case PartialInverseKeyedJaggedTensor():
            packed.head["dedup"] = "partial"
            packed.add(DEDUP + "bytes", np.frombuffer(batch.dedup.to_bytes(), np.uint8))
        case other:
            raise PluginError(
                f"dedup: made a {type(other).__name__}, which has no form between processes. Make "
                "an InverseKeyedJaggedTensor or a KeyedJaggedTensor, or choose `reader: local`."
            )
    return packed.record()


def batch_from_record(record: pa.RecordBatch, body: Tensor | None = None) -> Batch:
    """The batch that `batch_to_record` was given, on the memory of `body`, uint8, or else of the
    record.

    Sizes and bounds are checked, so that nothing outside of the body is read, now or in training;
    that ids are those which were sent is not.
    """
    if not record.schema.equals(WIRED_SCHEMA) or record.num_rows != 1:
        raise DataError(
            f"a record batch has {record.num_rows} rows of {', '.join(record.schema.names)}, so it "
            "is no batch. Make it by batch_to_record."
        )
    try:
        head, sent = head_and_body(record)
        if body is None:
            body = torch.from_dlpack(pa.Array.from_buffers(pa.uint8(), sent.size, [None, sent]))
        if body.data_ptr() % ITEM:  # as it came over a wire
            body = body.clone()
        found = _Unpacked(json.loads(head.to_pybytes()), body.numpy())
        dense, labels, weights = (found.tensor(name) for name in TENSORS)
        return Batch(
            dense=dense,
            features=found.kjt("features"),
            labels=labels,
            weights=weights,
            dedup=found.dedup(len(labels)),
            hot_under=found.head["hot_under"],
        )
    except DAMAGES as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"a record batch is a damaged batch ({error}). Send it again.") from error


def head_and_body(record: pa.RecordBatch) -> tuple[pa.Buffer, pa.Buffer]:
    """Both on the record's memory; `ValueError` where it is no batch's."""
    record.validate(full=True)
    found = []
    for column in record.columns:
        _, offsets, data = column.buffers()
        first, stop = np.frombuffer(offsets, np.int64, 2, 8 * column.offset).tolist()
        found.append((data or pa.py_buffer(b"")).slice(first, stop - first))
    return found[0], found[1]


def without_body(record: pa.RecordBatch) -> pa.RecordBatch:
    """The head alone, where the body goes another way."""
    return pa.RecordBatch.from_arrays([record.column(0), EMPTY], schema=WIRED_SCHEMA)


def _numpy(tensor: Tensor) -> Numbers:
    found: Numbers = tensor.detach().contiguous().numpy()
    return found


class _Packed:
    """Tensors on their way into one buffer, and what the head says of them."""

    def __init__(self) -> None:
        self.head: dict[str, Any] = {"tensors": {}, "kjts": {}}
        self._numbers: list[tuple[int, Numbers]] = []
        self._size = 0

    def add(self, name: str, numbers: Numbers) -> None:
        self.head["tensors"][name] = (numbers.dtype.str, numbers.shape, self._size)
        self._numbers.append((self._size, numbers))
        self._size += -(-numbers.nbytes // ALIGNED) * ALIGNED

    def add_kjt(self, name: str, kjt: KeyedJaggedTensor) -> None:
        if kjt.variable_stride_per_key():
            raise PluginError(
                f"{name}: the keys of this KeyedJaggedTensor differ in batch size (VBE), for which "
                "there is no form between processes. Choose `reader: local`."
            )
        lengths = _numpy(kjt.lengths())
        self.head["kjts"][name] = {
            "keys": kjt.keys(),
            "stride": kjt.stride(),
            "lengths": lengths.dtype.str,
            "length_per_key": kjt.length_per_key_or_none(),
        }
        self.add(f"{name}.values", _numpy(kjt.values()))
        narrow = np.min_scalar_type(lengths.max(initial=0))
        self.add(f"{name}.lengths", lengths.astype(narrow))
        if (weights := kjt.weights_or_none()) is not None:
            self.add(f"{name}.weights", _numpy(weights))

    def record(self) -> pa.RecordBatch:
        """All of it, on memory of its own."""
        body: Numbers = torch.empty(self._size, dtype=torch.uint8).numpy()
        for first, numbers in self._numbers:
            stop = first + numbers.nbytes
            body[first:stop] = numbers.reshape(-1).view(np.uint8)
            body[stop : first - (-numbers.nbytes // ALIGNED) * ALIGNED] = 0
        head = json.dumps(self.head).encode()
        columns = [_one_binary(pa.py_buffer(part)) for part in (head, body)]
        return pa.RecordBatch.from_arrays(columns, schema=WIRED_SCHEMA)


def _one_binary(data: pa.Buffer) -> pa.Array:
    """One row, on the same memory."""
    offsets = pa.py_buffer(np.array([0, data.size]))
    return pa.Array.from_buffers(pa.large_binary(), 1, [None, offsets, data])


EMPTY = _one_binary(pa.py_buffer(b""))


class _Unpacked:
    """Views of a body, each checked against its size."""

    def __init__(self, head: dict[str, Any], body: Numbers) -> None:
        self.head, self._body = head, body

    def numbers(self, name: str) -> Numbers:
        kind, shape, first = self.head["tensors"][name]
        dtype = np.dtype(kind)
        if dtype.kind not in "biuf" or len(shape) > MOST_DIMENSIONS:
            raise ValueError(f"{name} is {kind!r} of shape {shape}")
        count = 1
        for side in shape:
            if not 0 <= side <= self._body.size:
                raise ValueError(f"{name} has shape {shape}")
            count *= side
        if first < 0 or first % ITEM or first + count * dtype.itemsize > self._body.size:
            raise ValueError(f"{name} reaches beyond the {self._body.size} bytes that are there")
        return np.frombuffer(self._body, dtype, count, first).reshape(shape)

    def tensor(self, name: str) -> Tensor:
        return torch.from_numpy(self.numbers(name))

    def kjt(self, name: str) -> KeyedJaggedTensor:
        head = self.head["kjts"][name]
        keys, stride, per_key = head["keys"], head["stride"], head["length_per_key"]
        values, narrow, weights = self.tensor(f"{name}.values"), self._lengths(name), None
        if f"{name}.weights" in self.head["tensors"]:
            weights = self.tensor(f"{name}.weights")
        total = int(narrow.sum())
        if narrow.size != len(keys) * stride or total != values.numel():
            raise ValueError(
                f"{name}: {narrow.size} lengths of {total} ids in all, but {len(keys)} keys of "
                f"{stride} rows, and {values.numel()} ids"
            )
        if weights is not None and weights.numel() != total:
            raise ValueError(f"{name}: {weights.numel()} weights of {total} ids")
        return KeyedJaggedTensor(
            keys=keys,
            values=values,
            lengths=torch.from_numpy(narrow.astype(head["lengths"])),
            weights=weights,
            stride=stride,
            length_per_key=_per_key(per_key, len(keys), total),
        )

    def dedup(self, batch_size: int) -> Any:
        match self.head["dedup"]:
            case None:
                return None
            case "kjt":
                return self.kjt("dedup")
            case "ikjt":
                names = [name for name in self.head["tensors"] if name.startswith(DEDUP)]
                numbers = {name.removeprefix(DEDUP): self.numbers(name) for name in names}
                keys = [key for group in self.head["groups"] for key in group]
                return InverseKeyedJaggedTensor.from_numbers(
                    check_groups(self.head["groups"], keys),
                    numbers,
                    batch_size,
                    _per_key(self.head["length_per_key"], len(keys), numbers["values"].size),
                )
            case "partial":
                whole = pa.py_buffer(self.numbers(DEDUP + "bytes"))
                return PartialInverseKeyedJaggedTensor.from_bytes(whole)
            case other:
                raise ValueError(f"its dedup is {other!r}")

    def _lengths(self, name: str) -> Numbers:
        lengths = self.numbers(f"{name}.lengths")
        if lengths.dtype.kind != "u" or lengths.ndim != 1:
            raise ValueError(f"{name}: its lengths are {lengths.dtype}, of shape {lengths.shape}")
        return lengths


def _per_key(counts: list[int] | None, keys: int, total: int) -> list[int] | None:
    """The number of ids that each key has, where the sender knew."""
    if counts is not None and (len(counts) != keys or min(counts, default=0) < 0):
        raise ValueError(f"{len(counts)} counts of ids for {keys} keys")
    if counts is not None and sum(counts) != total:
        raise ValueError(f"its keys have {sum(counts)} ids, but it has {total}")
    return counts

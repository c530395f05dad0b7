"""A batch as one buffer and a head: this form travels between processes, and is cached.

The head, which is JSON, has what a job's batches have in common: names and types of their tensors.
The buffer begins with the shape of each tensor; the tensors follow, each at a multiple of 64 bytes.
Whole numbers are sent in as few bytes as the largest of the batch needs, and a tensor in which all
numbers are the same is sent as that number. An IKJT travels deduplicated, its inverse lookup as
bands of equal samples if that is shorter; a partial IKJT travels as its bytes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.compat.kernels import kernel
from recd_plugins.data.batch import Batch
from recd_plugins.data.wired_numbers import NARROW, Layout, Narrowed, Stored
from recd_plugins.errors import DataError, PluginError, so_many
from recd_plugins.sparse.groups import Groups, check_groups
from recd_plugins.sparse.ikjt import InverseKeyedJaggedTensor
from recd_plugins.sparse.partial import PartialInverseKeyedJaggedTensor
from recd_plugins.sparse.wire import lookup_as_bands, lookup_of_bands

__all__ = [
    "WIRED_SCHEMA",
    "batch_to_record",
    "batches_from_record",
    "body_of",
    "joined_records",
    "without_bodies",
]

WIRED_SCHEMA = pa.schema([("head", pa.large_binary()), ("body", pa.large_binary())])
"""A row per batch, with the same schema for all, so that one stream can carry many batches. A head
that equals the previous row's is left out."""
TENSORS = ("dense", "labels", "weights")
KEPT = ("labels", "weights")
"""Tensors that trainers keep for their metrics: they have memory of their own, because a view would
keep the body alive, and all bodies that came with it."""
MOST_DIMENSIONS = 8
HEADS = 32
"""How many heads are remembered: those of a job's batches differ only if numbers need more
bytes."""
DAMAGES = (pa.ArrowException, ValueError, KeyError, TypeError, AttributeError, OverflowError)

Numbers = NDArray[Any]
INT64 = np.dtype(np.int64)


def batch_to_record(batch: Batch) -> pa.RecordBatch:
    """A batch on the CPU as one row; raises `PluginError` for a `dedup` that is not one of the
    host's types."""
    packed = _Packed()
    for name in TENSORS:
        packed.add(name, getattr(batch, name))
    packed.add_kjt("features", batch.features)
    kind: str | None = None
    groups: Groups = ()
    match batch.dedup:
        case None:
            pass
        case KeyedJaggedTensor():
            kind = "kjt"
            packed.add_kjt("dedup", batch.dedup)
        case InverseKeyedJaggedTensor():
            kind, groups = "ikjt", batch.dedup.groups
            packed.add_kjt("dedup", batch.dedup.kjt)
            packed.add("dedup.unique_counts", _counts(batch.dedup.unique_counts))
            codes, bands = lookup_as_bands(batch.dedup.inverse_lookup.numpy())
            packed.add("dedup.codes", torch.from_numpy(codes))
            packed.add("dedup.runs", torch.from_numpy(bands))
        case PartialInverseKeyedJaggedTensor():
            kind = "partial"
            whole = bytearray(batch.dedup.to_bytes())
            packed.add("dedup.bytes", torch.frombuffer(whole, dtype=torch.uint8))
        case other:
            raise PluginError(
                f"dedup: made a {type(other).__name__}, which cannot be sent between processes. "
                "Make an InverseKeyedJaggedTensor or a KeyedJaggedTensor, or choose `reader: "
                "local`."
            )
    return packed.record(kind, groups, batch.hot_under)


def batches_from_record(
    record: pa.RecordBatch, bodies: Sequence[Tensor] | None = None
) -> list[tuple[Batch, int]]:
    """The batches that `batch_to_record` was given, one per row, and the bytes of their tensors.

    A row without a head has that of the row before it. Tensors share the memory of `bodies`, uint8,
    or else of the record, where numbers were sent in their own type. Sizes and bounds are checked,
    so that nothing outside the body is read, now or in training; whether ids are those that were
    sent is not checked.
    """
    if not record.schema.equals(WIRED_SCHEMA) or not record.num_rows:
        raise DataError(
            f"a record batch has {so_many(record.num_rows, 'row')} of "
            f"{', '.join(record.schema.names)}, so it is no batch. Make it by batch_to_record."
        )
    try:
        record.validate(full=True)
        heads = record.column(0).to_pylist()
        for at in range(1, len(heads)):
            heads[at] = heads[at] or heads[at - 1]
        if bodies is None:
            bodies = _bodies(record)
        return [_batch(head, body) for head, body in zip(heads, bodies, strict=True)]
    except DAMAGES as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"a record batch is a damaged batch ({error}). Send it again.") from error


def body_of(record: pa.RecordBatch) -> pa.Buffer:
    """The body of a record of one batch, without a copy."""
    return record.column(1)[0].as_buffer()


def joined_records(records: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Records of one batch each as rows of one record, which one message can carry."""
    bodies = pa.concat_arrays([record.column(1) for record in records])
    return pa.RecordBatch.from_arrays([_heads(records), bodies], schema=WIRED_SCHEMA)


def without_bodies(records: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """The same rows with only their heads, if bodies travel another way."""
    nothing = pa.array([b""] * len(records), pa.large_binary())
    return pa.RecordBatch.from_arrays([_heads(records), nothing], schema=WIRED_SCHEMA)


def _heads(records: Sequence[pa.RecordBatch]) -> pa.Array:
    """Each record's head; empty if it equals the one before."""
    heads = [record.column(0)[0].as_py() for record in records]
    pairs = pairwise([None, *heads])
    return pa.array([b"" if one == before else one for before, one in pairs], pa.large_binary())


class _Head(NamedTuple):
    tensors: tuple[Stored, ...]
    keys: tuple[tuple[str, tuple[str, ...]], ...]
    """The keys of each KJT, by its name."""
    dedup: str | None
    """What it is: kjt, ikjt or partial."""
    groups: Groups
    """Those of an IKJT."""
    hot_under: str | None


@lru_cache(HEADS)
def _written(head: _Head) -> bytes:
    return json.dumps(head._asdict(), default=lambda kind: kind.str).encode()


class _Form(NamedTuple):
    """What is known of a batch once its head was read."""

    head: _Head
    layout: Layout
    keys: dict[str, tuple[str, ...]]


@lru_cache(HEADS)
def _read(text: bytes) -> _Form:
    """The head that was written; raises an error for anything that is not a head, or names unknown
    types."""
    found = json.loads(text)
    head = _Head(
        tensors=tuple(map(_sent, found["tensors"])),
        keys=tuple((name, tuple(keys)) for name, keys in found["keys"]),
        dedup=found["dedup"],
        groups=tuple(map(tuple, found["groups"])),
        hot_under=found["hot_under"],
    )
    keys = dict(head.keys)
    if head.dedup == "ikjt":
        check_groups(head.groups, list(keys["dedup"]))
        if keys["dedup"] != tuple(chain(*head.groups)):
            raise ValueError(f"its keys are not those of its groups {head.groups}")
    return _Form(head, Layout(head.tensors, kept=KEPT), keys)


def _sent(found: Any) -> Stored:
    name, wide, narrow, dimensions = found
    one = Stored(name, np.dtype(wide), None if narrow is None else np.dtype(narrow), dimensions)
    fewer = [kind for kind in NARROW if kind.itemsize < one.wide.itemsize]
    if one.wide.kind not in "iu" or one.wide.itemsize not in (4, 8):
        fewer = []
    if one.wide.kind not in "biuf" or (one.narrow and one.narrow not in (one.wide, *fewer)):
        raise ValueError(f"{name} is {wide!r}, sent as {narrow!r}")
    if not 0 <= dimensions <= MOST_DIMENSIONS:
        raise ValueError(f"{name} has {dimensions} dimensions")
    return one


class _Packed:
    """Tensors that are being packed into one buffer, and what the head says of them."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._shapes: list[Sequence[int]] = []
        self._tensors: list[Tensor] = []
        self._keys: list[tuple[str, tuple[str, ...]]] = []

    def add(self, name: str, tensor: Tensor, shape: Sequence[int] | None = None) -> None:
        if not tensor.is_cpu:  # its address would be read as one in this process's memory
            raise PluginError(
                f"{name}: is on {tensor.device}, but batches are sent between processes from the "
                "CPU's memory. Pass CPU tensors, `batch.to(torch.device('cpu'))`, or choose "
                "`reader: local`."
            )
        self._names.append(name)
        self._shapes.append(tensor.shape if shape is None else shape)
        self._tensors.append(tensor)

    def add_kjt(self, name: str, kjt: KeyedJaggedTensor) -> None:
        if kjt.variable_stride_per_key():
            raise PluginError(
                f"{name}: the keys of this KeyedJaggedTensor differ in batch size (VBE), and such "
                "a KJT cannot be sent between processes. Choose `reader: local`."
            )
        keys = tuple(kjt.keys())
        self._keys.append((name, keys))
        self.add(f"{name}.values", kjt.values())
        self.add(f"{name}.lengths", kjt.lengths(), (len(keys), kjt.stride()))
        if (weights := kjt.weights_or_none()) is not None:
            self.add(f"{name}.weights", weights)
        if (counts := kjt.length_per_key_or_none()) is not None:
            self.add(f"{name}.length_per_key", _counts(counts))

    def record(self, dedup: str | None, groups: Groups, hot_under: str | None) -> pa.RecordBatch:
        """All of it as a record, with memory of its own."""
        numbers = Narrowed(self._tensors)
        tensors = map(Stored, self._names, numbers.types, numbers.stored, map(len, self._shapes))
        head = _Head(tuple(tensors), tuple(self._keys), dedup, groups, hot_under)
        body = numbers.body([*chain.from_iterable(self._shapes)])
        columns = [_one_binary(pa.py_buffer(part)) for part in (_written(head), body)]
        return pa.RecordBatch.from_arrays(columns, schema=WIRED_SCHEMA)


@kernel
def _add_up(lengths: Numbers, total: int, counts: Numbers) -> bool:
    """Whether these are lengths of rows with this number of ids in all; writes how many ids each
    key has."""
    left = total
    for key in range(len(lengths)):
        before = left
        for length in lengths[key]:
            if not 0 <= length <= left:
                return False
            left -= length
        counts[key] = before - left
    return left == 0


def _counts(numbers: Sequence[int]) -> Tensor:
    """The numbers as an int64 tensor, made in a third of the time that `torch.tensor` takes."""
    return torch.from_numpy(np.array(numbers, np.int64))


def _one_binary(data: pa.Buffer) -> pa.Array:
    """A column of one row, on the same memory."""
    offsets = pa.py_buffer(np.array([0, data.size]))
    return pa.Array.from_buffers(pa.large_binary(), 1, [None, offsets, data])


def _bodies(record: pa.RecordBatch) -> list[Tensor]:
    """Each row's body, on the record's memory."""
    column = record.column(1)
    _, offsets, data = column.buffers()
    borders = np.frombuffer(offsets, np.int64, len(column) + 1, 8 * column.offset).tolist()
    data = data or pa.py_buffer(b"")
    # Through torch: a numpy array on the same memory would be read-only.
    whole = torch.from_dlpack(pa.Array.from_buffers(pa.uint8(), data.size, [None, data]))
    return [whole[first:stop] for first, stop in pairwise(borders)]


def _batch(head: bytes, body: Tensor) -> tuple[Batch, int]:
    found = _Unpacked(_read(head), body)
    dense, labels, weights = (found.tensor(name) for name in TENSORS)
    if not len(dense) == len(labels) == len(weights):
        raise ValueError(f"it has {len(dense)}, {len(labels)} and {len(weights)} rows")
    batch = Batch(
        dense=dense,
        features=found.kjt("features"),
        labels=labels,
        weights=weights,
        dedup=found.dedup(len(labels)),
        hot_under=found.form.head.hot_under,
    )
    return batch, found.num_bytes


class _Unpacked:
    """The tensors of a body, each checked against its size."""

    def __init__(self, form: _Form, body: Tensor) -> None:
        self.form = form
        numbers, self.num_bytes = form.layout.numbers(body)
        names = (one.name for one in form.head.tensors)
        self._numbers = dict(zip(names, numbers, strict=True))

    def tensor(self, name: str) -> Tensor:
        return torch.from_numpy(self._numbers[name])

    def kjt(self, name: str) -> KeyedJaggedTensor:
        keys, values = self.form.keys[name], self._numbers[f"{name}.values"]
        lengths, weights = self._numbers[f"{name}.lengths"], self._numbers.get(f"{name}.weights")
        if lengths.dtype.kind not in "iu" or lengths.ndim != 2 or len(lengths) != len(keys):
            raise ValueError(
                f"{name}: its lengths are {lengths.dtype} of shape {lengths.shape}, for "
                f"{so_many(len(keys), 'key')}"
            )
        total, counts = len(values), np.empty(len(keys), np.int64)
        if not _add_up(lengths, total, counts):
            raise ValueError(f"{name}: its lengths do not add up to its {total} ids")
        whole = values.dtype.kind in "iu" and values.ndim == 1
        if not whole or (weights is not None and weights.shape != values.shape):
            raise ValueError(f"{name}: its ids are {values.dtype} of shape {values.shape}")
        return KeyedJaggedTensor(
            keys=list(keys),
            values=torch.from_numpy(values),
            lengths=torch.from_numpy(lengths.reshape(-1)),
            weights=None if weights is None else torch.from_numpy(weights),
            stride=lengths.shape[1],
            length_per_key=self._length_per_key(name, counts.tolist()),
        )

    def dedup(self, batch_size: int) -> Any:
        match self.form.head.dedup:
            case None:
                return None
            case "kjt":
                return self.kjt("dedup")
            case "ikjt":
                return self._ikjt(batch_size)
            case "partial":
                whole = pa.py_buffer(self._numbers["dedup.bytes"])
                return PartialInverseKeyedJaggedTensor.from_bytes(whole)
            case other:
                raise ValueError(f"its dedup is {other!r}")

    def _ikjt(self, batch_size: int) -> InverseKeyedJaggedTensor:
        counts, codes, bands = (
            self._numbers[f"dedup.{name}"] for name in ("unique_counts", "codes", "runs")
        )
        if counts.dtype != INT64 or {codes.dtype.kind, bands.dtype.kind} - {*"iu"}:
            raise ValueError("its unique counts or lookups are no integers")
        groups, kjt = self.form.head.groups, self.kjt("dedup")
        unique_counts = tuple(counts.tolist())
        if counts.shape != (len(groups),) or kjt.stride() != max(unique_counts):
            raise ValueError(f"{len(groups)} groups have {[*unique_counts]} unique samples")
        lookup = lookup_of_bands(codes, bands, counts, batch_size)
        return InverseKeyedJaggedTensor(kjt, torch.from_numpy(lookup), groups, unique_counts)

    def _length_per_key(self, name: str, there: list[int]) -> list[int] | None:
        """The number of ids that each key has, if the sender knew it; checked against the ids that
        are there."""
        counts = self._numbers.get(f"{name}.length_per_key")
        if counts is None:
            return None
        if counts.tolist() != there:
            raise ValueError(f"{name}: its keys have {there} ids, and not {counts.tolist()}")
        return there
